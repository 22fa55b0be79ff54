"""Records of columnar files: Parquet and Arrow IPC (file and stream), batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stages.text.records import (
    ID_CHARACTERS,
    ReadOptions,
    Record,
    Reject,
    dotted_splits,
    record_id,
    source_name,
    too_large,
)
from stages.text.streams import DamagedFile, open_seekable, read_pieces, whole

ARROW_FILE_MAGIC = b"ARROW1"
ARROW_FILE_HEAD = 8
"""Bytes before the stream that an Arrow file holds: the magic, padded."""

UNPACKED_LIMIT = 8
"""A compressed columnar file is unpacked in memory up to this many times `max_record_bytes`."""

SMALL_GROUP_BYTES = 16_000_000
"""Of a row group that is read as dictionaries the reader holds all: several times its size."""

BROKEN = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What pyarrow raises where a file is damaged; the last of names of columns."""


def parquet_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of a Parquet file, batch by batch. A compressed file is unpacked in memory first.

    Of a damaged row group, what stands before the damage is read, and the rest is one reject.
    """
    row = 0
    names = [n for n in (options.text_field, options.id_field, options.source_field) if n]
    try:
        with _parquet_file(open_columnar(path, compression, options), names) as file:
            if file.metadata.num_rows != sum(g.num_rows for g in _groups(file.metadata)):
                raise pa.ArrowInvalid("its row groups do not have as many rows as it says")
            if find_field(file.schema_arrow, options.text_field) is None:
                yield from _missing(file.schema_arrow, row, file.metadata.num_rows, options)
                return
            # A nested field has its dotted path as its name.
            found = [n for n in names if find_field(file.schema_arrow, n) is not None]
            rows = _rows_a_batch(file, options)
            for group in range(file.num_row_groups):
                end = row + file.metadata.row_group(group).num_rows
                try:
                    for batch in file.iter_batches(rows, row_groups=[group], columns=found):
                        yield from _rows(batch, row, options)
                        row += batch.num_rows
                except BROKEN as error:
                    # What is wrong with a row group costs no other one.
                    reason = "unreadable" if row == 0 else "damaged"
                    yield Reject(reason, f"rows {row} to {end - 1}", str(error))
                row = end
    except DamagedFile as damage:
        yield Reject(damage.reason, "", str(damage))
    except BROKEN as error:
        yield Reject("unreadable" if row == 0 else "damaged", f"row {row}", str(error))


def arrow_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of an Arrow IPC file (Feather too) or stream, batch by batch.

    Of a damaged one it is the batches before the damage.
    """
    row = 0
    try:
        with open_columnar(path, compression, options) as source:
            for batch in arrow_batches(source):
                if find_field(batch.schema, options.text_field) is None:
                    # A damaged length could be that of years.
                    batch.validate()
                    yield from _missing(batch.schema, row, batch.num_rows, options)
                else:
                    yield from _slices(batch, row, options)
                row += batch.num_rows
    except DamagedFile as damage:
        yield Reject(damage.reason, "", str(damage))
    except BROKEN as error:
        yield Reject("unreadable" if row == 0 else "damaged", f"row {row}", str(error))


def open_columnar(path: str, compression: str, options: ReadOptions) -> Any:
    """A columnar file, seekable; one with a compression around it is unpacked in memory.

    Raises:
        DamagedFile: it cannot be opened or unpacked.
        RemoteFailure: the filesystem of a URI fails.
    """
    if not compression:
        return open_seekable(path)
    content, damage = whole(
        read_pieces(path, compression), UNPACKED_LIMIT * options.max_record_bytes
    )
    if damage:
        raise damage
    if content is None:
        raise DamagedFile(
            "too_large",
            f"more than {UNPACKED_LIMIT * options.max_record_bytes} bytes unpacked: store it "
            "without compression around it",
        )
    return pa.BufferReader(content)


def _parquet_file(source: Any, names: list[str]) -> pq.ParquetFile:
    """A file whose columns `names` come as dictionaries where its row groups are small.

    A text that many rows share is stored once: unpacked for each of them, a few megabytes in a file
    could be many gigabytes in memory. Where a row group is large, most of it is stored unshared.
    """
    file = pq.ParquetFile(source)
    metadata = file.metadata
    largest = max((g.total_byte_size for g in _groups(metadata)), default=0)
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    strings = {column.path for column in columns if column.physical_type == "BYTE_ARRAY"}
    once = [name for name in names if name in strings]
    if largest > SMALL_GROUP_BYTES or not once:
        return file
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=once)


def _groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    return [metadata.row_group(i) for i in range(metadata.num_row_groups)]


def arrow_batches(source: Any) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow IPC file or stream; of a file whose index is lost, then its error."""
    head = source.read(ARROW_FILE_HEAD)
    source.seek(0)
    if not head.startswith(ARROW_FILE_MAGIC):
        yield from pa.ipc.open_stream(source)
        return
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid as error:
        # The index at its end is lost; the file holds a stream from its head on.
        source.seek(ARROW_FILE_HEAD)
        yield from pa.ipc.open_stream(source)
        raise error
    for i in range(reader.num_record_batches):
        yield reader.get_batch(i)


def _rows_a_batch(file: pq.ParquetFile, options: ReadOptions) -> int:
    """Rows that unpack to about a batch, by the densest row group's figures."""
    groups = _groups(file.metadata)
    dense = max((g.total_byte_size / max(g.num_rows, 1) for g in groups), default=1.0)
    return max(1, min(65_536, int(options.batch_bytes / max(dense, 1.0))))


