"""Named columns of tables: TSV, CSV, JSON lines, Parquet and Arrow, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stages.text.columns import (
    BROKEN,
    arrow_batches,
    check,
    field_column,
    find_field,
    open_columnar,
)
from stages.text.delimited import Row, csv_rows, plain_tsv_rows, tsv_rows
from stages.text.encodings import file_encoding
from stages.text.listing import DETECT, Format, file_format, shown
from stages.text.records import ReadOptions, Reject, look_up, snippet, text_pieces, too_large
from stages.text.streams import DamagedFile, lines
from stages.text.tasks.rows import MissingColumnError, TaskFileError, nearest

TABLES = ("tsv", "csv", "jsonl", "parquet", "arrow")

BATCH_ROWS = 1024

NAMES_SHOWN = 30

MAX_RECORD_BYTES = 64_000_000
"""A longer row is counted as too_large."""


@dataclass(frozen=True)
class TableOptions:
    """How a table is read.

    Attributes:
        format: one of `TABLES`, or "auto": as the file's ending says.
        encoding: of TSV, CSV and JSON lines; a byte order mark wins over it. "detect": by content.
        quotes: of TSV. "detect": fields may be quoted as in CSV, or not; "never": a line is a row,
            and quotes are text, as in GLUE's files.
        header: names of the columns of a TSV or CSV file whose first row is none; () where it is.
    """

    format: str = "auto"
    encoding: str = "utf-8"
    quotes: Literal["detect", "never"] = "detect"
    header: tuple[str, ...] = ()


class Cells(NamedTuple):
    """A row: its place in the file, and its values in the order of the names asked for.

    TSV and CSV have strings; None is a null, or a key that this object of JSON lines lacks.
    """

    where: str
    values: tuple[Any, ...]


def table_rows(path: str, names: Sequence[str], options: TableOptions) -> Iterator[Cells | Reject]:
    """Rows of a table with the columns `names`.

    In nested data "a.b" is `b` inside `a`; a name that holds the dot wins. A row that cannot be
    read costs itself.

    Raises:
        TaskFileError: the file is not there, damaged or no such table, or lacks a column.
    """
    format, compression = table_format(path, options.format)
    own = read_options(path, compression, options.encoding)
    if format in ("parquet", "arrow"):
        yield from _columnar_rows(path, format, compression, names, own)
    elif format == "jsonl":
        yield from _json_rows(path, compression, names, own)
    else:
        kinds = {"csv": csv_rows, "tsv": plain_tsv_rows if options.quotes == "never" else tsv_rows}
        yield from _delimited_rows(path, kinds[format](path, compression, own), names, options)


def table_format(path: str, wanted: str) -> tuple[Format, str]:
    """Format and compression of a table.

    Raises:
        TaskFileError: its ending tells none.
    """
    format, compression = file_format(path, wanted)
    if wanted in TABLES:
        # A format that is named wins over any ending.
        return wanted, compression  # type: ignore[return-value]
    if format is None or format not in TABLES:
        raise TaskFileError(
            f"{shown(path)}: its ending tells no table (.tsv, .csv, .jsonl, .parquet, .arrow, with "
            f".gz, .bz2, .xz or .zst behind): set the format to one of {', '.join(TABLES)}"
        )
    return format, compression


def read_options(path: str, compression: str, encoding: str) -> ReadOptions:
    """How the shared readers read a file of text."""
    if encoding == DETECT:
        encoding = file_encoding(path, compression)
    return ReadOptions(encoding=encoding, max_record_bytes=MAX_RECORD_BYTES)


def file_error(path: str, reason: str, detail: str) -> TaskFileError:
    """The error of a file that cannot be read to its end: half a set is none."""
    what = {
        "unreadable": "cannot be read",
        "truncated": "ends too early",
        "damaged": "is damaged",
        "undecodable": "is not in its encoding",
    }
    return TaskFileError(f"{shown(path)} {what.get(reason, reason)}: {detail}")


def missing_column(path: str, name: str, there: Sequence[str]) -> MissingColumnError:
    """The error of a column that is not there: it names the nearest, and all."""
    near = nearest(name, there)
    hint = f": did you mean {near!r}?" if near else "."
    listed = ", ".join(map(repr, there[:NAMES_SHOWN])) or "none"
    more = f" and {len(there) - NAMES_SHOWN} more" if len(there) > NAMES_SHOWN else ""
    said = f"{shown(path)} has no column {name!r}{hint} Columns: {listed}{more}"
    return MissingColumnError(said)


def _delimited_rows(
    path: str, found: Iterator[Row | Reject], names: Sequence[str], options: TableOptions
) -> Iterator[Cells | Reject]:
    header = list(options.header)
    places = _places(path, header, names) if header else []
    for row in found:
        if isinstance(row, Reject):
            if not row.where:
                raise file_error(path, row.reason, row.detail)
            yield row
            continue
        if not header:
            header = [name.strip() for name in row.fields]
            places = _places(path, header, names)
            continue
        where = f"line {row.line}"
        raw = "\t".join(row.fields).encode("utf-8", "surrogateescape")
        if len(row.fields) != len(header):
            detail = f"{len(row.fields)} fields, the header has {len(header)}"
            yield Reject("ragged_line", where, detail, snippet(raw))
            continue
        values = tuple(row.fields[place] for place in places)
        bad = _not_unicode(values)
        yield Reject("undecodable", where, bad, snippet(raw)) if bad else Cells(where, values)
    if not header:
        raise TaskFileError(f"{shown(path)} is empty: a first line that names its columns is due")


def _places(path: str, header: list[str], names: Sequence[str]) -> list[int]:
    for name in names:
        if name not in header:
            raise missing_column(path, name, header)
        if header.count(name) > 1:
            raise TaskFileError(f"{shown(path)} has {header.count(name)} columns named {name!r}")
    return [header.index(name) for name in names]


def _not_unicode(values: Sequence[str]) -> str:
    """What is wrong with strings of which some hold surrogates."""
    for value in values:
        try:
            value.encode()
        except UnicodeEncodeError:
            return "not in the encoding of the file, or half of a surrogate pair"
    return ""


def _json_rows(
    path: str, compression: str, names: Sequence[str], options: ReadOptions
) -> Iterator[Cells | Reject]:
    keys: dict[str, None] = {}
    missing = dict.fromkeys(names)
    objects = malformed = 0
    first = ""
    try:
        pieces = text_pieces(path, compression, options)
        for number, line in enumerate(lines(pieces, options.max_record_bytes), start=1):
            where = f"line {number}"
            if line is None:
                yield too_large(where, options)
            elif line.strip():
                value = _json_object(line, where)
                if isinstance(value, Reject):
                    malformed += value.reason == "malformed_json"
                    first = first or f"{where}: {value.detail}: {value.snippet[:80]}"
                    yield value
                    continue
                objects += 1
                if len(keys) < 10 * NAMES_SHOWN:
                    keys.update(dict.fromkeys(value))
                values = tuple(look_up(value, name) for name in names)
                for name, found in zip(names, values, strict=True):
                    if found is not None or name in value:
                        missing.pop(name, None)
                yield Cells(where, values)
    except DamagedFile as damage:
        raise file_error(path, damage.reason, str(damage)) from None
    if malformed and not objects:
        raise TaskFileError(
            f"{shown(path)} is not JSON lines (an object on each line); {first}".rstrip()
        )
    for name in missing if objects else ():
        raise missing_column(path, name, list(keys))


def _json_object(line: bytes, where: str) -> dict[str, Any] | Reject:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Reject("undecodable", where, f"not UTF-8: {error.reason}", snippet(line))
    except (ValueError, RecursionError) as error:
        return Reject("malformed_json", where, str(error), snippet(line))
    if not isinstance(value, dict):
        detail = f"an object is expected on each line, not {json_kind(value)}"
        return Reject("malformed_json", where, detail, snippet(line))
    return value


def json_kind(value: object) -> str:
    """What a person calls the type of a value."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "an integer",
        float: "a number",
    }
    return "null" if value is None else kinds.get(type(value), type(value).__name__)


