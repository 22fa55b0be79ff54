"""Turns hours into steps: steps that change nothing are made and timed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from stages.training.packing import StepBatch
from stages.training.prefetch import prefetched
from stages.training.step import Stepper

UNMEASURED_STEPS = 5
"""In which memory is claimed, and kernels are chosen and compiled."""
MEASURED_STEPS = 20
"""The fewest."""
MEASURED_SHARE, MEASURED_SECONDS = 0.01, 60.0
"""Measured for this share of the budget, so long at most: clocks are high in the first seconds."""


@dataclass(frozen=True)
class Pace:
    """What a rehearsal measured, in seconds.

    Attributes:
        step: a step, with data, the sum over all ranks and the optimiser.
        evaluation: the held-out figures; 0 without them.
        spent: the rehearsal as a whole.
    """

    step: float
    evaluation: float
    spent: float


def rehearse(
    stepper: Stepper,
    prepare: Callable[[int], StepBatch],
    prefetch: int,
    evaluate: Callable[[], object] | None,
    seconds: float,
    agreed: Callable[[int], int],
) -> Pace:
    """Make the first steps at a learning rate of zero, then take back the moments.

    Weights, moments and order of the data are afterwards as before, so that a run of so many
    steps, however they were settled, comes to the same model.

    Args:
        stepper: of this rank, before its first step.
        prepare: a step's batch.
        prefetch: batches made ahead.
        evaluate: makes the held-out figures, or None.
        seconds: the budget.
        agreed: gives all ranks the number of rank 0.
    """
    began = perf_counter()
    moments = stepper.moments()

    def take(batches: Iterator[StepBatch], steps: range) -> float:
        for step in steps:
            losses = stepper.gradients_of(step, next(batches), _nothing)
            # Zero times infinity is no zero; the run itself will meet the same gradient.
            if losses.finite:
                stepper.change_weights(0.0, losses.grad_norm)
        return perf_counter()

    first, last = UNMEASURED_STEPS, UNMEASURED_STEPS + MEASURED_STEPS
    with prefetched(prepare, range(sys.maxsize), prefetch) as batches:
        warm = take(batches, range(first))
        stepped = take(batches, range(first, last))
        more = agreed(_more_steps((stepped - warm) / MEASURED_STEPS, seconds))
        if more:
            stepped = take(batches, range(last, last + more))
    stepper.set_moments(moments)
    if evaluate is not None:
        evaluate()
    ended = perf_counter()
    return Pace((stepped - warm) / (MEASURED_STEPS + more), ended - stepped, ended - began)


def _more_steps(step: float, seconds: float) -> int:
    """Steps to measure beyond the fewest, where one takes `step` seconds."""
    wanted = min(MEASURED_SHARE * seconds, MEASURED_SECONDS) / step
    return max(0, math.ceil(wanted) - MEASURED_STEPS)


def steps_of_hours(hours: float, pace: Pace, evaluate_every_steps: int) -> int:
    """Steps that fit in what the rehearsal left of `hours`, at least one.

    Checkpoints and the start of the processes are not counted in.
    """
    left = hours * 3600.0 - pace.spent
    return max(1, math.floor(left / (pace.step + pace.evaluation / evaluate_every_steps)))


def hours_in_words(hours: float, pace: Pace, steps: int) -> str:
    """What was settled, in one line."""
    held_out = f", held-out figures {pace.evaluation:.3g} s" if pace.evaluation else ""
    return (
        f"train.hours={hours:g}: a step takes {pace.step:.3g} s here{held_out}, so this run makes "
        f"{steps:,} steps, and its schedule is fitted to them. Resuming keeps this number; "
        f"train.steps={steps} train.hours=null gives the same model on any machine"
    )


def _nothing() -> float:
    return 0.0
