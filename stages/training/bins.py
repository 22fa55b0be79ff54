"""Length bins: global batches of rows of about one length, in an order that is f(seed, epoch).

Bins are of equal width. Row groups come in a keyed permutation, rows in a keyed permutation inside
each, and each row joins the queue of its bin: G rows of a queue are a batch, placed where its last
row came. So a batch reads neighbouring row groups, as without bins, and all that has to be known
beforehand is how many rows of each bin a row group holds.

An epoch rarely begins where a batch does. Its first rows, which fill the batch that the epoch
before left open, are of the fullest bin. What is left in the queues at the end goes, from short to
long, into the last batches. These rows alone are in batches of several bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.training.examples import Examples
from stages.training.randomness import permutation
from stages.training.row_groups import RowGroups

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class LengthBins:
    """Bins of equal width.

    Attributes:
        count: of bins.
        max_length: tokens of the longest row; longer ones count to the last bin.
    """

    count: int
    max_length: int

    def of(self, lengths: Int64s) -> Int64s:
        """Numbers of the bins of rows of so many tokens, from 0 for the shortest."""
        bins: Int64s = np.minimum((lengths - 1) * self.count // self.max_length, self.count - 1)
        return bins


class BinnedOrder:
    """The order of one epoch: runs of rows that follow each other in the queue of one bin.

    Args:
        counts: [row groups, bins] rows.
        batch_size: G.
        head: rows that fill the batch which the epoch before left open, below G.
        seed: of the order.
        epoch: number of the epoch.

    Attributes:
        epoch: as given.
        mixed_rows: rows of this epoch in batches of several bins.
    """

    def __init__(self, counts: Int64s, batch_size: int, head: int, seed: int, epoch: int) -> None:
        self.epoch = epoch
        self._order = permutation(len(counts), seed, "row groups", epoch)
        self._place_of = np.argsort(self._order)
        self._counts = counts
        # [row groups, bins]: length of each queue after each row group, in the epoch's order.
        self._queued = np.cumsum(counts[self._order], axis=0)
        rows = self._queued[-1]
        every = np.arange(len(rows))

        first = np.zeros(len(rows), dtype=np.int64)
        for fullest in np.argsort(-rows, kind="stable"):
            first[fullest] = min(head - int(first.sum()), int(rows[fullest]))
        batches = (rows - first) // batch_size
        used = first + batches * batch_size

        bins = np.repeat(every, batches)
        number = np.arange(len(bins)) - np.repeat(np.cumsum(batches) - batches, batches)
        starts = first[bins] + batch_size * number
        filled_by = np.concatenate(
            [
                np.searchsorted(self._queued[:, b], starts[bins == b] + batch_size - 1, "right")
                for b in every
            ]
        )
        # Of batches that the same row group fills, a draw says which bin's comes first.
        bins_in_order = bins[np.lexsort((permutation(len(bins), seed, "bins", epoch), filled_by))]
        starts_in_order = np.empty_like(starts)
        starts_in_order[np.argsort(bins_in_order, kind="stable")] = starts

        sizes = np.concatenate([first, np.full(len(bins), batch_size), rows - used])
        there = sizes > 0
        self._bins = np.concatenate([every, bins_in_order, every])[there]
        self._starts = np.concatenate([np.zeros_like(first), starts_in_order, used])[there]
        self._ends = np.cumsum(sizes[there])
        self.mixed_rows = int((rows - batches * batch_size).sum())

        # Runs by bin and place in its queue, as one number, for `row_of`.
        self._rows = int(rows.sum())
        keys = self._bins * self._rows + self._starts
        self._by_key = np.argsort(keys)
        self._keys = keys[self._by_key]

    def find(self, row: int, most: int) -> tuple[int, int, slice]:
        """At most `most` rows from `row` of the epoch on, all of one row group and bin.

        Returns:
            The row group, the bin, and which of the bin's rows in this row group, in their order.
        """
        run = int(np.searchsorted(self._ends, row, side="right"))
        bin_ = int(self._bins[run])
        left = int(self._ends[run]) - row
        place = int(self._starts[run]) + row - (int(self._ends[run - 1]) if run else 0)
        at = int(np.searchsorted(self._queued[:, bin_], place, side="right"))
        group = int(self._order[at])
        size = int(self._counts[group, bin_])
        start = place - (int(self._queued[at, bin_]) - size)
        return group, bin_, slice(start, start + min(most, left, size - start))

    def last_row(self, group: int, bin_: int) -> int:
        """Row of the epoch's order at which the last of a row group's rows of a bin stands."""
        place = int(self._queued[self._place_of[group], bin_]) - 1
        found = np.searchsorted(self._keys, bin_ * self._rows + place, side="right") - 1
        run = int(self._by_key[found])
        return place - int(self._starts[run]) + (int(self._ends[run - 1]) if run else 0)


class BinnedRows:
    """Reads the rows of some files in the order of `BinnedOrder`.

    Of a decoded row group the rows that later batches take are kept, so that reading on decodes
    each row group once an epoch; they are at most about G rows a bin.

    Args:
        groups: the files' row groups.
        bins: which rows belong together.
        batch_size: G.
        seed: of the order.
    """

    def __init__(self, groups: RowGroups, bins: LengthBins, batch_size: int, seed: int) -> None:
        self._groups = groups
        self._length_bins = bins
        self._batch_size = batch_size
        self._seed = seed
        self._counts: Int64s | None = None
        self._order: BinnedOrder | None = None
        self._kept: dict[tuple[int, int], Examples] = {}

    def order(self, epoch: int, head: int) -> BinnedOrder:
        """The order of an epoch of which `head` rows belong to a batch that began before it.

        The first call reads the lengths of all rows.
        """
        if self._counts is None:
            self._counts = self._count()
        if self._order is None or self._order.epoch != epoch:
            self._order = BinnedOrder(self._counts, self._batch_size, head, self._seed, epoch)
            self._kept.clear()
        return self._order

    def read(self, epoch: int, head: int, row: int, most: int) -> Examples:
        """At most `most` rows from `row` of the epoch on, at least one."""
        order = self.order(epoch, head)
        group, bin_, rows = order.find(row, most)
        if (group, bin_) not in self._kept:
            self._split(order, epoch, group, row)
        part = self._kept[group, bin_]
        if rows.stop == len(part):
            del self._kept[group, bin_]
        return part.take(np.arange(rows.start, rows.stop))

    def forget(self) -> None:
        """Give back the order of the epoch and what is kept of it."""
        self._order = None
        self._kept.clear()

    def _split(self, order: BinnedOrder, epoch: int, group: int, row: int) -> None:
        """Decode a row group; keep of each bin what is still to be read."""
        examples = self._groups.get(group, epoch)
        bins = self._length_bins.of(examples.input_ids.lengths)
        shuffled = permutation(len(examples), self._seed, "rows", epoch, group)
        for bin_ in np.unique(bins).tolist():
            if order.last_row(group, bin_) >= row:
                self._kept[group, bin_] = examples.take(shuffled[bins[shuffled] == bin_])

    def _count(self) -> Int64s:
        counts = np.zeros((len(self._groups), self._length_bins.count), dtype=np.int64)
        for group, lengths in enumerate(self._groups.lengths()):
            counts[group] = np.bincount(
                self._length_bins.of(lengths), minlength=self._length_bins.count
            )
        return counts