def _columnar_rows(
    path: str, format: str, compression: str, names: Sequence[str], options: ReadOptions
) -> Iterator[Cells | Reject]:
    row = 0
    try:
        with open_columnar(path, compression, options) as source:
            for batch in _batches(path, format, source, names):
                _require_columns(path, batch.schema, names)
                columns = [field_column(batch, name) for name in names]
                for column in columns:
                    check(column)
                for i, values in enumerate(zip(*map(_values, columns), strict=True)):
                    bad = any(isinstance(value, _Undecodable) for value in values)
                    where = f"row {row + i}"
                    yield Reject("undecodable", where, "not UTF-8") if bad else Cells(where, values)
                row += batch.num_rows
    except DamagedFile as damage:
        raise file_error(path, damage.reason, str(damage)) from None
    except BROKEN as error:
        reason = "damaged" if row else "unreadable"
        raise file_error(path, reason, f"row {row}: {error}") from None


def _batches(path: str, format: str, source: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if format == "arrow":
        for batch in arrow_batches(source):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)
        return
    file = pq.ParquetFile(source)
    _require_columns(path, file.schema_arrow, names)
    yield from file.iter_batches(BATCH_ROWS, columns=list(dict.fromkeys(names)))


def _require_columns(path: str, schema: pa.Schema, names: Sequence[str]) -> None:
    for name in names:
        if find_field(schema, name) is None:
            raise missing_column(path, name, schema.names)


class _Undecodable:
    """Stands for a value whose bytes are not UTF-8."""


def _values(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return _Undecodable()