def _slices(batch: pa.RecordBatch, row: int, options: ReadOptions) -> Iterator[Record | Reject]:
    """The rows of a batch of any size, without a second copy of it in memory."""
    try:
        text = field_column(batch, options.text_field)
        text.validate()
        if len(text) != batch.num_rows:
            raise pa.ArrowInvalid(f"{len(text)} values in {batch.num_rows} rows")
    except pa.ArrowException as error:
        yield Reject("damaged", f"batch at row {row}", f"column {options.text_field!r}: {error}")
        return
    # `nbytes` would believe the other columns.
    dense = batch.get_total_buffer_size() / max(batch.num_rows, 1)
    step = max(1, min(65_536, int(options.batch_bytes / max(dense, 1.0))))
    for start in range(0, batch.num_rows, step):
        yield from _rows(batch.slice(start, step), row + start, options)


def _missing(
    schema: pa.Schema, row: int, rows: int, options: ReadOptions
) -> Iterator[Record | Reject]:
    detail = (
        f"no column {options.text_field!r} (columns: {', '.join(schema.names)}): "
        "set corpus.text_field"
    )
    for i in range(row, row + rows):
        yield Reject("missing_field", f"row {i}", detail[:500])


def _rows(batch: pa.RecordBatch, row: int, options: ReadOptions) -> Iterator[Record | Reject]:
    try:
        text = field_column(batch, options.text_field)
        check(text)
    except pa.ArrowException as error:
        where = f"rows {row} to {row + batch.num_rows - 1}"
        yield Reject("damaged", where, f"column {options.text_field!r}: {error}")
        return
    kind = text.type.value_type if pa.types.is_dictionary(text.type) else text.type
    if not _is_text(kind):
        for i in range(len(text)):
            detail = f"column {options.text_field!r} holds {kind}, not strings"
            yield Reject("not_text", f"row {row + i}", detail)
        return
    values = _bytes(text)
    ids = _values(batch, options.id_field)
    sources = _values(batch, options.source_field)
    for i, (value, own, source) in enumerate(zip(values, ids, sources, strict=True), start=row):
        if value is None:
            yield Reject("missing_field", f"row {i}", f"{options.text_field!r} is null")
        elif len(value) > options.max_record_bytes:
            yield too_large(f"row {i}", options)
        else:
            yield Record(record_id(own, f"row {i}"), value, source_name(source))


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Values of an id or source column; None where there is none that can be one."""
    if not name or find_field(batch.schema, name) is None:
        return [None] * batch.num_rows
    try:
        column = field_column(batch, name)
        check(column)
    except pa.ArrowException:
        return [None] * batch.num_rows
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind):
        return [None] * batch.num_rows
    if _is_text(kind):
        # Of a longer id that is none anyway, so much is enough to see it.
        return [
            None if v is None else v[: 4 * (ID_CHARACTERS + 1)].decode("utf-8", "backslashreplace")
            for v in _bytes(column)
        ]
    return column.to_pylist()  # type: ignore[no-any-return]


def check(column: pa.Array) -> None:
    """Look whether all that a column refers to is there.

    Readers believe what a file says: reading a value of a damaged one would end the process.

    Raises:
        pa.ArrowInvalid: it is not.
    """
    column.validate()
    if pa.types.is_dictionary(column.type):
        check(column.dictionary)
        column.indices.validate(full=True)
        known = column.indices.drop_null()
        if len(known) and not 0 <= pc.min(known).as_py() <= pc.max(known).as_py() < len(
            column.dictionary
        ):
            raise pa.ArrowInvalid("values of a dictionary that are not in it")
    elif _is_text(column.type):
        # Whether it is UTF-8 is asked later, record by record.
        column.view(_AS_BYTES.get(column.type, column.type)).validate(full=True)
    else:
        column.validate(full=True)


_AS_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Values of a column of strings as bytes: the formats do not promise that they are UTF-8.

    Equal values of a dictionary are one object.
    """
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    words = column.dictionary.cast(pa.large_binary()).to_pylist()
    return [None if i is None else words[i] for i in column.indices.to_pylist()]


def find_field(fields: Any, path: str) -> list[str] | None:
    """Names on the way to a field of a schema or struct type; the longest name wins."""
    names = [field.name for field in fields]
    if path in names:
        return [path]
    for outer, inner in dotted_splits(path):
        if names.count(outer) == 1:
            kind = fields.field(names.index(outer)).type
            if pa.types.is_struct(kind) and (found := find_field(kind, inner)) is not None:
                return [outer, *found]
    return None


def field_column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """The column under a dotted path that `find_field` found."""
    names = find_field(batch.schema, path)
    assert names is not None
    # By position: of two columns of one name the first is meant.
    column = batch.column(batch.schema.names.index(names[0]))
    if names[1:]:
        column.validate()
    return pc.struct_field(column, names[1:]) if names[1:] else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
    )
