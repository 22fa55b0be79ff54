"""CoNLL files: a word and its tags a line, blank lines between sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stages.text.listing import file_format, shown
from stages.text.records import Reject, snippet, text_pieces
from stages.text.streams import DamagedFile, lines
from stages.text.tasks.rows import TaskFileError, TokenRow
from stages.text.tasks.tables import MAX_RECORD_BYTES, file_error, read_options

DOCUMENT_START = "-DOCSTART-"

_BLANKS = re.compile("[ \t]+")
# CoNLL-U: a word written as several, and a word that is not written.
_NO_WORD = re.compile("[0-9]+[-.][0-9]+")


@dataclass(frozen=True)
class ConllColumns:
    """Columns are counted from 0, from the end where negative.

    Attributes:
        words: column of words; None: the first one that is no running number of the words.
        tags: column of tags; None where they are not read.
        separator: "detect": tabs where most lines hold one, else any blanks.
        comment: what comment lines begin with; "" where there are none. Such a line is a word where
            it has all columns, and stands inside a sentence or its tag is one of other lines.
    """

    words: int | None = None
    tags: int | None = -1
    separator: Literal["detect", "tab", "space"] = "detect"
    comment: str = "#"


@dataclass(frozen=True)
class _Line:
    number: int
    fields: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True)
class _Layout:
    """What all lines have in common."""

    width: int
    words: int
    tags: int | None
    known: frozenset[str]


def conll_rows(
    path: str, columns: ConllColumns, encoding: str = "utf-8"
) -> Iterator[TokenRow | Reject]:
    """Sentences of a file; one with a line that is no word with its tag costs itself.

    Reasons: missing_tag, ragged_line, empty_word, undecodable, too_large.

    Args:
        encoding: a byte order mark wins over it; "detect": by content.

    Raises:
        TaskFileError: the file is not there or damaged, or lacks a column.
    """
    blocks = _blocks(path, columns, encoding)
    first = next((line for block in blocks for line in block), None)
    if first is None:
        raise TaskFileError(f"{shown(path)} is empty: a word and its tag a line are expected")
    layout = _layout(path, blocks, columns)
    for block in blocks:
        sentence: list[_Line] = []
        for line in block:
            if _is_document_start(line, layout):
                if sentence:
                    yield _sentence(sentence, layout)
                sentence = []
            elif not _is_aside(line, layout, columns, bool(sentence)):
                sentence.append(line)
        if sentence:
            yield _sentence(sentence, layout)


def _blocks(path: str, columns: ConllColumns, encoding: str) -> list[list[_Line]]:
    """Lines between blank ones, cut into fields."""
    compression = file_format(path)[1]
    options = read_options(path, compression, encoding)
    blocks: list[list[tuple[int, str | None]]] = [[]]
    tabs = total = 0
    try:
        pieces = text_pieces(path, compression, options)
        for number, raw in enumerate(lines(pieces, options.max_record_bytes), start=1):
            # Bytes that are not UTF-8 come through as they are: only their sentence is lost.
            text = None if raw is None else raw.decode("utf-8", "surrogateescape").rstrip("\r")
            if text is not None and not text.strip(" \t"):
                blocks.append([])
                continue
            blocks[-1].append((number, text))
            if text and not (columns.comment and text.startswith(columns.comment)):
                tabs += "\t" in text
                total += 1
    except DamagedFile as damage:
        raise file_error(path, damage.reason, str(damage)) from None
    tabbed = columns.separator == "tab" or (columns.separator == "detect" and 2 * tabs > total)
    return [[_line(number, text, tabbed) for number, text in block] for block in blocks if block]


def _line(number: int, text: str | None, tabbed: bool) -> _Line:
    if text is None:
        return _Line(number, (), "too_large")
    fields = text.split("\t") if tabbed else _BLANKS.split(text.strip(" \t"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return _Line(number, tuple(fields), "undecodable")
    return _Line(number, tuple(fields))


def _layout(path: str, blocks: list[list[_Line]], columns: ConllColumns) -> _Layout:
    plain = [
        [line for line in block if not _may_be_comment(line, columns) and not _starts(line)]
        for block in blocks
    ]
    widths = Counter(len(line.fields) for block in plain for line in block)
    width = widths.most_common(1)[0][0] if widths else max(len(b[0].fields) for b in blocks)
    least = 2 if columns.tags is not None else 1
    words = columns.words
    if words is None:
        numbered = sum(map(_is_numbered, plain))
        words = int(width > least and 2 * numbered > sum(map(bool, plain)))
    places = []
    for what, wanted in (("words", words), ("tags", columns.tags)):
        place = wanted if wanted is None or wanted >= 0 else width + wanted
        if place is not None and not 0 <= place < width:
            raise TaskFileError(
                f"{shown(path)} has no column {wanted} for {what}: most of its lines have "
                f"{width} (counted from 0, or from -1 at the end)"
            )
        places.append(place)
    if places[0] == places[1]:
        raise TaskFileError(
            f"{shown(path)}: column {places[0]} of {width} cannot hold both words and tags"
        )
    tags = places[1]
    known = frozenset(
        line.fields[tags].strip()
        for block in plain
        for line in block
        if tags is not None and len(line.fields) == width
    )
    return _Layout(width, places[0] or 0, tags, known)


def _may_be_comment(line: _Line, columns: ConllColumns) -> bool:
    return bool(columns.comment and line.fields and line.fields[0].startswith(columns.comment))


def _starts(line: _Line) -> bool:
    return line.fields[:1] == (DOCUMENT_START,)


def _is_numbered(block: list[_Line]) -> bool:
    """Whether the first column counts the words."""
    first = [line.fields[0] for line in block if line.fields]
    numbers = [field for field in first if not _NO_WORD.fullmatch(field)]
    return bool(numbers) and numbers == [str(i) for i in range(1, len(numbers) + 1)]


def _is_document_start(line: _Line, layout: _Layout) -> bool:
    return _starts(line) or (
        len(line.fields) == layout.width and line.fields[layout.words] == DOCUMENT_START
    )


def _is_aside(line: _Line, layout: _Layout, columns: ConllColumns, inside: bool) -> bool:
    """Whether a line is a comment, or stands for no word."""
    if layout.words > 0 and line.fields and _NO_WORD.fullmatch(line.fields[0]):
        return True
    if not _may_be_comment(line, columns):
        return False
    # A number of a word is no comment mark.
    if len(line.fields) != layout.width or layout.words > 0:
        return True
    return not (inside or layout.tags is None or line.fields[layout.tags].strip() in layout.known)


def _sentence(sentence: list[_Line], layout: _Layout) -> TokenRow | Reject:
    for line in sentence:
        if problem := _problem(line, layout):
            raw = "\t".join(line.fields).encode("utf-8", "surrogateescape")
            return Reject(problem[0], f"line {line.number}", problem[1], snippet(raw))
    words = tuple(line.fields[layout.words] for line in sentence)
    tags = layout.tags
    own = None if tags is None else tuple(line.fields[tags].strip() for line in sentence)
    return TokenRow(f"line {sentence[0].number}", words, own)


def _problem(line: _Line, layout: _Layout) -> tuple[str, str] | None:
    if line.problem == "too_large":
        return "too_large", f"longer than {MAX_RECORD_BYTES} bytes"
    if line.problem:
        return "undecodable", "not in the encoding of the file"
    found, tags = len(line.fields), layout.tags
    if tags is not None and found < layout.width and found <= max(tags, layout.words):
        return "missing_tag", f"a word without a tag: {found} columns, others have {layout.width}"
    if found != layout.width:
        return "ragged_line", f"{found} columns, others have {layout.width}"
    if tags is not None and not line.fields[tags].strip():
        return "missing_tag", "a word without a tag"
    if not line.fields[layout.words].strip():
        return "empty_word", "a tag without a word"
    return None
