"""Records of one file, format by format: each is a document's bytes, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from stages.text.streams import DamagedFile, lines, read_pieces, to_utf8, whole

SNIPPET_BYTES = 200

ID_CHARACTERS = 2000


@dataclass(frozen=True)
class ReadOptions:
    """How records are read.

    Attributes:
        text_field: column or key that holds the text (Parquet, Arrow, CSV, JSON lines). In nested
            data "article.body" is `body` inside `article`; a name that holds the dot wins.
        id_field: column or key of an id, kept as provenance where it exists.
        source_field: column or key of a source, kept as provenance instead of the file's path
            where it exists; "" for none.
        encoding: of text formats; a byte order mark wins over it. "detect": by the content of
            each file.
        batch_bytes: text a batch aims at.
        max_record_bytes: longer records are not read, but counted as too_large; `readers.LARGEST`
            says how long they may be at most.
        start: the first byte to read of a file of lines, where a record begins (of a dump, any).
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
    """A document as it was found.

    Attributes:
        id: unique in its file, if at all.
        text: UTF-8, not checked yet.
        source: where it says that it comes from; None for its file.
    """

    id: str
    text: bytes
    source: str | None = None


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
    """The start of a record as printable text, line ends and tabs as they are."""
    text = raw[:SNIPPET_BYTES].decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def text_pieces(path: str, compression: str, options: ReadOptions) -> Iterator[bytes]:
    """The text of a file, or of the part of it that the options name, in pieces of UTF-8."""
    pieces = read_pieces(path, compression, options.start, options.end)
    return to_utf8(pieces, options.encoding, from_start=options.start == 0)


def text_records(path: str, compression: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """The whole file is one document. Of a damaged file it is what could be read."""
    pieces = text_pieces(path, compression, options)
    text, damage = whole(pieces, options.max_record_bytes)
    found: list[Record | Reject] = []
    if text is None:
        reject = too_large("", options)
        hint = ": if it holds several documents, set corpus.format to how they are set apart"
        found.append(reject._replace(detail=reject.detail + hint))
    elif text or not damage:
        found.append(Record("", text))
    if damage:
        found.append(Reject(damage.reason, "", str(damage)))
    del text
    while found:
        # Not held here while it is worked on.
        yield found.pop(0)


def sentence_records(
    path: str, compression: str, options: ReadOptions
) -> Iterator[Record | Reject]:
    """google-research/bert: a sentence a line, documents set apart by blank lines.

    Newlines between the sentences stay.
    """
    return _blocks(path, compression, options, bytes.strip)


def blank_line_records(
    path: str, compression: str, options: ReadOptions
) -> Iterator[Record | Reject]:
    """Documents set apart by blank lines; their lines stay as they are."""
    return _blocks(path, compression, options, bytes.rstrip)


def _blocks(
    path: str, compression: str, options: ReadOptions, trim: Callable[[bytes], bytes]
) -> Iterator[Record | Reject]:
    pieces = text_pieces(path, compression, options)
    kept: list[bytes] = []
    start = size = 0

    def document() -> Record | Reject:
        if size > options.max_record_bytes:
            return too_large(options.line(start), options)
        return Record(options.line(start), b"\n".join(kept))

    try:
        for number, line in enumerate(lines(pieces, options.max_record_bytes), start=1):
            trimmed = None if line is None else trim(line)
            if trimmed == b"":
                if size:
                    yield document()
                kept, size = [], 0
                continue
            if not size:
                start = number
            size += options.max_record_bytes + 1 if trimmed is None else len(trimmed) + 1
            if trimmed is not None and size <= options.max_record_bytes:
                kept.append(trimmed)
            else:
                kept = []
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
    number = 0
    try:
        # `enumerate` would hold the line after its record is made.
        for line in lines(pieces, options.max_record_bytes):
            number += 1
            if line is None:
                yield too_large(options.line(number), options)
            elif line.strip():
                found = [_json_record(line, options.line(number), options)]
                del line
                yield found.pop()
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
    text = look_up(value, options.text_field)
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
    source = look_up(value, options.source_field) if options.source_field else None
    return Record(record_id(look_up(value, options.id_field), where), encoded, source_name(source))


def look_up(value: dict[str, Any], path: str) -> Any:
    """What stands under a dotted path of keys, None for nothing. The longest key wins."""
    if path in value:
        return value[path]
    for outer, rest in dotted_splits(path):
        inner = value.get(outer)
        if isinstance(inner, dict) and (found := look_up(inner, rest)) is not None:
            return found
    return None


def dotted_splits(path: str) -> list[tuple[str, str]]:
    """`path` cut in two at each dot inside it, the longest first part first."""
    dots = [i for i in range(len(path) - 2, 0, -1) if path[i] == "."]
    return [(path[:dot], path[dot + 1 :]) for dot in dots]


def record_id(value: object, where: str) -> str:
    """A record's own id where it is a string or number that can be stored, else its place.

    One of more than `ID_CHARACTERS` is none: ids of a whole shard are held at once.
    """
    if isinstance(value, str) and len(value) > ID_CHARACTERS:
        return where
    if isinstance(value, str) and value:
        return value.encode("utf-8", "backslashreplace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else where


def source_name(value: object) -> str | None:
    """A source that can be stored, None for another or none."""
    return record_id(value, "") or None


def too_large(where: str, options: ReadOptions) -> Reject:
    """A record that was not read for its size."""
    return Reject("too_large", where, f"longer than {options.max_record_bytes} bytes")
