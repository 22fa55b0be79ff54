"""The order of training rows, written down as it is described: slow, and without seeking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import count, islice

from stages.training.randomness import permutation


def plain_epoch(sizes: Sequence[int], seed: int, epoch: int) -> Iterator[tuple[int, int]]:
    """(row group, row in it) of every row of an epoch, in order."""
    for group in permutation(len(sizes), seed, "row groups", epoch).tolist():
        for row in permutation(sizes[group], seed, "rows", epoch, group).tolist():
            yield group, row


def plain_stream(copies: Sequence[Sequence[int]], seed: int) -> Iterator[tuple[int, int, int, int]]:
    """(epoch, copy, row group, row in it) without an end; `copies`: sizes of row groups of each."""
    for epoch in count():
        copy = epoch % len(copies)
        for group, row in plain_epoch(copies[copy], seed, epoch):
            yield epoch, copy, group, row


def plain_mix(weights: Sequence[int], rows: int) -> list[int]:
    """The stream that each of the first rows of a mix comes from."""
    times = [
        (Fraction(2 * row + 1, 2 * weight), stream)
        for stream, weight in enumerate(weights)
        for row in range(rows)
    ]
    return [stream for _, stream in islice(sorted(times), rows)]
