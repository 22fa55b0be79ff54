"""Stage finetune: a task's rows and a pretrained encoder -> a model of the task.

The data folder of its artifact is the model: a folder that `transformers` opens. Several seeds run
one after another in the same workers; the best on dev is the model, and the figures say mean and
deviation over all of them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from model.config import BertConfig
from pipeline.stage import Context, Result, StageError
from stages.finetune_report import finetune_result
from stages.finetune_worker import (
    WEIGHTS,
    Plan,
    finetune_worker,
    task_description,
)
from stages.training_workers import train_on_workers
from stages.vocabulary_files import load_tokenizer

SHAPE = "encoder.json"


def run(context: Context) -> Result:
    """Train on Ray Train, from the newest checkpoint where an earlier attempt left one."""
    if WEIGHTS not in context.output.finished():
        _say_what_is_not_used(context)
        model, initial = _initial(context)

        def plan(threads: int, use_gpu: bool) -> Plan:
            return Plan(
                name=context.node.name.partition("/")[2],
                config=dict(context.node.config),
                settings=dict(context.node.settings),
                task=context.inputs["task"],
                model=model,
                initial=initial,
                output=context.output,
                fingerprint=context.fingerprint,
                attempt=context.attempt,
                threads=threads,
                use_gpu=use_gpu,
            )

        train_on_workers(context, finetune_worker, plan)
        context.stop.check()
    return finetune_result(context)


def _say_what_is_not_used(context: Context) -> None:
    rounding = context.node.settings["rounding"]
    for key, off in (("compile", False), ("sharding", "none")):
        if rounding[key] != off:
            context.progress.note(f"rounding.{key} acts in pretraining alone, not here")


def _initial(context: Context) -> tuple[BertConfig, str]:
    """Put the encoder to start from into the store, where every node reads it.

    Returns:
        Its shape, with the dropout of the task, and the path of its weights.
    """
    from safetensors.torch import save

    output, train = context.output, context.node.config["train"]
    path = f"{output.work}/initial.safetensors"
    shape = f"{output.work}/{SHAPE}"
    there = output.files.read(shape)
    if there is None:
        config, weights = _encoder(context)
        output.files.write(path, save(weights))
        there = json.dumps(dataclasses.asdict(config)).encode()
        output.files.write(shape, there)
    config = BertConfig(**json.loads(there))
    if train["dropout"] is not None:
        config = dataclasses.replace(
            config, hidden_dropout=train["dropout"], attention_dropout=train["dropout"]
        )
    return config, path


def _encoder(context: Context) -> tuple[BertConfig, dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    from model.huggingface import CheckpointError
    from model.huggingface_files import read_files
    from model.huggingface_tasks import start_from_huggingface
    from model.task_start import start_from_pretraining
    from stages.given_weights import find_weights

    described = task_description(context.inputs["task"])
    kind, labels = described["kind"], described["classes"]
    if described["objective"] == "regression":
        labels = [context.node.name.partition("/")[2]]
    given = context.node.settings["init_from"]
    try:
        if given is None:
            pretrain = context.inputs["pretrain"]
            config = BertConfig(**json.loads(pretrain.read_bytes("model.json")))
            there = load(pretrain.read_bytes("weights.safetensors"))
            start = start_from_pretraining(there, config, kind)
        else:
            found = find_weights(given, Path.cwd(), context.node.settings["init_from_key"])
            if found.layout == "transformers":
                start = start_from_huggingface(*read_files(found.folder), kind, labels)
            else:
                config = BertConfig(**json.loads((found.folder / "model.json").read_text()))
                start = start_from_pretraining(load_file(found.weights), config, kind)
    except (CheckpointError, SafetensorError, OSError, ValueError) as error:
        raise StageError(f"the encoder to start from cannot be used: {error}") from None
    entries = len(load_tokenizer(context.inputs["task"]).vocab)
    if entries != start.config.vocab_size:
        raise StageError(
            f"the rows of the task were made with {entries:,} vocabulary entries, and the encoder "
            f"has {start.config.vocab_size:,}: they do not belong together"
        )
    if start.drawn:
        whole = "the head" if all(n.startswith("head.") for n in start.drawn) else "parts"
        context.progress.note(f"{whole} ({len(start.drawn)} tensors) drawn from the seed")
    return start.config, start.state_dict
