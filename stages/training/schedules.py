"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math


def learning_rate(
    step: int,
    steps: int,
    warmup_steps: int,
    peak: float,
    schedule: str,
    decay_steps: int = 0,
) -> float:
    """The learning rate of one optimiser step.

    Rises linearly from peak / warmup_steps at step 0 to `peak`, then falls to zero, which it would
    reach at step `steps`: no step is made with a rate of zero. BERT (Devlin et al. 2019, A.2) uses
    linear warm-up over 1 % of the steps and linear decay. Warm-up, stable, decay ("wsd", Hu et al.
    2024) keeps the peak until the last `decay_steps` and falls linearly over these, so that runs of
    several lengths share their first part.

    Args:
        step: 0..steps - 1.
        steps: optimiser steps of the run.
        warmup_steps: steps of warm-up; 0 for none.
        peak: the highest rate.
        schedule: "linear", "cosine", "constant" or "wsd" after warm-up.
        decay_steps: of "wsd"; those that warm-up leaves at most.

    Raises:
        ValueError: no such schedule.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "wsd":
        left, decay_steps = steps - step, min(decay_steps, steps - warmup_steps)
        return peak * min(1.0, left / decay_steps) if decay_steps else peak
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    if schedule == "linear":
        return peak * (1.0 - done)
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * done))
    if schedule == "constant":
        return peak
    raise ValueError(f"unknown schedule {schedule!r}: linear, cosine, constant or wsd")
