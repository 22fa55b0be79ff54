"""Fine-tuning: a pretrained encoder goes on training under the head of a task (Devlin et al. 2018,
section 4). The steps, checkpoints and resuming are those of pretraining."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from model.bert import init_weights
from model.config import BertConfig
from model.task_heads import BertForTask, TaskKind
from model.task_parameters import freeze, layer_groups
from model.task_start import TaskStart, build_task, parameter_shapes
from stages.training import distributed
from stages.training.budget import course
from stages.training.checkpoint import best_checkpoint
from stages.training.device import apply, place, this_machine
from stages.training.flops import peak_flops
from stages.training.job import Hooks, Rounding, TrainConfig, rounding_values
from stages.training.meter import Meter, attention_is_padded
from stages.training.nonfinite import BadSteps
from stages.training.optimisers import scaled_optimiser
from stages.training.randomness import key
from stages.training.saving import Saver
from stages.training.start import Beginning, Start, restore
from stages.training.step import StepLosses, Stepper
from stages.training.steps import Look, Loop, Reached, take_steps
from stages.training.task_examples import TaskExamples
from stages.training.task_outputs import task_outputs
from stages.training.task_packing import TaskObjective, TaskOrder, TaskStepBatch, task_step_batch
from stages.training.tensor_files import read_tensors
from stages.training.weights import set_weights, weights_of

Outputs = NDArray[np.float32]


@dataclass(frozen=True)
class Watched:
    """Rows that the model does not learn from, and what is made of their scores.

    Attributes:
        examples: of the dev set.
        score: figures of `task_outputs`, by name; the same on all ranks for the same scores.
        metric: the figure that decides which weights are kept.
        higher_is_better: of it.
        every_steps: how often; None: after each epoch. After the last step in any case.
        patience: the run ends after so many looks without gain; None: never.
        keep_best: the weights of the best look are the run's, not the last ones.
    """

    examples: TaskExamples
    score: Callable[[Outputs], Mapping[str, float]]
    metric: str
    higher_is_better: bool = True
    every_steps: int | None = None
    patience: int | None = None
    keep_best: bool = True


@dataclass(frozen=True)
class TaskJob:
    """A run of fine-tuning. The same for all ranks.

    Attributes:
        model: the encoder's shape and dropout.
        kind: of the task.
        classes: K; 1 with "sequence" is regression.
        train: the mathematics; `steps` counts all epochs, `global_batch_size` is set.
        rounding: the last bits; `compile` and `sharding` are not looked at.
        seed: of the head's weights, the order and dropout.
        examples: to learn from.
        watched: the dev set, or None.
        filesystem: where `init_from` lies.
        init_from: weights under the names of `BertForTask`: all of the encoder, and what there is
            of the head; what is not there is drawn.
        layer_decay: each layer learns so many times as fast as the one above it.
        freeze_embeddings, freeze_layers, freeze_encoder: what does not learn, as
            `model.task_parameters.freeze`.
        head_dropout: None: the encoder's.
        checkpoint_filesystem, checkpoint_folder, fingerprint, attempt, vocabulary_digest, config,
            device, local_rank, prefetch_batches, nonfinite_folder, group: as of `TrainJob`.
    """

    model: BertConfig
    kind: TaskKind
    classes: int
    train: TrainConfig
    rounding: Rounding
    seed: int
    examples: TaskExamples
    watched: Watched | None
    filesystem: FileSystem
    init_from: str
    checkpoint_filesystem: FileSystem
    checkpoint_folder: str
    fingerprint: str
    attempt: str
    layer_decay: float = 1.0
    freeze_embeddings: bool = False
    freeze_layers: int = 0
    freeze_encoder: bool = False
    head_dropout: float | None = None
    vocabulary_digest: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    local_rank: int = 0
    prefetch_batches: int = 4
    nonfinite_folder: str | None = None
    group: str = "finetune"

    def described(self) -> dict[str, Any]:
        """The configuration that the result depends on, nested, as JSON values."""
        return {
            **self.config,
            "model": dataclasses.asdict(self.model),
            "train": self.train.mathematics(),
            "kind": self.kind,
            "classes": self.classes,
            "seed": self.seed,
            "layer_decay": self.layer_decay,
            "freeze": [self.freeze_embeddings, self.freeze_layers, self.freeze_encoder],
            "head_dropout": self.head_dropout,
        }


@dataclass(frozen=True)
class TaskOutcome:
    """How a run ended.

    Attributes:
        stopped: it was asked to stop before its last step; its checkpoint is written.
        step: finished optimiser steps.
        resumed_from: step of the checkpoint it began with; 0 for none.
        tokens_seen: real tokens of all steps, those before resuming included.
        figures: as logged last.
        model: on rank 0 with the weights that were kept, on the run's device; elsewhere with the
            last ones.
        kept_step: the step that these weights are of.
        ended_early: patience ran out.
    """

    stopped: bool
    step: int
    resumed_from: int
    tokens_seen: int
    figures: Mapping[str, float]
    model: BertForTask
    kept_step: int
    ended_early: bool


def finetune(job: TaskJob, hooks: Hooks) -> TaskOutcome:
    """Train until the last step or until patience runs out, from the newest whole checkpoint where
    there is one.

    Runs on each rank of the default process group, or alone when there is none.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to another configuration.
        CheckpointWriteError: checkpoints cannot be written.
        NonFiniteError: a loss or gradient is not finite; no checkpoint holds it.
        ValueError: a device that is not there, weights that do not fit, no steps.
    """
    train, rank, world_size = job.train, distributed.rank(), distributed.world_size()
    notice = hooks.notice if rank == 0 else _nobody
    if train.steps is None or train.global_batch_size is None:
        raise ValueError("fine-tuning needs train.steps and train.global_batch_size")
    if job.rounding.threads is not None:
        torch.set_num_threads(job.rounding.threads)
    placement = place(job.device, train.precision, this_machine(), job.local_rank)
    device = apply(placement)
    for text in placement.notices:
        notice(text)

    model = BertForTask(
        job.model,
        job.kind,
        job.classes,
        job.head_dropout,
        job.rounding.attention,
        job.rounding.gradient_checkpointing,
    )
    model.train().to(device)
    optimiser = task_optimiser(model, job, placement.fused_optimiser)
    rounding = rounding_values(job.rounding, train.precision, device.type, world_size)
    start = restore(job, hooks, model, optimiser, rounding, lambda: beginning(job), dict)
    order = TaskOrder(len(job.examples), train.global_batch_size, job.seed)
    schedule = course(train, train.steps)
    if rank == 0:
        hooks.planned(schedule.steps, start.step)

    def prepare(step: int) -> TaskStepBatch:
        batch = job.examples.take(order_of_thread.rows(step))
        part = task_step_batch(batch, rank, world_size, job.rounding.micro_batch_tokens)
        return part.pinned() if placement.pinned_copies else part

    # Batches are made in another thread, and an order remembers its epoch.
    order_of_thread = TaskOrder(len(job.examples), train.global_batch_size, job.seed)
    stepper = Stepper(job, model, optimiser, TaskObjective(job.kind, job.classes), device, rank)
    watch = _Watch(job, model, start, order.steps_per_epoch, schedule.steps)
    peak = peak_flops(placement.name, train.precision)
    loop = Loop(
        job=job,
        hooks=hooks,
        device=device,
        rank=rank,
        schedule=schedule,
        stepper=stepper,
        saver=Saver(job, hooks, model, optimiser, rounding),
        meter=Meter(
            job.model,
            None if peak is None else world_size * peak,
            attention_is_padded(job.rounding, train.precision, job.model, device),
        ),
        bad=BadSteps(
            job,
            TaskObjective.losses,
            lambda step: job.examples.take(order.rows(step)).table(),
            rank,
            start.settled.get("skipped_steps", 0),
            notice,
        ),
        prepare=prepare,
        prefetch=job.prefetch_batches,
        position=order.position,
        look=watch.look,
        described=_nothing_more,
        settled=watch.settled,
    )
    if watch.patience_is_out():
        reached = Reached(start.step, False, start.tokens_seen, start.figures)
    else:
        reached = take_steps(loop, start)
    kept = reached.step
    if rank == 0 and not reached.stopped and job.watched is not None and job.watched.keep_best:
        best = best_checkpoint(job.checkpoint_filesystem, job.checkpoint_folder)
        if best is not None:
            set_weights(model, best.weights, f"the checkpoint of step {best.state.step}")
            kept = best.state.step
    return TaskOutcome(
        reached.stopped,
        reached.step,
        start.step,
        reached.tokens_seen,
        reached.figures,
        model,
        kept,
        reached.step < schedule.steps and not reached.stopped,
    )


def task_optimiser(model: BertForTask, job: TaskJob, fused: bool) -> torch.optim.Optimizer:
    """Freeze what is not to learn, and make the optimiser of the rest."""
    freeze(
        model,
        embeddings=job.freeze_embeddings,
        first_layers=job.freeze_layers,
        encoder=job.freeze_encoder,
    )
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = layer_groups(parameters, job.model.num_layers, job.layer_decay)
    if job.layer_decay == 1.0:
        # One group, so that torch passes over all parameters at once.
        scaled = [(1.0, list(parameters.values()))]
    else:
        scaled = [(group.scale, [parameters[name] for name in group.names]) for group in groups]
    return scaled_optimiser(scaled, job.train, fused)


def beginning(job: TaskJob) -> Beginning:
    """The weights of a run's first step: those of `init_from`, and a head drawn from the seed.

    The same for a seed whatever the device, and the same classifier with and without a pooler.
    """
    given = read_tensors(job.filesystem, job.init_from)
    drawn = tuple(
        name for name in parameter_shapes(job.model, job.kind, job.classes) if name not in given
    )
    generator = torch.Generator().manual_seed(key(job.seed, "weights") & (2**63 - 1))
    start = TaskStart(given, job.model, drawn, ())
    model = build_task(start, job.kind, job.classes, generator, job.head_dropout)
    return Beginning(job.init_from, weights_of(model))


def drawn_encoder(config: BertConfig, kind: TaskKind, seed: int) -> TaskStart:
    """An encoder that was never trained, as a task's beginning: what pretraining is held against.

    Args:
        config: the shape.
        kind: of the task.
        seed: of the encoder's weights.
    """
    model = BertForTask(config, kind)
    init_weights(model, torch.Generator().manual_seed(key(seed, "weights") & (2**63 - 1)))
    weights = {n: w for n, w in weights_of(model).items() if n.startswith("bert.")}
    drawn = tuple(n for n, _ in model.named_parameters() if n not in weights)
    return TaskStart(weights, config, drawn, ())


class _Watch:
    """Looks at the dev set, and at how long it did not get better."""

    def __init__(
        self, job: TaskJob, model: BertForTask, start: Start, epoch: int, steps: int
    ) -> None:
        self._job, self._model, self._watched = job, model, job.watched
        self._every = epoch
        if job.watched is not None and job.watched.every_steps is not None:
            self._every = job.watched.every_steps
        self._steps = steps
        self._best: float | None = start.settled.get("best")
        self._without_gain: int = start.settled.get("without_gain", 0)

    def settled(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self._best, "without_gain": self._without_gain}

    def patience_is_out(self) -> bool:
        patience = None if self._watched is None else self._watched.patience
        return patience is not None and self._without_gain >= patience

    def look(self, step: int) -> Look | None:
        watched = self._watched
        if watched is None or (step % self._every and step != self._steps):
            return None
        outputs = task_outputs(
            self._model,
            watched.examples,
            self._job.rounding.micro_batch_tokens,
            self._job.train.precision,
        )
        values = dict(watched.score(outputs))
        value = values.get(watched.metric, math.nan)
        cost = -value if watched.higher_is_better else value
        gained = math.isfinite(cost) and (self._best is None or cost < self._best)
        if gained:
            self._best, self._without_gain = cost, 0
        else:
            self._without_gain += 1
        named = {f"dev/{name}": figure for name, figure in values.items()}
        return Look(
            named,
            # A look that is only as good has none: whether it was saved must not decide.
            cost if gained else None,
            save=gained and watched.keep_best,
            enough=self.patience_is_out(),
        )


def _nothing_more(losses: StepLosses) -> dict[str, float]:
    return {}


def _nobody(text: str) -> None:
    """Notices are for rank 0."""
