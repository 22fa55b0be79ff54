"""Stage pretrain: Ray Train around `stages.training`.

The loop, its data order and its checkpoints know nothing of Ray; this module starts the workers,
hands each the same job, and carries figures back to the driver. Checkpoints lie in the node's work
folder, named by the fingerprint and the generation, so that a changed config never finds them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.channel import Channel
from pipeline.stage import Context, Interrupted, Result, StageError, Table
from stages.mix import open_mix
from stages.nodes import nodes_room, say_if_busy, share_per_worker, watch_room
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
from stages.vocabulary_files import load_tokenizer

MAX_FAILURES = 3


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
    cluster = context.node.settings["cluster"]
    least, most = cluster["train_workers"]
    use_gpu = cluster["device"] != "cpu" and context.granted.gpus >= least
    if cluster["device"] == "cuda" and not use_gpu:
        raise StageError(
            f"cluster.device=cuda: {least} workers need as many GPUs, this run may use "
            f"{context.granted.gpus:g}. Lower cluster.train_workers or set cluster.device=cpu"
        )
    elif cluster["device"] == "auto" and context.granted.gpus and not use_gpu:
        context.progress.note(
            f"{least} workers and {context.granted.gpus:g} GPUs: training on CPUs. Lower "
            "cluster.train_workers to train on GPUs"
        )
    initial = _initial(context)
    reached, vain = 0, 0
    for round_ in itertools.count():
        stopped_at = _fit(context, initial, (least, most), use_gpu, round_)
        if stopped_at is None:
            return
        # The run or a worker was told to stop, or workers lost the way to the driver with a node:
        # a checkpoint is written in each case.
        vain = 0 if stopped_at > reached else vain + 1
        if context.stop.is_set() or vain > MAX_FAILURES:
            break
        reached = max(reached, stopped_at)
        context.progress.note(
            f"a worker or its node is taken away; training goes on from the checkpoint of step "
            f"{stopped_at:,}"
        )
    raise Interrupted("training was asked to stop; its checkpoint is written")


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


def _fit(
    context: Context, initial: str | None, workers: tuple[int, int], use_gpu: bool, round_: int
) -> int | None:
    """Train until the end or a stop; returns the step of the checkpoint of a stop, else None."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from stages.train_backend import LeavingTorchConfig

    cluster = context.node.settings["cluster"]
    cpus = cluster["cpus_per_worker"] or share_per_worker(
        workers[1], context.granted.cpus, nodes_room(), gpus=float(use_gpu)
    )
    least, most = workers_within(workers, cpus, cluster["num_cpus"])
    say_if_busy(context, least * cpus)
    resources = {"CPU": cpus} | ({"GPU": 1.0} if use_gpu else {})
    plan = _plan(context, initial, threads=max(1, math.floor(cpus)), use_gpu=use_gpu)
    with Channel(context.metrics, context.progress, context.stop) as channel:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"plan": plan, "sender": channel.sender},
            torch_config=LeavingTorchConfig(),
            scaling_config=ScalingConfig(
                num_workers=least if least == most else (least, most),
                use_gpu=use_gpu,
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                # The attempt is in the name: our checkpoints say where to go on, not Ray's.
                name=f"{context.output.run_name}-{context.attempt}-{round_}",
                storage_path=f"{context.output.work}/ray_train",
                storage_filesystem=None if context.output.is_local else context.output.fs,
                failure_config=FailureConfig(
                    max_failures=MAX_FAILURES, controller_failure_limit=MAX_FAILURES
                ),
            ),
        )
        try:
            with watch_room(context, least, cpus, float(use_gpu)):
                result = trainer.fit()
        except Exception as error:
            context.stop.check()
            raise _readable(error) from error
    ended = result.return_value or {"stopped": True, "step": 0}
    if "failed" in ended:
        raise StageError(ended["failed"])
    return int(ended["step"]) if ended["stopped"] else None


def workers_within(workers: tuple[int, int], cpus: float, num_cpus: int | None) -> tuple[int, int]:
    """The range of workers of `cpus` CPUs each that stays within what the run may use.

    A cluster may grow while a run waits for more, so that only `cluster.num_cpus` is a cap.
    """
    least, most = workers
    if num_cpus is None:
        return workers
    return least, max(least, min(most, math.floor(num_cpus / cpus + 1e-9)))


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


def _readable(error: BaseException) -> Exception:
    """Ray Train wraps what a worker raised several times over; keep what it says first."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, cause = next(iter(sorted(failures.items())))
        return RuntimeError(f"training worker {rank} failed: {cause}")
    return RuntimeError(str(error))
