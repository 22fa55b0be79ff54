"""Stage pretrain: Ray Train around `stages.training`.

The loop, its data order and its checkpoints know nothing of Ray; this module starts the workers,
hands each the same job, and carries figures back to the driver. Checkpoints lie in the node's work
folder, named by the fingerprint and the generation, so that a changed config never finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.stage import Context, Result, Table
from stages.mix import open_mix
from stages.pretrain_worker import (
    MODEL,
    OPTIMISER,
    WEIGHTS,
    Plan,
    model_config,
    seed_of,
    train_worker,
)
from stages.training_rows import check_own_rows, check_rows, row_count, training_rows
from stages.training_workers import train_on_workers
from stages.vocabulary_files import load_tokenizer


def run(context: Context) -> Result:
    """Train on Ray Train, from the newest checkpoint where an earlier attempt left one."""
    finished = context.output.finished()
    if not {WEIGHTS, MODEL, OPTIMISER} <= finished.keys():
        _check_rows(context)
        _train(context)
        context.stop.check()
    part = context.output.finished()[WEIGHTS]
    figures = dict(part.figures)
    rows = row_count(training_rows(context.inputs))
    return Result(
        figures=figures,
        flow=f"{rows:,} rows -> {figures['steps']:,} steps, "
        f"{figures['tokens_seen']:,} tokens, {figures['parameters']:,} parameters",
        report=[_report_table(figures)],
    )


REPORTED = {
    "parameters": ("parameters", "{:,}"),
    "steps": ("optimiser steps", "{:,}"),
    "tokens_seen": ("tokens seen", "{:,}"),
    "steps_of_all_phases": ("optimiser steps of all phases so far", "{:,}"),
    "tokens_seen_of_all_phases": ("tokens seen in all phases so far", "{:,}"),
    "resumed_from": ("resumed from step", "{:,}"),
    "train/loss": ("loss of the last steps", "{:.3f} nats"),
    "train/mlm_loss": ("... of masked tokens", "{:.3f} nats"),
    "train/nsp_loss": ("... of the next sentence", "{:.3f} nats"),
    "train/sentence_order_loss": ("... of the sentence order", "{:.3f} nats"),
    "validation/mlm_loss": ("held-out loss of masked tokens", "{:.3f} nats"),
    "validation/nsp_loss": ("held-out loss of the next sentence", "{:.3f} nats"),
    "validation/sentence_order_loss": ("held-out loss of the sentence order", "{:.3f} nats"),
    "validation/unigram_loss": ("... of the unigram baseline", "{:.3f} nats"),
    "train/skipped_steps": ("steps lost to losses or gradients that are not finite", "{:,}"),
    "train/mfu": ("share of the devices' peak (MFU)", "{:.1%}"),
    "train/memory_gb": ("most memory of the first worker", "{:.2f} GB"),
    "best/step": ("best held-out loss of a checkpoint, after step", "{:,}"),
    "best/mlm_loss": ("... that loss (its weights: folder best)", "{:.3f} nats"),
    "train/tokens_per_second": ("speed at the end", "{:,.0f} tokens/s"),
}


def _report_table(figures: Mapping[str, Any]) -> Table:
    known = [(words, form, figures[n]) for n, (words, form) in REPORTED.items() if n in figures]
    rows = [[words, form.format(value)] for words, form, value in known]
    return Table("Training (the curves are in MLflow)", ["what", "value"], rows)


def _check_rows(context: Context) -> None:
    from stages.text.tokenizer_files import vocabulary_digest

    digest = vocabulary_digest(load_tokenizer(context.inputs["vocab"]))
    check_own_rows(context.inputs, digest)
    paths = context.node.settings.get("mix", ())
    objective = context.node.config["objective"]
    for mixed in open_mix(paths, context.raw):
        check_rows(mixed, digest, objective["pair"] if objective["nsp"] else None)


def _train(context: Context) -> None:
    initial = _initial(context)
    train_on_workers(
        context,
        train_worker,
        lambda threads, use_gpu: _plan(context, initial, threads, use_gpu),
    )


def _initial(context: Context) -> str | None:
    """Put the weights of `train.init_from` into the store, where every node reads them."""
    given = context.node.settings["train"]["init_from"]
    if given is None:
        return None
    from safetensors.torch import save

    from stages.initial_weights import initial_weights

    path = f"{context.output.work}/initial.safetensors"
    if context.output.files.size(path) is None:
        config = context.node.config
        tokens = tuple(load_tokenizer(context.inputs["vocab"]).vocab)
        weights, notices = initial_weights(
            given, Path.cwd(), model_config(config, tokens), tokens, seed_of(config)
        )
        for notice in notices:
            context.progress.note(notice)
        context.output.files.write(path, save(weights))
    return path


def _plan(context: Context, initial: str | None, threads: int, use_gpu: bool) -> Plan:
    return Plan(
        config=dict(context.node.config),
        settings=dict(context.node.settings),
        rows=training_rows(context.inputs),
        mixed=tuple(open_mix(context.node.settings.get("mix", ()), context.raw)),
        heldout=context.inputs["heldout"],
        vocab=context.inputs["vocab"],
        before=context.inputs.get("before"),
        initial=initial,
        output=context.output,
        fingerprint=context.fingerprint,
        attempt=context.attempt,
        threads=threads,
        use_gpu=use_gpu,
    )
