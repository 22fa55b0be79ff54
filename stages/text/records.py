"""Records of one file, format by format: each is a document's bytes, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stages.text.streams import DamagedFile, lines, read_pieces, to_utf8, whole

SNIPPET_BYTES = 200


@dataclass(frozen=True)
class ReadOptions:
    """How records are read.

    Attributes:
        text_field: column or key that holds the text (Parquet, JSON lines).
        id_field: column or key of an id, kept as provenance where it exists.
        source_field: column or key of a source, kept as provenance instead of the file's path
            where it exists; "" for none.
        encoding: of text formats; a byte order mark wins over it.
        batch_bytes: text a batch aims at.
        max_record_bytes: longer records are not read, but counted as too_large.
        start: the first byte to read of a file of lines, where a record begins.
        end: the byte after the last one to read; None: to the end.
    """

    text_field: str = "text"
    id_field: str = "id"
    source_field: str = ""
    encoding: str = "utf-8"
    batch_bytes: int = 4_000_000
    max_record_bytes: int = 256_000_000
    start: int = 0
    end: int | None = None

    def line(self, number: int) -> str:
        """The place of a line, counted from 1 at `start`."""
        return f"line {number}" + (f" after byte {self.start}" if self.start else "")


class Record(NamedTuple):
    """A document as it was found: UTF-8, not checked yet. `id` is unique in its file, if at all."""

    id: str
    text: bytes


class Reject(NamedTuple):
    """Something in a file that is no document.

    Attributes:
        reason: what it is counted under.
        where: place in the file ("line 12", "row 3", "" for all of it).
        detail: what is wrong, for a person.
        snippet: the start of what was found.
    """

    reason: str
    where: str
    detail: str
    snippet: str = ""


def snippet(raw: bytes) -> str:
    """The start of a record as printable text."""
    return raw[:SNIPPET_BYTES].decode("utf-8", "backslashreplace")


def text_pieces(path: str, compression: str, options: ReadOptions) -> Iterator[bytes]:
    """The text of a file, or of the part of it that the options name, in pieces of UTF-8."""
    pieces = read_pieces(path, compression, options.start, options.end)
    return to_utf8(pieces, options.encoding, from_start=options.start == 0)


def text_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """The whole file is one document. Of a damaged file it is what could be read."""
    pieces = text_pieces(path, compression, options)
    text, damage = whole(pieces, options.max_record_bytes)
    if text is None:
        yield _too_large("", options)
    elif text or not damage:
        yield Record("", text)
    if damage:
        yield Reject(damage.reason, "", str(damage))


def sentence_records(
    path: str, compression: str, options: ReadOptions
) -> Iterator[Record | Reject]:
    """google-research/bert: a sentence a line, documents set apart by blank lines.

    Newlines between the sentences stay.
    """
    pieces = text_pieces(path, compression, options)
    sentences: list[bytes] = []
    start = size = 0

    def document() -> Record | Reject:
        if size > options.max_record_bytes:
            return _too_large(options.line(start), options)
        return Record(options.line(start), b"\n".join(sentences))

    try:
        for number, line in enumerate(lines(pieces, options.max_record_bytes), start=1):
            sentence = None if line is None else line.strip()
            if sentence == b"":
                if size:
                    yield document()
                sentences, size = [], 0
                continue
            if not size:
                start = number
            size += options.max_record_bytes + 1 if sentence is None else len(sentence) + 1
            if sentence is not None and size <= options.max_record_bytes:
                sentences.append(sentence)
            else:
                sentences = []
    except DamagedFile as damage:
        if size:
            yield document()
        yield Reject(damage.reason, "", str(damage))
        return
    if size:
        yield document()


def json_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """JSON lines: an object a line. A bad line costs itself; blank lines are no records."""
    pieces = text_pieces(path, compression, options)
    try:
        for number, line in enumerate(lines(pieces, options.max_record_bytes), start=1):
            if line is None:
                yield _too_large(options.line(number), options)
            elif line.strip():
                yield _json_record(line, options.line(number), options)
    except DamagedFile as damage:
        yield Reject(damage.reason, "", str(damage))


def _json_record(line: bytes, where: str, options: ReadOptions) -> Record | Reject:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Reject("undecodable", where, f"not UTF-8: {error.reason}", snippet(line))
    except (ValueError, RecursionError) as error:
        return Reject("malformed_json", where, str(error), snippet(line))
    if not isinstance(value, dict):
        detail = f"an object is expected on each line, not {type(value).__name__}"
        return Reject("malformed_json", where, detail, snippet(line))
    text = value.get(options.text_field)
    if text is None:
        keys = ", ".join(map(repr, value)) or "none"
        detail = f"no text under {options.text_field!r} (keys: {keys}): set corpus.text_field"
        return Reject("missing_field", where, detail[:500], snippet(line))
    if not isinstance(text, str):
        detail = f"{options.text_field!r} holds {type(text).__name__}, not a string"
        return Reject("not_text", where, detail, snippet(line))
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return Reject("undecodable", where, "half of a surrogate pair (\\ud800...)", snippet(line))
    return Record(_id(value.get(options.id_field), where), encoded)


def parquet_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of a Parquet file, batch by batch. A compressed file is unpacked in memory first."""
    source: Any = path
    if compression:
        content, damage = whole(read_pieces(path, compression), 8 * options.max_record_bytes)
        if damage or content is None:
            yield Reject(damage.reason if damage else "too_large", "", str(damage or "too large"))
            return
        source = pa.BufferReader(content)
    row = 0
    try:
        with pq.ParquetFile(source) as file:
            names = file.schema_arrow.names
            if options.text_field not in names:
                detail = (
                    f"no column {options.text_field!r} (columns: {', '.join(names)}): "
                    "set corpus.text_field"
                )
                for row in range(file.metadata.num_rows):
                    yield Reject("missing_field", f"row {row}", detail)
                return
            columns = [n for n in (options.text_field, options.id_field) if n in names]
            for batch in file.iter_batches(_rows_a_batch(file, options), columns=columns):
                yield from _rows(batch, row, options)
                row += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        yield Reject("unreadable" if row == 0 else "damaged", f"row {row}", str(error))


