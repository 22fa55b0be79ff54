"""Where the order of all rows is cut into shards of about equal bytes.

The order is looked at window by window (a window is a range of keys), so that planning a large
corpus needs no more memory than planning a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.int64]


class Window(NamedTuple):
    """The distinct keys of a range, rising, and the bytes of each."""

    keys: Keys
    sizes: Sizes


def distinct_rows(keys: Keys, sizes: npt.NDArray[np.integer]) -> Window:
    """Rows that share a key are duplicates and count once.

    Two rows with one key and unequal sizes are a collision of hashes, or a row that is to be
    repeated more often: the larger counts, so that the order of the rows does not matter.
    """
    order = np.argsort(keys)
    keys, sizes = keys[order], np.asarray(sizes, np.int64)[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    if len(first) == len(keys):
        return Window(keys, sizes)
    return Window(keys[first], np.maximum.reduceat(sizes, first))


class Totals(NamedTuple):
    """Of all distinct rows of a side of the split."""

    rows: int
    bytes: int

    def add(self, window: Window) -> Totals:
        """With one more window."""
        return Totals(self.rows + len(window.keys), self.bytes + int(window.sizes.sum()))


def shard_number(total: Totals, shard_bytes: int, shards: int | None = None) -> int:
    """How many shards to cut: `shards`, or as many as `shard_bytes` asks for; one at least.

    Never more than there are rows.
    """
    number = shards if shards is not None else -(-total.bytes // shard_bytes)
    return max(1, min(number, total.rows))


def shard_cuts(windows: Callable[[], Iterable[Window]], total: Totals, number: int) -> Keys:
    """The first key of each shard but the first, so that shards hold about equal bytes.

    Args:
        windows: gives the windows of all keys in rising order, each time it is called.
        total: of all of them.
        number: of shards, as `shard_number` gives it.

    Returns:
        number - 1 rising keys; `shard_of` says what they mean. No shard is empty.
    """
    if number < 2:
        return np.zeros(0, np.uint64)
    aims = np.array([total.bytes * i / number for i in range(1, number)])
    places: list[int] = []
    for place in _nearest(windows(), aims):
        low = places[-1] + 1 if places else 1
        places.append(min(max(place, low), total.rows - (number - 1 - len(places))))
    return _keys_at(windows(), np.array(places))


def shard_of(keys: Keys, cuts: Keys) -> npt.NDArray[np.int64]:
    """The shard of each key."""
    return np.searchsorted(cuts, keys, side="right")


def _nearest(windows: Iterable[Window], aims: npt.NDArray[np.float64]) -> Iterable[int]:
    """For each of the rising aims, how many rows of the order come nearest to so many bytes."""
    rows = filled = done = 0
    for window in windows:
        if not len(window.keys):
            continue
        sums = filled + np.cumsum(window.sizes)
        reached = int(np.searchsorted(aims, sums[-1], side="right"))
        inside = aims[done:reached]
        # Row `at` crosses the aim: it goes to the side where it leaves the smaller error.
        at = np.searchsorted(sums, inside)
        before = np.where(at > 0, sums[at - 1], filled)
        yield from (rows + at + (inside - before > sums[at] - inside)).tolist()
        rows, filled, done = rows + len(sums), int(sums[-1]), reached


def _keys_at(windows: Iterable[Window], places: npt.NDArray[np.int64]) -> Keys:
    found = []
    rows = 0
    for window in windows:
        low, high = np.searchsorted(places, (rows, rows + len(window.keys)))
        found.append(window.keys[places[low:high] - rows])
        rows += len(window.keys)
    return np.concatenate(found)
