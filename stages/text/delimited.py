"""Records of CSV and TSV files: a row each, its text in a column that the header names."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stages.text.records import (
    ReadOptions,
    Record,
    Reject,
    record_id,
    snippet,
    source_name,
    too_large,
)
from stages.text.streams import DamagedFile, lines, read_pieces, to_utf8


def csv_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of a CSV file (RFC 4180: quotes around fields, doubled inside, may hold line ends).

    Fields are set apart by commas; by semicolons or tabs where the header holds these and no
    comma. A row that is not well formed, or has more or fewer fields than the header, costs
    itself: after a quote that nothing closes, reading goes on at the next line.
    """
    return _records(csv_rows(path, compression, options), options)


def tsv_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of a TSV file, written with quotes as in CSV or without any.

    A line with as many fields as the header is a row as it stands and quotes in it are text, but
    for fields that are quoted as a whole, and for a last field whose quote is closed in a later
    line, before any tab or with fewer rows than other lines on the way.
    """
    return _records(tsv_rows(path, compression, options), options)


class Row(NamedTuple):
    """Fields as they stand in a file, as many as there are; the first row is the header.

    Attributes:
        line: the row's first line, from 1.
        fields: bytes that are not UTF-8 are surrogate escapes.
    """

    line: int
    fields: list[str]


def csv_rows(path: str, compression: str, options: ReadOptions) -> Iterator[Row | Reject]:
    """All rows of a CSV file, as `csv_records` finds them."""
    source = _Lines(path, compression, options)
    reader = csv.reader(source, delimiter=_delimiter(source), strict=True)
    return _rows(source, options, lambda width: next(reader))


def tsv_rows(path: str, compression: str, options: ReadOptions) -> Iterator[Row | Reject]:
    """All rows of a TSV file, as `tsv_records` finds them."""
    source = _Lines(path, compression, options)
    reader = csv.reader(source, delimiter="\t", strict=True)
    return _rows(source, options, lambda width: _next_tabbed(source, reader, width))


def plain_tsv_rows(path: str, compression: str, options: ReadOptions) -> Iterator[Row | Reject]:
    """All rows of a TSV file without quoting: each line is a row, and quotes in it are text."""
    source = _Lines(path, compression, options)

    def next_row(width: int) -> list[str]:
        line = next(source).removesuffix("\n").removesuffix("\r")
        return line.split("\t") if line else []

    return _rows(source, options, next_row)


class _Columns(NamedTuple):
    """Positions of the columns that are read."""

    names: list[str]
    text: int | None
    id: int | None
    source: int | None


class _Lines:
    """Lines of a file as csv.reader wants them, which can be given back."""

    def __init__(self, path: str, compression: str, options: ReadOptions) -> None:
        pieces = to_utf8(read_pieces(path, compression), options.encoding)
        self._lines = enumerate(lines(pieces, options.max_record_bytes), start=1)
        self._limit = options.max_record_bytes
        self._again: deque[tuple[int, str | None]] = deque()
        self._bytes = 0
        self.taken: list[tuple[int, str | None]] = []
        self.damage: DamagedFile | None = None

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        """The next line with its end, added to `taken`.

        Raises:
            csv.Error: the row, or this line alone, is too large.
        """
        item = self._again.popleft() if self._again else self._read()
        self.taken.append(item)
        line = item[1]
        self._bytes += self._limit + 1 if line is None else len(line)
        if line is None or self._bytes > self._limit:
            raise csv.Error(f"longer than {self._limit} bytes")
        return line

    def _read(self) -> tuple[int, str | None]:
        try:
            number, line = next(self._lines)
        except DamagedFile as damage:
            self.damage = damage
            raise StopIteration from None
        # Bytes that are not UTF-8 come through as they are: only their row is lost.
        return number, None if line is None else line.decode("utf-8", "surrogateescape") + "\n"

    def begin(self) -> None:
        """A new row begins at the next line."""
        self.taken, self._bytes = [], 0

    def give_up(self, error: csv.Error, options: ReadOptions) -> Reject:
        """The first line of this row is lost; reading goes on at the next."""
        number, line = self.taken[0]
        self.give_back(1)
        if line is None:
            return too_large(f"line {number}", options)
        return Reject("malformed_csv", f"line {number}", str(error), snippet(_raw(line)))

    def give_back(self, kept: int) -> None:
        """All but the first `kept` lines of this row are to be read again."""
        self._again.extendleft(reversed(self.taken[kept:]))
        del self.taken[kept:]


def _delimiter(source: _Lines) -> str:
    try:
        header = next(source, "")
    except csv.Error:
        header = ""
    source.give_back(0)
    outside = "".join(header.split('"')[::2])
    found = [mark for mark in ",;\t" if mark in outside]
    return found[0] if found else ","


def _rows(
    source: _Lines, options: ReadOptions, next_row: Callable[[int], list[str]]
) -> Iterator[Row | Reject]:
    # This limit is of the process, and its default is less than many a document: 128 KiB a field.
    csv.field_size_limit(max(csv.field_size_limit(), options.max_record_bytes))
    width = 0
    while True:
        source.begin()
        try:
            fields = next_row(width)
        except StopIteration:
            break
        except csv.Error as error:
            yield source.give_up(error, options)
            if not width:
                detail = "its first line is no header: what follows was not read"
                yield Reject("unreadable", "", detail)
                return
            continue
        if fields:
            width = width or len(fields)
            yield Row(source.taken[0][0], fields)
    if source.damage:
        yield Reject(source.damage.reason, "", str(source.damage))


def _records(rows: Iterator[Row | Reject], options: ReadOptions) -> Iterator[Record | Reject]:
    columns: _Columns | None = None
    for row in rows:
        if isinstance(row, Reject):
            yield row
        elif columns is None:
            columns = _columns(row.fields, options)
        else:
            yield _record(row.fields, f"line {row.line}", columns, options)


def _columns(header: list[str], options: ReadOptions) -> _Columns:
    names = [name.strip() for name in header]
    wanted = (options.text_field, options.id_field, options.source_field)
    return _Columns(names, *(names.index(name) if name in names else None for name in wanted))


def _record(
    fields: list[str], where: str, columns: _Columns, options: ReadOptions
) -> Record | Reject:
    if len(fields) != len(columns.names):
        detail = f"{len(fields)} fields, the header has {len(columns.names)}"
        return Reject("malformed_csv", where, detail, snippet(_raw(" ".join(fields))))
    if columns.text is None:
        names = ", ".join(columns.names)
        detail = f"no column {options.text_field!r} (columns: {names}): set corpus.text_field"
        return Reject("missing_field", where, detail[:500])
    own = where if columns.id is None else record_id(fields[columns.id], where)
    source = None if columns.source is None else source_name(fields[columns.source])
    return Record(own, _raw(fields[columns.text]), source)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _next_tabbed(source: _Lines, reader: Iterator[list[str]], width: int) -> list[str]:
    """The next row; `width` is the number of fields, 0 before it is known."""
    line = next(source).removesuffix("\n").removesuffix("\r")
    fields = line.split("\t") if line else []
    if '"' not in line:
        return fields
    complete = not width or len(fields) == width
    if complete and not _is_open(fields[-1]):
        return [_unquoted(field) for field in fields]
    source.give_back(0)
    source.begin()
    try:
        row = next(reader)
    except csv.Error:
        row = []
    if len(row) == width and not (complete and "\t" in row[-1] and _are_rows(source, width)):
        return row
    source.give_back(1)
    return [_unquoted(field) for field in fields]


def _are_rows(source: _Lines, width: int) -> bool:
    """Whether at least half of the lines behind this row's first would be rows by themselves."""
    tabs = [line.count("\t") for _, line in source.taken[1:] if line is not None]
    return 2 * tabs.count(width - 1) >= len(tabs)


def _is_open(field: str) -> bool:
    return field.startswith('"') and field.count('"') % 2 == 1


def _unquoted(field: str) -> str:
    if len(field) < 2 or not (field.startswith('"') and field.endswith('"')):
        return field
    inner = field[1:-1]
    return field if '"' in inner.replace('""', "") else inner.replace('""', '"')