def _rows_a_batch(file: pq.ParquetFile, options: ReadOptions) -> int:
    """Rows that unpack to about a batch, by the densest row group's figures."""
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    dense = max((g.total_byte_size / max(g.num_rows, 1) for g in groups), default=1.0)
    return max(1, min(65_536, int(options.batch_bytes / max(dense, 1.0))))


def _rows(batch: pa.RecordBatch, row: int, options: ReadOptions) -> Iterator[Record | Reject]:
    text = batch[options.text_field]
    if pa.types.is_dictionary(text.type):
        text = text.cast(text.type.value_type)
    is_text = pa.types.is_string(text.type) or pa.types.is_large_string(text.type)
    if not (is_text or pa.types.is_string_view(text.type) or _is_bytes(text.type)):
        for i in range(len(text)):
            detail = f"column {options.text_field!r} holds {text.type}, not strings"
            yield Reject("not_text", f"row {row + i}", detail)
        return
    # As bytes: Parquet does not promise that its strings are UTF-8.
    values = text.cast(pa.large_binary()).to_pylist()
    ids = [None] * len(values)
    if options.id_field in batch.schema.names and options.id_field != options.text_field:
        ids = batch[options.id_field].to_pylist()
    for i, (value, own) in enumerate(zip(values, ids, strict=True), start=row):
        if value is None:
            yield Reject("missing_field", f"row {i}", f"{options.text_field!r} is null")
        elif len(value) > options.max_record_bytes:
            yield _too_large(f"row {i}", options)
        else:
            yield Record(_id(own, f"row {i}"), value)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _id(value: object, where: str) -> str:
    """A record's own id where it is a string or number that can be stored, else its place."""
    if isinstance(value, str) and value:
        return value.encode("utf-8", "backslashreplace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else where


def _too_large(where: str, options: ReadOptions) -> Reject:
    return Reject("too_large", where, f"longer than {options.max_record_bytes} bytes")
