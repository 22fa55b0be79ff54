"""Row groups of the mask artifact's Parquet files, decoded and checked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from stages.training.examples import Examples, Ragged

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
        documents: whether to read the documents' hashes, where files hold them.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        files: Sequence[ShardFile],
        limits: Limits,
        keep: int = 3,
        documents: bool = False,
    ) -> None:
        self._columns = (*COLUMNS, "document") if documents else COLUMNS
        self._filesystem = filesystem
        self._files = tuple(files)
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
            table = _read(self._open(file, source), file, row_group, self._columns)
        examples = decode(table, where)
        _check_limits(examples, self._limits, where)
        return examples

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Tokens of the rows of each row group, in the order of their numbers.

        Raises:
            DataError: a file does not fit the index or the limits.
        """
        for file in self._files:
            with self._filesystem.open_input_file(file.path) as source:
                reader = self._open(file, source)
                for row_group in range(len(file.row_groups)):
                    table = _read(reader, file, row_group, ("input_ids",))
                    where = f"{file.path}, row group {row_group}"
                    yield _ragged(table, "input_ids", where).lengths

    def _open(self, file: ShardFile, source: Any) -> pq.ParquetFile:
        # pre_buffer would fetch ahead for us, but holds a second copy; row groups are small.
        reader = pq.ParquetFile(source, pre_buffer=False)
        _check_metadata(file.path, reader.schema_arrow.metadata or {}, self._limits)
        names = reader.schema_arrow.names
        missing = [c for c in COLUMNS if c not in names and c not in ("is_next", "a_length")]
        if missing:
            raise DataError(f"{file.path} has no column {', '.join(missing)}")
        return reader


def _read(
    reader: pq.ParquetFile, file: ShardFile, row_group: int, columns: Sequence[str]
) -> pa.Table:
    where = f"{file.path}, row group {row_group}"
    if row_group >= reader.num_row_groups:
        raise DataError(f"{where}: the file holds {reader.num_row_groups} row groups")
    names = reader.schema_arrow.names
    table = reader.read_row_group(row_group, [c for c in columns if c in names])
    if table.num_rows != file.row_groups[row_group]:
        raise DataError(
            f"{where}: {table.num_rows} rows, the index says {file.row_groups[row_group]}"
        )
    return table


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
    documents = None
    if "document" in table.column_names:
        documents = table.column("document").to_numpy()
    return Examples(input_ids, a_length, is_next, positions, labels.values, documents)


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


def count_labels(
    filesystem: FileSystem, files: Sequence[ShardFile], limits: Limits
) -> NDArray[Any]:
    """[vocab_size] int64: how often each id is a label in `files` (for the unigram baseline)."""
    groups = RowGroups(filesystem, files, limits, keep=1)
    counts = np.zeros(limits.vocab_size, dtype=np.int64)
    for number in range(len(groups)):
        counts += np.bincount(groups.get(number).mlm_labels, minlength=limits.vocab_size)
    return counts
