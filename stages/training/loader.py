"""Reads global batches from Parquet shards in an order that is f(seed, epoch), from any position.

The order of an epoch: row groups in a keyed permutation, and rows in a keyed permutation inside
each. Epochs follow each other without a gap, and batch i is rows [i * G, (i + 1) * G) of that
endless stream. So every row is read once an epoch, no row is left over at an epoch's end, and the
loader's whole state is i. Finding batch i is a division and two binary searches; nothing is
skipped. The number of workers does not come in: each rank sees the whole global batch and takes
its share (`packing`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from stages.training.examples import Examples, Ragged, concatenate
from stages.training.randomness import permutation

COLUMNS = ("input_ids", "a_length", "is_next", "mlm_positions", "mlm_labels")


class DataError(ValueError):
    """A file does not hold what the trainer needs; the message names file, row group and row."""


@dataclass(frozen=True)
class ShardFile:
    """A Parquet file: its path in the loader's filesystem and the rows of each row group."""

    path: str
    row_groups: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return sum(self.row_groups)


def read_index(filesystem: FileSystem, paths: Iterable[str]) -> tuple[ShardFile, ...]:
    """Row-group sizes from the footers, for callers that have no manifest which holds them."""
    files = []
    for path in paths:
        with filesystem.open_input_file(path) as source:
            footer = pq.read_metadata(source)
        sizes = tuple(footer.row_group(g).num_rows for g in range(footer.num_row_groups))
        files.append(ShardFile(path, sizes))
    return tuple(files)


@dataclass(frozen=True)
class Limits:
    """What rows must keep to; checked as row groups are decoded.

    Attributes:
        vocab_size: every id and label is below it.
        max_length: of a row, in tokens (the position table).
        schema_metadata: must equal the entries of the files' schema metadata where both have them
            (the vocabulary's digest).
    """

    vocab_size: int
    max_length: int
    schema_metadata: tuple[tuple[str, str], ...] = ()


class RowGroups:
    """Decoded row groups of some files, in file order; the last few are kept.

    Args:
        filesystem: where the paths of `files` lead.
        files: in the order that numbers the row groups.
        limits: checked on each row group.
        keep: decoded row groups held in memory at most.
    """

    def __init__(
        self, filesystem: FileSystem, files: Sequence[ShardFile], limits: Limits, keep: int = 3
    ) -> None:
        self._filesystem = filesystem
        self._limits = limits
        self._keep = keep
        self._kept: OrderedDict[int, Examples] = OrderedDict()
        self._places = [(file, g) for file in files for g in range(len(file.row_groups))]
        self.sizes: NDArray[np.int64] = np.array(
            [file.row_groups[g] for file, g in self._places], dtype=np.int64
        )

    def __len__(self) -> int:
        return len(self._places)

    def get(self, number: int) -> Examples:
        """Row group `number`, decoded and checked.

        Raises:
            DataError: it does not fit the index or the limits.
        """
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        while len(self._kept) >= self._keep:
            self._kept.popitem(last=False)
        file, row_group = self._places[number]
        examples = self._decode(file, row_group)
        self._kept[number] = examples
        return examples

    def _decode(self, file: ShardFile, row_group: int) -> Examples:
        where = f"{file.path}, row group {row_group}"
        with self._filesystem.open_input_file(file.path) as source:
            # pre_buffer would fetch ahead for us, but holds a second copy; row groups are small.
            reader = pq.ParquetFile(source, pre_buffer=False)
            _check_metadata(file.path, reader.schema_arrow.metadata or {}, self._limits)
            names = reader.schema_arrow.names
            missing = [c for c in COLUMNS if c not in names and c not in ("is_next", "a_length")]
            if missing:
                raise DataError(f"{file.path} has no column {', '.join(missing)}")
            if row_group >= reader.num_row_groups:
                raise DataError(f"{where}: the file holds {reader.num_row_groups} row groups")
            table = reader.read_row_group(row_group, [c for c in COLUMNS if c in names])
        if table.num_rows != file.row_groups[row_group]:
            raise DataError(
                f"{where}: {table.num_rows} rows, the index says {file.row_groups[row_group]}"
            )
        examples = decode(table, where)
        _check_limits(examples, self._limits, where)
        return examples


