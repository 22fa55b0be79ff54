"""The endless stream of rows of one source: epoch after epoch without a gap, read from anywhere.

The order of an epoch: row groups in a keyed permutation, and rows in a keyed permutation inside
each. So every row is read once an epoch, no row is left over at an epoch's end, and a place in the
stream is one number. Finding it is a division and two binary searches; nothing is skipped. Length
bins change the order inside an epoch, and nothing else (`bins`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from stages.training.bins import BinnedRows, LengthBins
from stages.training.drawn_masks import DrawnMasks
from stages.training.examples import DataError, Examples
from stages.training.randomness import permutation
from stages.training.row_groups import Limits, RowGroups, ShardFile


class RowStream:
    """The rows of one source in the order of training.

    Args:
        filesystem: where the paths of the files lead.
        copies: the files of each copy; epoch e reads copy e mod len(copies) only.
        seed: of the order.
        batch_size: G, rows of a batch of one bin; of no effect without bins.
        limits: checked as row groups are decoded.
        bins: each G rows are of one bin, as far as they go; None: of any length.
        masks: to be drawn, for files of pairs; None: the files hold masked rows.
        documents: whether examples hold the documents' hashes.

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
        masks: DrawnMasks | None = None,
        documents: bool = False,
    ) -> None:
        self._copies = [
            RowGroups(filesystem, files, limits, masks=masks, documents=documents)
            for files in copies
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
        self._epoch = -1
        self._order: NDArray[np.int64]
        self._ends: NDArray[np.int64]
        self._rows_order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def position(self, row: int) -> tuple[int, int]:
        """(epoch, row in the epoch's order) of a row of the stream."""
        rounds, row = divmod(row, int(self._starts[-1]))
        copy = int(np.searchsorted(self._starts, row, side="right")) - 1
        return rounds * len(self._copies) + copy, row - int(self._starts[copy])

    def rows(self, epoch: int) -> int:
        """Rows of an epoch."""
        copy = epoch % len(self._copies)
        return int(self._starts[copy + 1] - self._starts[copy])

    def mixed_rows(self, epoch: int) -> int:
        """Rows of an epoch that are in batches of several bins; all of them without bins."""
        if not self._binned:
            return self.rows(epoch)
        return self._binned[epoch % len(self._copies)].order(epoch, self._head(epoch)).mixed_rows

    def read(self, start: int, count: int) -> list[Examples]:
        """Rows `start`..`start + count - 1` of the stream, in parts of one row group each.

        Raises:
            DataError: a file does not hold what it should.
        """
        epoch, row = self.position(start)
        parts = []
        while count:
            self._enter(epoch)
            part = self._slice(epoch, row, count)
            parts.append(part)
            count -= len(part)
            row += len(part)
            if row == self.rows(epoch):
                epoch, row = epoch + 1, 0
        return parts

    def _head(self, epoch: int) -> int:
        """Rows of an epoch that belong to a batch which began before it."""
        rounds, copy = divmod(epoch, len(self._copies))
        return -(rounds * int(self._starts[-1]) + int(self._starts[copy])) % self._batch_size

    def _enter(self, epoch: int) -> None:
        """Order the row groups of an epoch, and give back what another copy holds decoded."""
        if self._epoch == epoch:
            return
        copy, last = epoch % len(self._copies), self._epoch % len(self._copies)
        if copy != last:
            self._copies[last].forget()
            if self._binned:
                self._binned[last].forget()
        self._epoch = epoch
        if not self._binned:
            sizes = self._copies[copy].sizes
            self._order = permutation(len(sizes), self._seed, "row groups", epoch)
            self._ends = np.cumsum(sizes[self._order])

    def _slice(self, epoch: int, row: int, most: int) -> Examples:
        """At most `most` rows from `row` of the epoch on, all of one row group."""
        if self._binned:
            binned = self._binned[epoch % len(self._copies)]
            return binned.read(epoch, self._head(epoch), row, most)
        groups = self._copies[epoch % len(self._copies)]
        at = int(np.searchsorted(self._ends, row, side="right"))
        group = int(self._order[at])
        size = int(groups.sizes[group])
        start = row - (int(self._ends[at]) - size)
        rows = self._row_order(epoch, group, size)[start : start + most]
        return groups.get(group, epoch).take(rows)

    def _row_order(self, epoch: int, group: int, size: int) -> NDArray[np.int64]:
        if self._rows_order is None or self._rows_order[0] != (epoch, group):
            order = permutation(size, self._seed, "rows", epoch, group)
            self._rows_order = ((epoch, group), order)
        return self._rows_order[1]
