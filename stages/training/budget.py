"""From what a run may spend to numbers of steps and examples."""

from __future__ import annotations

from dataclasses import dataclass

from stages.training.job import TrainConfig
from stages.training.schedules import learning_rate


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

    def rate(self, step: int, train: TrainConfig) -> float:
        """The learning rate of a step, counted from 0."""
        return learning_rate(
            step,
            self.steps,
            self.warmup_steps,
            train.learning_rate,
            train.schedule,
            self.decay_steps,
        )


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


def tokens_in_words(train: TrainConfig, examples: int, steps: int, mean_row_tokens: float) -> str:
    """What was settled from numbers of tokens, in one line."""
    said = []
    if train.global_batch_tokens is not None:
        said.append(f"train.global_batch_tokens={train.global_batch_tokens}: {examples:,} examples")
    if train.tokens is not None:
        said.append(f"train.tokens={train.tokens}: {steps:,} steps of {examples:,} examples")
    return f"{'; '.join(said)}, as a training row has {mean_row_tokens:.1f} tokens in the mean"