def decode(table: pa.Table, where: str = "table") -> Examples:
    """A table of the mask artifact's columns as `Examples`.

    Raises:
        DataError: nulls where none may be, or labels that do not match positions; the message
            starts with `where`.
    """
    input_ids = _ragged(table, "input_ids", where)
    positions = _ragged(table, "mlm_positions", where)
    labels = _ragged(table, "mlm_labels", where)
    if not np.array_equal(positions.offsets, labels.offsets):
        row = int(np.flatnonzero(positions.offsets[1:] != labels.offsets[1:])[0])
        raise DataError(f"{where}, row {row}: mlm_positions and mlm_labels differ in length")

    is_next = None
    if "is_next" in table.column_names:
        column = table.column("is_next")
        if column.null_count not in (0, table.num_rows):
            raise DataError(f"{where}: is_next is null in {column.null_count} rows, not in all")
        if column.null_count == 0 and table.num_rows:
            is_next = column.to_numpy()
    if is_next is None:
        a_length = np.zeros(table.num_rows, dtype=np.int64)
    else:
        if "a_length" not in table.column_names or table.column("a_length").null_count:
            raise DataError(f"{where}: is_next without a_length")
        a_length = table.column("a_length").to_numpy().astype(np.int64)
    return Examples(input_ids, a_length, is_next, positions, labels.values)


def _ragged(table: pa.Table, name: str, where: str) -> Ragged:
    column = table.column(name).combine_chunks()
    lists = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if lists.null_count or lists.flatten().null_count:
        raise DataError(f"{where}: {name} holds nulls")
    # flatten() starts at the first list, offsets may not.
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return Ragged(lists.flatten().to_numpy(), offsets - offsets[0])


def _check_metadata(path: str, metadata: dict[bytes, bytes], limits: Limits) -> None:
    for name, expected in limits.schema_metadata:
        found = metadata.get(name.encode())
        if found is not None and found.decode() != expected:
            raise DataError(f"{path}: {name} is {found.decode()}, the run expects {expected}")


def _check_limits(examples: Examples, limits: Limits, where: str) -> None:
    lengths = examples.input_ids.lengths
    if len(lengths) and int(lengths.max()) > limits.max_length:
        row = int(lengths.argmax())
        raise DataError(
            f"{where}, row {row}: {lengths[row]} tokens, the model's position table holds "
            f"{limits.max_length}"
        )
    for name, ids in (("id", examples.input_ids.values), ("label", examples.mlm_labels)):
        if len(ids) and int(ids.max()) >= limits.vocab_size:
            raise DataError(
                f"{where}: {name} {int(ids.max())}, the vocabulary has {limits.vocab_size} entries"
            )
    counts = examples.mlm_positions.lengths
    if (examples.mlm_positions.values >= np.repeat(lengths, counts)).any():
        raise DataError(f"{where}: a masked position lies behind the end of its row")


class Loader:
    """Global batches of `batch_size` rows.

    Args:
        filesystem: where the paths of the files lead.
        copies: the files of each copy; epoch e reads copy e mod len(copies) only.
        seed: of the order.
        batch_size: G, rows of a global batch.
        limits: checked as row groups are decoded.

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
    ) -> None:
        self._copies = [RowGroups(filesystem, files, limits) for files in copies]
        self._seed = seed
        self._batch_size = batch_size
        rows = [int(groups.sizes.sum()) for groups in self._copies]
        if not rows or min(rows) == 0:
            raise DataError("there is nothing to train on: a copy of the training data has no rows")
        # Rows before each copy's epoch in one round of all copies, and of the whole round.
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
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
            if row == self._rows(epoch):
                epoch, row = epoch + 1, 0
        return concatenate(parts)

    def _rows(self, epoch: int) -> int:
        copy = epoch % len(self._copies)
        return int(self._starts[copy + 1] - self._starts[copy])

    def _locate(self, stream_row: int) -> tuple[int, int]:
        rounds, row = divmod(stream_row, int(self._starts[-1]))
        copy = int(np.searchsorted(self._starts, row, side="right")) - 1
        return rounds * len(self._copies) + copy, row - int(self._starts[copy])

    def _slice(self, epoch: int, row: int, most: int) -> Examples:
        """At most `most` rows from `row` of the epoch on, all of one row group."""
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


def count_labels(
    filesystem: FileSystem, files: Sequence[ShardFile], limits: Limits
) -> NDArray[Any]:
    """[vocab_size] int64: how often each id is a label in `files` (for the unigram baseline)."""
    groups = RowGroups(filesystem, files, limits, keep=1)
    counts = np.zeros(limits.vocab_size, dtype=np.int64)
    for number in range(len(groups)):
        counts += np.bincount(groups.get(number).mlm_labels, minlength=limits.vocab_size)
    return counts
