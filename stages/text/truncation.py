"""Truncation of a pair to the room of a row (google-research/bert, `truncate_seq_pair`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.text.random import Stream

Int64s = NDArray[np.int64]


def truncated_lengths(a_tokens: Int64s, b_tokens: Int64s, room: int) -> tuple[Int64s, Int64s]:
    """Lengths of A and B after truncation to `room` tokens together.

    The reference takes tokens one by one from A while A is strictly longer, else from B, until
    the pair fits. Where that ends depends on the lengths alone: each side keeps its half (A the
    larger one of an odd room), or what the other side leaves.
    """
    b_half = room // 2
    a_half = room - b_half
    a_kept = np.minimum(a_tokens, np.maximum(a_half, room - b_tokens))
    b_kept = np.minimum(b_tokens, np.maximum(b_half, room - a_tokens))
    return a_kept, b_kept


def truncate_spans(spans: Int64s, kept: Int64s, stream: Stream) -> Int64s:
    """Shorten each [start, end) to `kept` tokens, each removed token from a random side.

    The reference tosses a coin for each removed token; their number from the front is a
    Binomial(removed, 1/2) draw.

    Args:
        spans: [n, 2] token positions.
        kept: [n], at most the spans' lengths.
        stream: where the draws come from.

    Returns:
        [n, 2] token positions.
    """
    removed = spans[:, 1] - spans[:, 0] - kept
    starts = spans[:, 0] + stream.binomial_half(removed)
    return np.stack([starts, starts + kept], axis=1)
