"""Counts of words, added up: exactly, or of the most frequent words in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64Array = npt.NDArray[np.int64]
Counted = tuple[pa.StringArray, Int64Array]
"""Words and how often each occurs."""

_LARGEST_TOTAL = 9.2e18  # below 2^63, so that adding up in float64 is good enough to refuse


def merge_counts(parts: Sequence[Counted]) -> Counted:
    """Add up counts of words; the result depends on neither the order nor the number of parts.

    Args:
        parts: (words, int64 counts) of each part; words need not be sorted or distinct.

    Returns:
        The distinct words, sorted by code points, and their int64 counts.

    Raises:
        OverflowError: all counts together come near 2^63.
    """
    return sum_by_name(parts, pa.string())


def add_up(parts: Iterable[Counted], limit: int, most_rows: int) -> tuple[Counted, int]:
    """Add up the counts of many parts, and hold no more than `limit` + `most_rows` words at a time.

    Exact up to `limit` distinct words. Of more, the rarest are forgotten on the way, so that a word
    that is kept may lack what it was seen while it was rare.

    Args:
        parts: in an order that depends on nothing but the input: what is forgotten follows from it.
        limit: distinct words that are remembered from one addition to the next.
        most_rows: words read before they are added up (a part is never cut).

    Returns:
        The distinct words, sorted by code points, with their counts; and the occurrences of all
        words, forgotten ones too.
    """
    held: list[Counted] = []
    mass = rows = 0
    for words, counts in parts:
        held.append((words, counts))
        mass += int(counts.sum())
        rows += len(words)
        if rows > most_rows:
            held = [merge_most_frequent(held, limit)]
            rows = 0
    return merge_counts(held), mass


def merge_most_frequent(parts: Sequence[Counted], limit: int) -> Counted:
    """Add up counts, and keep at most `limit` words, those that occur most often.

    For adding up on the way, in bounded memory: words come in no order that means anything, and of
    words with one count either all are kept or none, unless that would lose half of `limit`.
    """
    words, counts = sum_by_name(parts, pa.string(), in_order=False)
    if len(words) <= limit:
        return words, counts
    kept = counts > np.partition(counts, -limit - 1)[-limit - 1]
    if kept.sum() < limit // 2:
        order = pc.sort_indices(words).to_numpy()
        return most_frequent(words.take(pa.array(order)), counts[order], limit)
    return words.filter(pa.array(kept)), counts[kept]


def most_frequent(words: pa.StringArray, counts: Int64Array, limit: int) -> Counted:
    """At most `limit` words, those that occur most often, in their order.

    Args:
        words: distinct, sorted; of equal counts the first ones are kept.
        counts: int64 [n].
    """
    if len(words) <= limit:
        return words, counts
    kept = np.sort(np.argsort(-counts, kind="stable")[:limit])
    return words.take(pa.array(kept)), counts[kept]


def sum_by_name(
    parts: Sequence[tuple[pa.Array, Int64Array]], kind: pa.DataType, in_order: bool = True
) -> tuple[pa.Array, Int64Array]:
    """Sum counts by name; names sorted by their bytes when they are to be `in_order`."""
    if sum(float(counts.sum(dtype=np.float64)) for _, counts in parts) > _LARGEST_TOTAL:
        raise OverflowError(f"the counts together pass {_LARGEST_TOTAL:g}, what 64 bits hold")
    names = pa.chunked_array([part for part, _ in parts], kind)
    counts = pa.chunked_array([pa.array(counts, pa.int64()) for _, counts in parts], pa.int64())
    table = pa.table({"name": names, "count": counts})
    summed = table.group_by("name", use_threads=False).aggregate([("count", "sum")])
    if in_order:
        summed = summed.sort_by("name")
    return (
        summed["name"].combine_chunks(),
        summed["count_sum"].combine_chunks().to_numpy().astype(np.int64),
    )
