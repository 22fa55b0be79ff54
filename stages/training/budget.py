"""From what a run may spend to numbers of steps and examples, each settled once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from stages.training.job import TrainConfig

UNMEASURED_STEPS = 5
"""Of a rehearsal: memory is claimed, kernels are chosen and compiled."""
MEASURED_STEPS = 20


@dataclass(frozen=True)
class Course:
    """The shape of a run's schedule.

    Attributes:
        steps: optimiser steps.
        warmup_steps: the first ones.
        decay_steps: the last ones, of the schedule "wsd".
    """

    steps: int
    warmup_steps: int
    decay_steps: int


def course(train: TrainConfig, steps: int) -> Course:
    """The schedule of `train`, fitted to so many steps."""
    return Course(steps, round(train.warmup_share * steps), round(train.decay_share * steps))


def batch_size(train: TrainConfig, mean_row_tokens: float | None) -> int:
    """Examples of a global batch.

    Args:
        train: with one of `global_batch_size` and `global_batch_tokens`.
        mean_row_tokens: mean tokens of a training row.

    Raises:
        ValueError: none or both are set, or the mean is missing.
    """
    if (train.global_batch_size is None) == (train.global_batch_tokens is None):
        raise ValueError(
            "set one of train.global_batch_size and train.global_batch_tokens, and leave the "
            "other null"
        )
    if train.global_batch_size is not None:
        return train.global_batch_size
    assert train.global_batch_tokens is not None
    return max(1, round(train.global_batch_tokens / _known(mean_row_tokens)))


def planned_steps(train: TrainConfig, examples: int, mean_row_tokens: float | None) -> int | None:
    """Optimiser steps, as far as they follow from the configuration and the data.

    Args:
        train: with one of `steps`, `tokens` and `hours`.
        examples: of a global batch.
        mean_row_tokens: mean tokens of a training row.

    Returns:
        Steps; None for `hours`, which need a rehearsal.

    Raises:
        ValueError: none or several budgets are set, or the mean is missing.
    """
    if sum(budget is not None for budget in (train.steps, train.tokens, train.hours)) != 1:
        raise ValueError("set one of train.steps, train.tokens and train.hours, the others null")
    if train.tokens is not None:
        return max(1, round(train.tokens / (examples * _known(mean_row_tokens))))
    return train.steps


def _known(mean_row_tokens: float | None) -> float:
    if mean_row_tokens is None:
        raise ValueError("a budget in tokens needs the mean length of the training rows")
    return mean_row_tokens


@dataclass(frozen=True)
class Pace:
    """What a rehearsal measured.

    Attributes:
        step_seconds: of a step, data, gradients of all ranks and optimiser included.
        evaluation_seconds: of the held-out figures; 0 without them.
        spent_seconds: of the rehearsal as a whole.
    """

    step_seconds: float
    evaluation_seconds: float
    spent_seconds: float


def rehearse(
    take_step: Callable[[int], object],
    evaluate: Callable[[], object] | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Pace:
    """Measure a machine by steps that change nothing: `UNMEASURED_STEPS`, then `MEASURED_STEPS`.

    Args:
        take_step: makes step 0, 1... and waits for it.
        evaluate: makes the held-out figures, or None.
        clock: seconds.
    """
    began = clock()
    for step in range(UNMEASURED_STEPS):
        take_step(step)
    warm = clock()
    for step in range(UNMEASURED_STEPS, UNMEASURED_STEPS + MEASURED_STEPS):
        take_step(step)
    stepped = clock()
    if evaluate is not None:
        evaluate()
    ended = clock()
    return Pace((stepped - warm) / MEASURED_STEPS, ended - stepped, ended - began)


def steps_of_hours(hours: float, pace: Pace, evaluate_every_steps: int) -> int:
    """Steps that fit in what the rehearsal left of `hours`, at least one.

    Checkpoints and the start of the processes are not counted in.
    """
    left = hours * 3600.0 - pace.spent_seconds
    a_step = pace.step_seconds + pace.evaluation_seconds / evaluate_every_steps
    return max(1, math.floor(left / a_step))


def hours_in_words(hours: float, pace: Pace, steps: int) -> str:
    """What was decided, in one line."""
    evaluation = (
        f" and {pace.evaluation_seconds:.3g} s for held-out figures"
        if pace.evaluation_seconds
        else ""
    )
    return (
        f"train.hours={hours:g}: {MEASURED_STEPS} rehearsed steps took {pace.step_seconds:.3g} s "
        f"each{evaluation}, so this run makes {steps:,} steps, to which its schedule is fitted; "
        f"resuming keeps them, and train.steps={steps} train.hours=null repeats it anywhere"
    )
