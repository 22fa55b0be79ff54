"""Stage pretrain: Ray Train around `stages.training`.

The loop, its data order and its checkpoints know nothing of Ray; this module starts the workers,
hands each the same job, and carries figures back to the driver. Checkpoints lie in the node's work
folder, named by the fingerprint and the generation, so that a changed config never finds them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model.config import BertConfig
from pipeline.channel import Channel, Sender
from pipeline.digest import tensors_digest
from pipeline.stage import Context, Interrupted, Result, StageError, Table
from pipeline.store import Artifact, ArtifactWriter
from stages.config import ModelConfig, RoundingConfig
from stages.mix import open_mix
from stages.nodes import nodes_room, say_if_busy, share_per_worker, watch_room
from stages.tables import PAIR_NAMES, shard_files
from stages.training_rows import (
    check_rows,
    drawn_masks,
    indexed_copies,
    row_count,
    training_rows,
)
from stages.vocabulary_files import DIGEST_KEY, load_tokenizer

WEIGHTS = "weights.safetensors"
MODEL = "model.json"
MAX_FAILURES = 3
CURVE_ROWS = 2000
"""Held-out rows of the figures during training; `evaluate` takes all."""


def run(context: Context) -> Result:
    """Train on Ray Train, from the newest checkpoint where an earlier attempt left one."""
    finished = context.output.finished()
    if set(finished) < {WEIGHTS, MODEL}:
        _check_mix(context)
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
    "resumed_from": ("resumed from step", "{:,}"),
    "train/loss": ("loss of the last steps", "{:.3f} nats"),
    "train/mlm_loss": ("... of masked tokens", "{:.3f} nats"),
    "train/nsp_loss": ("... of the next sentence", "{:.3f} nats"),
    "train/sentence_order_loss": ("... of the sentence order", "{:.3f} nats"),
    "validation/mlm_loss": ("held-out loss of masked tokens", "{:.3f} nats"),
    "validation/nsp_loss": ("held-out loss of the next sentence", "{:.3f} nats"),
    "validation/sentence_order_loss": ("held-out loss of the sentence order", "{:.3f} nats"),
    "train/tokens_per_second": ("speed at the end", "{:,.0f} tokens/s"),
}


def _report_table(figures: Mapping[str, Any]) -> Table:
    known = [(words, form, figures[n]) for n, (words, form) in REPORTED.items() if n in figures]
    rows = [[words, form.format(value)] for words, form, value in known]
    return Table("Training (the curves are in MLflow)", ["what", "value"], rows)


def _check_mix(context: Context) -> None:
    paths = context.node.settings.get("mix", ())
    if not paths:
        return
    digest = _vocabulary_digest(context.inputs["vocab"])
    objective = context.node.config["objective"]
    for mixed in open_mix(paths, context.raw):
        check_rows(mixed, digest, objective["pair"] if objective["nsp"] else None)


def _train(context: Context) -> None:
    cluster = context.node.settings["cluster"]
    workers = cluster["train_workers"]
    use_gpu = cluster["device"] != "cpu" and context.granted.gpus >= workers
    if cluster["device"] == "cuda" and not use_gpu:
        raise StageError(
            f"cluster.device=cuda: {workers} workers need as many GPUs, this run may use "
            f"{context.granted.gpus:g}. Lower cluster.train_workers or set cluster.device=cpu"
        )
    elif cluster["device"] == "auto" and context.granted.gpus and not use_gpu:
        context.progress.note(
            f"{workers} workers and {context.granted.gpus:g} GPUs: training on CPUs. Lower "
            "cluster.train_workers to train on GPUs"
        )
    for round_ in range(MAX_FAILURES + 1):
        if not _fit(context, workers, use_gpu, round_):
            return
        # The workers were told to stop, or lost the way to the driver with a node: a checkpoint
        # is written in both cases.
        if context.stop.is_set():
            break
        context.progress.note("a node was lost; goes on from the checkpoint")
    raise Interrupted("training was asked to stop; its checkpoint is written")


def _fit(context: Context, workers: int, use_gpu: bool, round_: int) -> bool:
    """Train until the end or a stop; returns whether it was stopped."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    cpus = context.node.settings["cluster"]["cpus_per_worker"] or share_per_worker(
        workers, context.granted.cpus, nodes_room(), gpus=float(use_gpu)
    )
    say_if_busy(context, workers * cpus)
    resources = {"CPU": cpus} | ({"GPU": 1.0} if use_gpu else {})
    plan = _plan(context, threads=max(1, math.floor(cpus)), use_gpu=use_gpu)
    with Channel(context.metrics, context.progress, context.stop) as channel:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"plan": plan, "sender": channel.sender},
            scaling_config=ScalingConfig(
                num_workers=workers, use_gpu=use_gpu, resources_per_worker=resources
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
            with watch_room(context, workers, cpus, float(use_gpu)):
                result = trainer.fit()
        except Exception as error:
            context.stop.check()
            raise _readable(error) from error
    if result.return_value is not None and "failed" in result.return_value:
        raise StageError(result.return_value["failed"])
    return result.return_value is None or bool(result.return_value.get("stopped"))


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a worker needs; pickled to each."""

    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: Artifact
    mixed: tuple[Artifact, ...]
    heldout: Artifact
    vocab: Artifact
    before: Artifact | None
    output: ArtifactWriter
    fingerprint: str
    attempt: str
    threads: int
    use_gpu: bool


def _plan(context: Context, threads: int, use_gpu: bool) -> Plan:
    return Plan(
        config=dict(context.node.config),
        settings=dict(context.node.settings),
        rows=training_rows(context.inputs),
        mixed=tuple(open_mix(context.node.settings.get("mix", ()), context.raw)),
        heldout=context.inputs["heldout"],
        vocab=context.inputs["vocab"],
        before=context.inputs.get("before"),
        output=context.output,
        fingerprint=context.fingerprint,
        attempt=context.attempt,
        threads=threads,
        use_gpu=use_gpu,
    )


def model_config(plan: Plan, vocab: Sequence[str]) -> BertConfig:
    """The model's shape from the node's config and the vocabulary."""
    shape = ModelConfig.model_validate(plan.config["model"])
    return BertConfig(
        vocab_size=len(vocab),
        pad_token_id=vocab.index("[PAD]"),
        nsp=plan.config["objective"]["nsp"],
        **shape.model_dump(),
    )


def train_worker(config: dict[str, Any]) -> dict[str, Any] | None:
    """What each Ray Train worker runs. Returns rank 0's outcome.

    Errors that a person can act on come back as {"failed": text}; the others raise.
    """
    import ray.train

    from stages.training.checkpoint import CheckpointMismatchError
    from stages.training.loop import NonFiniteError
    from stages.training.row_groups import DataError
    from stages.training.start import RestoreError

    plan: Plan = config["plan"]
    sender: Sender = config["sender"]
    ranks = ray.train.get_context()
    rank = ranks.get_world_rank()
    try:
        outcome = _train_here(plan, sender, rank, ranks.get_local_rank())
    except (NonFiniteError, CheckpointMismatchError, RestoreError, DataError) as error:
        return {"failed": str(error)}
    finally:
        sender.close()
    return outcome if rank == 0 else None


def _train_here(plan: Plan, sender: Sender, rank: int, local_rank: int) -> dict[str, Any]:
    from stages.training.job import Rounding, TrainConfig, TrainJob, Validation
    from stages.training.loader import MixedSource
    from stages.training.loop import pretrain
    from stages.training.row_groups import read_index

    tokenizer = load_tokenizer(plan.vocab)
    digest = _vocabulary_digest(plan.vocab)
    rounding = RoundingConfig.model_validate(plan.settings["rounding"])
    train = TrainConfig(**plan.config["train"], **plan.settings["train"])
    weights = plan.config.get("mix", ())
    heldout = [f"{plan.heldout.data}/{n}" for n in shard_files(plan.heldout, "validation")]
    job = TrainJob(
        model=model_config(plan, tokenizer.vocab),
        train=train,
        rounding=Rounding(
            micro_batch_tokens=rounding.micro_batch_tokens,
            threads=rounding.threads or plan.threads,
            attention=rounding.attention,
            compile=rounding.compile,
        ),
        seed=plan.config["seeds"]["train"] + plan.config["phase"],
        filesystem=plan.rows.fs,
        copies=indexed_copies(plan.rows),
        masks=drawn_masks(plan.config, tokenizer),
        mix=tuple(
            MixedSource(other.fs, indexed_copies(other), weight)
            for other, weight in zip(plan.mixed, weights, strict=True)
        ),
        checkpoint_filesystem=plan.output.fs,
        checkpoint_folder=f"{plan.output.work}/checkpoints",
        fingerprint=plan.fingerprint,
        attempt=plan.attempt,
        vocabulary_digest=digest,
        schema_metadata=((DIGEST_KEY.decode(), digest),),
        config={
            name: plan.config[name]
            for name in ("phase", "objective", "mask", "mix")
            if name in plan.config
        },
        init_from=None if plan.before is None else f"{plan.before.data}/{WEIGHTS}",
        device="cuda" if plan.use_gpu else plan.settings["cluster"]["device"],
        local_rank=local_rank,
        prefetch_batches=plan.settings["speed"]["prefetch_batches"],
        validation=Validation(
            files=read_index(plan.heldout.fs, heldout),
            mask_token_id=tokenizer.vocab.index("[MASK]"),
            max_rows=min(CURVE_ROWS, plan.settings["evaluate"]["max_rows"]),
        ),
        pair_name=PAIR_NAMES[plan.config["objective"]["pair"]],
    )
    hooks = _Hooks(sender, train.steps)
    outcome = pretrain(job, hooks)
    if rank == 0 and not outcome.stopped:
        figures = {
            "steps": outcome.step,
            "tokens_seen": outcome.tokens_seen,
            **{k: v for k, v in outcome.figures.items() if math.isfinite(v)},
            "parameters": sum(p.numel() for p in outcome.model.parameters()),
            "resumed_from": outcome.resumed_from,
        }
        _write(plan.output, outcome.model, job.model, figures)
    return {"stopped": outcome.stopped, "step": outcome.step}


def _vocabulary_digest(vocab: Artifact) -> str:
    from stages.text.tokenizer_files import vocabulary_digest

    return vocabulary_digest(load_tokenizer(vocab))


class _Hooks:
    """Hands a training run's words to the driver."""

    def __init__(self, sender: Sender, steps: int) -> None:
        self._sender = sender
        self._steps = steps
        self._begun = False
        self._last = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._sender.log(values, step)
        if "train/loss" not in values:
            return
        if not self._begun:
            self._sender.start(self._steps, "steps", done=step)
            self._begun = True
            self._last = step
        self._sender.advance(
            step - self._last,
            loss=round(values["train/loss"], 3),
            **{"tokens/s": round(values.get("train/tokens_per_second", 0.0))},
        )
        self._last = step

    def should_stop(self) -> bool:
        return self._sender.should_stop()

    def saved(self, step: int) -> None:
        pass

    def notice(self, text: str) -> None:
        self._sender.note(text)


def _write(output: ArtifactWriter, model: Any, config: BertConfig, figures: dict[str, Any]) -> None:
    from safetensors.torch import save

    from stages.training.weights import weights_of

    weights = {n: t.detach().cpu().contiguous() for n, t in weights_of(model).items()}
    digest = tensors_digest(
        {n: (str(t.dtype), t.shape, np.ascontiguousarray(t.numpy())) for n, t in weights.items()}
    )
    output.write_bytes(MODEL, json.dumps(dataclasses.asdict(config), indent=1).encode())
    data = save(weights, {"format": "pt"})
    output.write_bytes(WEIGHTS, data, digest=digest, rows=len(weights), figures=figures)


def _readable(error: BaseException) -> Exception:
    """Ray Train wraps what a worker raised several times over; keep what it says first."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, cause = next(iter(sorted(failures.items())))
        return RuntimeError(f"training worker {rank} failed: {cause}")
    return RuntimeError(str(error))
