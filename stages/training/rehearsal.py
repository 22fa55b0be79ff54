"""Turns hours into steps: steps that change nothing are made and timed."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from stages.training.packing import StepBatch
from stages.training.prefetch import prefetched
from stages.training.step import Stepper

UNMEASURED_STEPS = 5
"""In which memory is claimed, and kernels are chosen and compiled."""
MEASURED_STEPS = 20
"""The fewest, where they fit into `longest`."""
MEASURED_SHARE, MEASURED_SECONDS = 0.01, 60.0
"""Measured for this share of the budget, so long at most: clocks are high in the first seconds."""
LONGEST_SHARE, LONGEST_SECONDS = 0.02, 120.0
"""The rehearsal ends after the larger of the two, with two steps at least."""

GO_ON, ENOUGH, STOP = 0.0, 1.0, 2.0
"""What rank 0 asks of all ranks at a step."""


class BudgetError(ValueError):
    """The hours hold not even one step."""


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


@dataclass
class Timing:
    """When a rehearsal has measured enough; times in seconds since it began.

    Args:
        budget: of the run, in seconds.

    Attributes:
        warm: when the steps to be measured began; None before.
        made: steps measured.
        ended: when the last of them ended.
    """

    budget: float
    warm: float | None = None
    made: int = 0
    ended: float = 0.0
    _steps: int = field(default=0, repr=False)

    def is_last(self, now: float) -> bool:
        """Whether the step that `now` is about to end is the last to be made."""
        if self.warm is None:
            return False
        made = self.made + 1
        if now >= self._longest():
            return True
        wanted = min(MEASURED_SHARE * self.budget, MEASURED_SECONDS)
        return made >= MEASURED_STEPS and now - self.warm >= wanted

    def stepped(self, now: float) -> None:
        """A step has ended."""
        self._steps += 1
        if self.warm is not None:
            self.made, self.ended = self.made + 1, now
        elif self._steps == UNMEASURED_STEPS or now >= self._longest() / 2:
            self.warm = now

    def _longest(self) -> float:
        return max(LONGEST_SHARE * self.budget, LONGEST_SECONDS)

    @property
    def step(self) -> float:
        """Seconds a measured step; infinite on a rank that measured none."""
        return (self.ended - (self.warm or 0.0)) / self.made if self.made else math.inf


def rehearse(
    stepper: Stepper,
    prepare: Callable[[int], StepBatch],
    prefetch: int,
    evaluate: Callable[[], object] | None,
    seconds: float,
    should_stop: Callable[[], bool],
) -> Pace | None:
    """Make the first steps at a learning rate of zero, then take back the moments.

    Weights, moments and order of the data are afterwards as before, so that a run of so many
    steps, however they were settled, comes to the same model. Rank 0 decides when it has seen
    enough; what the other ranks measured is theirs.

    Args:
        stepper: of this rank, before its first step.
        prepare: a step's batch.
        prefetch: batches made ahead.
        evaluate: makes the held-out figures, or None.
        seconds: the budget.
        should_stop: asked on rank 0, each step.

    Returns:
        The pace; None when it was asked to stop.
    """
    began = perf_counter()
    moments = stepper.moments()
    timing = Timing(seconds)

    def asked() -> float:
        if should_stop():
            return STOP
        return ENOUGH if timing.is_last(perf_counter() - began) else GO_ON

    said = GO_ON
    with prefetched(prepare, range(sys.maxsize), prefetch) as batches:
        for step in itertools.count():
            losses = stepper.gradients_of(step, next(batches), asked)
            # Zero times infinity is no zero; the run itself will meet the same gradient.
            if losses.finite:
                stepper.change_weights(0.0, losses.grad_norm)
            timing.stepped(perf_counter() - began)
            said = losses.asked
            if said != GO_ON:
                break
    stepper.set_moments(moments)
    if said == STOP:
        return None
    stepped = perf_counter()
    if evaluate is not None:
        evaluate()
    ended = perf_counter()
    return Pace(timing.step, ended - stepped, ended - began)


def steps_of_hours(hours: float, pace: Pace, evaluate_every_steps: int) -> int:
    """Steps that fit in what the rehearsal left of `hours`; 0 when none does.

    Held-out figures are made every `evaluate_every_steps` steps and after the last one.
    Checkpoints and the start of the processes are not counted in.
    """
    left = hours * 3600.0 - pace.spent - pace.evaluation
    return max(0, math.floor(left / (pace.step + pace.evaluation / evaluate_every_steps)))


def hours_in_words(hours: float, pace: Pace, steps: int) -> str:
    """What was settled, in one line."""
    held_out = f", held-out figures {pace.evaluation:.3g} s" if pace.evaluation else ""
    return (
        f"train.hours={hours:g}: a step takes {pace.step:.3g} s here{held_out}, so this run makes "
        f"{steps:,} steps, and its schedule is fitted to them. Resuming keeps this number; "
        f"train.steps={steps} train.hours=null gives the same model on any machine"
    )


def too_short(hours: float, pace: Pace) -> BudgetError:
    """What to do when no step fits."""
    return BudgetError(
        f"train.hours={hours:g} is used up by measuring how long a step takes (a step takes "
        f"{pace.step:.3g} s here). Raise train.hours, lower train.global_batch_size, or set "
        "train.steps"
    )
