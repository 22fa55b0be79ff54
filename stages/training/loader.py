"""Reads global batches from Parquet shards in an order that is f(seed, epoch), from any position.

The order of an epoch: row groups in a keyed permutation, and rows in a keyed permutation inside
each. Epochs follow each other without a gap, and batch i is rows [i * G, (i + 1) * G) of that
endless stream. So every row is read once an epoch, no row is left over at an epoch's end, and the
loader's whole state is i. Finding batch i is a division and two binary searches; nothing is
skipped. The number of workers does not come in: each rank sees the whole global batch and takes
its share (`packing`). Length bins change the order inside an epoch, and nothing else (`bins`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from stages.training.bins import BinnedRows, LengthBins
from stages.training.examples import Examples, concatenate
from stages.training.randomness import permutation
from stages.training.row_groups import DataError, Limits, RowGroups, ShardFile


class Loader:
    """Global batches of `batch_size` rows.

    Args:
        filesystem: where the paths of the files lead.
        copies: the files of each copy; epoch e reads copy e mod len(copies) only.
        seed: of the order.
        batch_size: G, rows of a global batch.
        limits: checked as row groups are decoded.
        bins: a batch holds rows of one bin, as far as they go; None: of any length.
        documents: whether batches hold the documents' hashes.

    Raises:
        DataError: a copy has no rows.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        copies: Sequence[Sequence[ShardFile]],
        seed: int,
        batch_size: int,
        limits: Limits,
        bins: LengthBins | None = None,
        documents: bool = False,
    ) -> None:
        self._copies = [
            RowGroups(filesystem, files, limits, documents=documents) for files in copies
        ]
        self._seed = seed
        self._batch_size = batch_size
        rows = [int(groups.sizes.sum()) for groups in self._copies]
        if not rows or min(rows) == 0:
            raise DataError("there is nothing to train on: a copy of the training data has no rows")
        # Rows before each copy's epoch in one round of all copies, and of the whole round.
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self._binned = [
            BinnedRows(groups, bins, batch_size, seed) for groups in self._copies if bins
        ]
        self._order: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._rows_order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def position(self, index: int) -> tuple[int, int]:
        """(epoch, row in the epoch's order) where batch `index` begins."""
        return self._locate(index * self._batch_size)

    def batch(self, index: int) -> Examples:
        """Global batch `index`, counted from the start of training over all epochs.

        Raises:
            DataError: a file does not hold what it should.
        """
        epoch, row = self.position(index)
        wanted = self._batch_size
        parts = []
        while wanted:
            part = self._slice(epoch, row, wanted)
            parts.append(part)
            wanted -= len(part)
            row += len(part)
            if row == self.rows(epoch):
                epoch, row = epoch + 1, 0
        return concatenate(parts)

    def mixed_rows(self, epoch: int) -> int:
        """Rows of an epoch that are in batches of several bins; all of them without bins."""
        if not self._binned:
            return self.rows(epoch)
        return self._binned[epoch % len(self._copies)].order(epoch, self._head(epoch)).mixed_rows

    def _head(self, epoch: int) -> int:
        """Rows of an epoch that belong to a batch which began before it."""
        rounds, copy = divmod(epoch, len(self._copies))
        return -(rounds * int(self._starts[-1]) + int(self._starts[copy])) % self._batch_size

    def rows(self, epoch: int) -> int:
        """Rows of an epoch."""
        copy = epoch % len(self._copies)
        return int(self._starts[copy + 1] - self._starts[copy])

    def _locate(self, stream_row: int) -> tuple[int, int]:
        rounds, row = divmod(stream_row, int(self._starts[-1]))
        copy = int(np.searchsorted(self._starts, row, side="right")) - 1
        return rounds * len(self._copies) + copy, row - int(self._starts[copy])

    def _slice(self, epoch: int, row: int, most: int) -> Examples:
        """At most `most` rows from `row` of the epoch on, all of one row group."""
        if self._binned:
            binned = self._binned[epoch % len(self._copies)]
            return binned.read(epoch, self._head(epoch), row, most)
        groups = self._copies[epoch % len(self._copies)]
        order, ends = self._epoch_order(epoch)
        at = int(np.searchsorted(ends, row, side="right"))
        group = int(order[at])
        size = int(groups.sizes[group])
        start = row - (int(ends[at]) - size)
        rows = self._row_order(epoch, group, size)[start : start + most]
        return groups.get(group).take(rows)

    def _epoch_order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row groups of the epoch in their order, and the rows up to the end of each."""
        if self._order is None or self._order[0] != epoch:
            sizes = self._copies[epoch % len(self._copies)].sizes
            order = permutation(len(sizes), self._seed, "row groups", epoch)
            self._order = (epoch, order, np.cumsum(sizes[order]))
        return self._order[1], self._order[2]

    def _row_order(self, epoch: int, group: int, size: int) -> NDArray[np.int64]:
        if self._rows_order is None or self._rows_order[0] != (epoch, group):
            order = permutation(size, self._seed, "rows", epoch, group)
            self._rows_order = ((epoch, group), order)
        return self._rows_order[1]
