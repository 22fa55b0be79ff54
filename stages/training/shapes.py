"""One shape for all micro-batches, for `torch.compile`."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FixedShape:
    """The one shape that all micro-batches are filled up to, so that one compiled graph serves all.

    Attributes:
        budget: tokens of real examples at most.
        tokens: T; more than `budget` by at least `examples`, so that there is always a token for
            each example that fills up.
        examples: B.
        longest: tokens of the longest example possible.
    """

    budget: int
    tokens: int
    examples: int
    longest: int


def fixed_shape(budget: int, longest: int, mean_length: float) -> FixedShape:
    """A shape for examples of about `mean_length` tokens, with an eighth more room for them.

    Args:
        budget: token budget of a micro-batch; raised to `longest` where it is lower.
        longest: tokens of the longest example possible.
        mean_length: of examples. A wrong one costs time alone: micro-batches are cut earlier, or
            padded attention has more rows than it needs.
    """
    budget = max(budget, longest)
    examples = math.ceil(1.125 * budget / mean_length) + 1
    while True:
        tokens = _round_up(budget + examples, 64)
        # One short example must leave enough others to hold all the other tokens.
        least = 1 + math.ceil((tokens - 1) / longest)
        if examples >= least:
            return FixedShape(budget, tokens, examples, longest)
        examples = least


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
