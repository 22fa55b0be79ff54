"""Row groups of a mask artifact's (or of pairs') Parquet files, decoded and checked."""

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

from stages.training.drawn_masks import DrawnMasks
from stages.training.examples import DataError, Examples, Ragged

__all__ = ["DataError", "Limits", "RowGroups", "ShardFile", "count_labels", "decode", "read_index"]

ROWS = ("input_ids", "a_length", "is_next")
MASKS = ("mlm_positions", "mlm_labels")


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
        files: in the order that numbers the row groups and rows.
        limits: checked on each row group.
        keep: decoded row groups held in memory at most.
        masks: to be drawn, where the files are pairs; None: they hold masked rows.
        documents: whether to read the documents' hashes, where files hold them.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        files: Sequence[ShardFile],
        limits: Limits,
        keep: int = 3,
        masks: DrawnMasks | None = None,
        documents: bool = False,
    ) -> None:
        self._columns = (
            *ROWS,
            *(MASKS if masks is None else ()),
            *(("document",) if documents else ()),
        )
        self._filesystem = filesystem
        self._files = tuple(files)
        self._limits = limits
        self._keep = keep
        self._masks = masks
        self._kept: OrderedDict[tuple[int, int], Examples] = OrderedDict()
        counts = [len(file.row_groups) for file in self._files]
        self._before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.sizes: NDArray[np.int64] = np.fromiter(
            (rows for file in self._files for rows in file.row_groups), np.int64, sum(counts)
        )
        self._first_rows = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def get(self, number: int, epoch: int = 0) -> Examples:
        """Row group `number`, decoded and checked, with the masks of an epoch if they are drawn.

        Raises:
            DataError: it does not fit the index or the limits.
        """
        place = (number, 0 if self._masks is None else epoch)
        if place in self._kept:
            self._kept.move_to_end(place)
            return self._kept[place]
        while len(self._kept) >= self._keep:
            self._kept.popitem(last=False)
        file = int(np.searchsorted(self._before, number, side="right")) - 1
        examples = self._decode(self._files[file], number - int(self._before[file]))
        if self._masks is not None:
            rows = int(self._first_rows[number]) + np.arange(len(examples))
            examples = self._masks.apply(examples, epoch, rows)
        self._kept[place] = examples
        return examples

    def forget(self) -> None:
        """Give back what is kept."""
        self._kept.clear()

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
        try:
            reader = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(file.path, error) from None
        _check_metadata(file.path, reader.schema_arrow.metadata or {}, self._limits)
        names = reader.schema_arrow.names
        needed = ["input_ids", *(MASKS if self._masks is None else ())]
        missing = [column for column in needed if column not in names]
        if missing:
            raise DataError(f"{file.path} has no column {', '.join(missing)}")
        if self._masks is not None and MASKS[0] in names:
            raise DataError(f"{file.path} holds masked rows: masks at loading are drawn on pairs")
        return reader


def _read(
    reader: pq.ParquetFile, file: ShardFile, row_group: int, columns: Sequence[str]
) -> pa.Table:
    where = f"{file.path}, row group {row_group}"
    if row_group >= reader.num_row_groups:
        raise DataError(f"{where}: the file holds {reader.num_row_groups} row groups")
    names = reader.schema_arrow.names
    try:
        table = reader.read_row_group(row_group, [c for c in columns if c in names])
    except (pa.ArrowException, OSError) as error:
        raise _damaged(where, error) from None
    if table.num_rows != file.row_groups[row_group]:
        raise DataError(
            f"{where}: {table.num_rows} rows, the index says {file.row_groups[row_group]}"
        )
    return table


def _damaged(where: str, error: Exception) -> DataError:
    return DataError(
        f"{where} cannot be read ({error}): the file is damaged, or storage was away. If it is "
        "damaged, make its node anew: clozeline run --only NODE --force"
    )


def decode(table: pa.Table, where: str = "table") -> Examples:
    """A table of the mask artifact's columns, or of those of pairs, as `Examples`.

    Raises:
        DataError: nulls where none may be, or labels that do not match positions; the message
            starts with `where`.
    """
    input_ids = _ragged(table, "input_ids", where)
    if "mlm_positions" in table.column_names:
        positions = _ragged(table, "mlm_positions", where)
        labels = _ragged(table, "mlm_labels", where)
    else:
        none = np.zeros(0, dtype=input_ids.values.dtype)
        positions = labels = Ragged(none, np.zeros(table.num_rows + 1, dtype=np.int64))
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
    filesystem: FileSystem,
    files: Sequence[ShardFile],
    limits: Limits,
    masks: DrawnMasks | None = None,
    most_tokens: int | None = None,
) -> NDArray[np.int64]:
    """[vocab_size] how often each id is a label in `files` (for the unigram baseline).

    Args:
        filesystem: where the paths lead.
        files: of a mask artifact; with `masks`, of pairs.
        limits: checked on each row group.
        masks: drawn as in epoch 0.
        most_tokens: no more row groups are read once so many tokens were.
    """
    groups = RowGroups(filesystem, files, limits, keep=1, masks=masks)
    counts = np.zeros(limits.vocab_size, dtype=np.int64)
    tokens = 0
    for number in range(len(groups)):
        examples = groups.get(number)
        counts += np.bincount(examples.mlm_labels, minlength=limits.vocab_size)
        tokens += examples.tokens
        if most_tokens is not None and tokens >= most_tokens:
            break
    return counts
