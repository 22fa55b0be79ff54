"""The steps of a run, one after another: what all training runs share, whatever is learned.

What is logged and saved counts finished steps, from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stages.training.budget import Course
from stages.training.device import peak_memory_gb
from stages.training.job import Hooks, Job
from stages.training.meter import Meter
from stages.training.nonfinite import BadSteps
from stages.training.prefetch import prefetched
from stages.training.saving import Saver
from stages.training.start import Start
from stages.training.step import StepLosses, Stepper

# What rank 0 asks of all ranks at a step; the highest wins.
SAVE, STOP, FAIL = 1.0, 2.0, 3.0


@dataclass(frozen=True)
class Look:
    """What was seen of the model at a step, on rows that it does not learn from.

    Attributes:
        values: figures by their whole names.
        score: for the best checkpoint, the lower the better; None gives none.
        save: this step needs a checkpoint; the run ends when it cannot be written.
        enough: the run ends here, and is whole.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    save: bool = False
    enough: bool = False


@dataclass(frozen=True)
class Loop:
    """What a run's steps are made of.

    Attributes:
        job, hooks: of the run.
        device, rank: of this process.
        schedule: last step, and rates.
        stepper, saver, meter, bad: of this process.
        prepare: this rank's part of a step's batch; called in a thread, some steps ahead.
        prefetch: how many.
        position: (epoch, row) where the batch of a step begins.
        look: called after each step with its number, counted from 1, on every rank; None where
            nothing is to be seen.
        described: figures of a step to log, beside those that every run has.
        settled: kept in checkpoints, beside the steps that were lost.
    """

    job: Job
    hooks: Hooks
    device: torch.device
    rank: int
    schedule: Course
    stepper: Stepper
    saver: Saver
    meter: Meter
    bad: BadSteps
    prepare: Callable[[int], Any]
    prefetch: int
    position: Callable[[int], tuple[int, int]]
    look: Callable[[int], Look | None]
    described: Callable[[StepLosses], Mapping[str, float]]
    settled: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Reached:
    """Where the steps ended: `Outcome`."""

    step: int
    stopped: bool
    tokens_seen: int
    figures: Mapping[str, float]


def take_steps(loop: Loop, start: Start, save_first: bool = False) -> Reached:
    """Make the steps from `start` to the schedule's last one, or until a stop.

    Args:
        loop: what they are made of.
        start: where a checkpoint or the beginning left off.
        save_first: write a checkpoint before the first step.

    Raises:
        CheckpointWriteError: checkpoints cannot be written.
        NonFiniteError: a loss or gradient is not finite; no checkpoint holds it.
    """
    hooks, meter, train = loop.hooks, loop.meter, loop.job.train
    tokens_seen = start.tokens_seen
    figures = dict(start.figures)
    finished, stopped = start.step, False

    def save(score: float | None = None) -> None:
        settled = {**loop.settled(), "skipped_steps": loop.bad.skipped}
        position = loop.position(finished)
        loop.saver.save(finished, position, tokens_seen, dict(figures), score, settled)

    def asked() -> float:
        if loop.saver.in_trouble():
            return FAIL
        if hooks.should_stop():
            return STOP
        return SAVE if hooks.should_save() else 0.0

    steps = range(start.step, loop.schedule.steps)
    with loop.saver as saver, prefetched(loop.prepare, steps, loop.prefetch) as batches:
        if save_first:
            save()
        for step in steps:
            meter.waiting()
            batch = next(batches)
            meter.received(batch)

            losses = loop.stepper.gradients_of(step, batch, asked)
            if losses.asked == FAIL:
                saver.fail()
            rate = loop.schedule.rate(step, train)
            if losses.finite:
                loop.stepper.change_weights(rate, losses.grad_norm)
            else:
                loop.bad.met(step, losses, rate)
            meter.stepped()

            tokens_seen += batch.tokens
            finished = step + 1
            stopped = losses.asked == STOP and finished < loop.schedule.steps
            last = stopped or finished == loop.schedule.steps

            if last or finished % train.log_every_steps == 0:
                logged = {
                    "train/loss": losses.loss,
                    **loop.described(losses),
                    "train/learning_rate": rate,
                    "train/grad_norm": losses.grad_norm,
                    "train/tokens_seen": tokens_seen,
                    "train/memory_gb": peak_memory_gb(loop.device),
                    **meter.read(),
                }
                if train.on_nonfinite == "skip":
                    logged["train/skipped_steps"] = loop.bad.skipped
                logged = {name: value for name, value in logged.items() if math.isfinite(value)}
                figures |= logged
                if loop.rank == 0:
                    hooks.log(finished, logged)
            with meter.paused():
                look = loop.look(finished) or Look()
            figures |= look.values
            if look.values and loop.rank == 0:
                hooks.log(finished, look.values)
            due = finished % train.checkpoint_every_steps == 0
            if last or look.save or losses.asked == SAVE or due:
                with meter.paused():
                    save(look.score)
                    if look.save:
                        saver.finish(required=True, goes_on=True)
            if look.enough:
                stopped = False
                break
            if stopped:
                break
        saver.finish(required=stopped)
    return Reached(finished, stopped, tokens_seen, figures)
