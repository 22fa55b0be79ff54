"""The node of a task's training, for the catalogue. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.stage import Node, RawInput, Stage
from stages.config import Config
from stages.onnx_extra import check_onnx_installed
from stages.stage_list import TOKENS, text_modules
from stages.task_config import TaskConfig
from stages.training_nodes import cluster_settings, training_resources

MATHEMATICS = (
    "epochs", "global_batch_size", "learning_rate", "warmup_share", "schedule", "optimizer",
    "weight_decay", "beta1", "beta2", "epsilon", "clip_norm", "precision", "layer_decay",
    "freeze_embeddings", "freeze_layers", "freeze_encoder", "head_dropout", "dropout", "seeds",
    "keep", "patience", "evaluate_every_steps",
)  # fmt: skip
FREQUENCIES = ("checkpoint_every_steps", "log_every_steps", "keep_checkpoints")

FINETUNE = Stage(
    name="finetune",
    version=1,
    run="stages.finetune:run",
    modules=(
        "stages.finetune",
        "stages.finetune_report",
        "stages.finetune_worker",
        "stages.given_weights",
        "stages.model_folder",
        "stages.onnx",
        "stages.task_figures",
        "stages.task_scoring",
        "stages.training_worker",
        "stages.training_workers",
        "stages.vocabulary_source",
        "stages.metrics",
        *TOKENS,
        *text_modules("task_answers", "task_pieces", "task_tables", "tasks"),
        *text_modules("existing", "folders", "listing", "records", "streams", "uris"),
        *text_modules("masking", "random", "words_in_rows"),
        "stages.training",
        "model",
    ),
    recorded=("torch", "numpy", "pyarrow", "ray", "scikit-learn", "scipy"),
    deterministic=False,
)


def finetune_node(config: Config, name: str, task: TaskConfig, pretrained: str) -> Node:
    """The node `finetune/NAME`.

    Args:
        config: the run's.
        name: of the task.
        task: one of `config.resolved_tasks()`.
        pretrained: name of the node with this run's encoder.
    """
    whole = {**config.finetune.model_dump(mode="json"), **_set(task.model_dump(mode="json"))}
    given = task.init_from
    key = "finetune.init_from"
    if config.tasks[name].init_from is not None:
        key = f"tasks.{name}.init_from"
    train = {key: whole[key] for key in MATHEMATICS}
    inputs = {"task": f"task/{name}"}
    if given is None:
        inputs["pretrain"] = pretrained
    return Node(
        name=f"finetune/{name}",
        stage=FINETUNE,
        config={
            "train": train,
            "onnx": whole["onnx"],
            "encoder": "pretrain" if given is None else "listed",
            "seeds": {"finetune": config.seed_for("finetune")},
        },
        settings={
            "train": {key: whole[key] for key in FREQUENCIES},
            "init_from": given,
            "init_from_key": key,
            "register": whole["register"],
            "rounding": config.rounding.model_dump(mode="json"),
            "speed": {"prefetch_batches": config.speed.prefetch_batches},
            "cluster": cluster_settings(config.cluster),
        },
        inputs=inputs,
        resources=training_resources(config.cluster),
        raw=None if given is None else _listing(given, key),
        check=check_onnx_installed if whole["onnx"] else None,
    )


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _listing(given: str, key: str) -> Callable[[], RawInput]:
    def listing() -> RawInput:
        from stages.given_weights import content_digest, find_weights

        found = find_weights(given, Path.cwd(), key)
        size, digest = content_digest(found.weights)
        entry = {"name": "weights", "layout": found.layout, "sha256": digest}
        return RawInput([entry], f"{found.weights.name}, {size / 1e6:,.1f} MB")

    return listing
