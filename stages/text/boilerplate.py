"""Project Gutenberg's headers and footers, taken out of raw texts.

Their wording changed over the years, so single lines are recognised:

- a header ends at `*** START OF THE/THIS PROJECT GUTENBERG EBOOK ... ***` (since about 2003) or at
  `*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver...*END*` (before). Credits right behind it
  ("Produced by ...") go with it; notes of transcribers stay, for they tell of the text.
- a footer begins at `*** END OF THE/THIS PROJECT GUTENBERG EBOOK ... ***`, or at a line such as
  "End of the Project Gutenberg EBook of ..." right before that or at the end of the text.

Ordinary text is never touched: a line must have the exact form, and what is taken out must be short
and hold wording that only these headers and footers have. Where several books follow one another
in a text, each loses its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from stages.text.buffers import text_array, text_buffer
from stages.text.segments import rows_with

MOST_BYTES = 40_000
"""Longest header or footer; the licence with all around it has half of it."""

MOST_LINE = 500
"""Bytes of a line before and behind the project's name: a longer one is no mark."""

MOST_BEFORE = 2_000
"""Bytes that may stand before a header's first mention of the project."""

_MENTIONS = (b"Gutenberg", b"GUTENBERG", b"THE SMALL PRINT!")
_EDITION = rb"PROJECT GUTENBERG(?:'S|\xe2\x80\x99S)? E-?(?:BOOK|TEXT)"
_START = re.compile(rb"\s*\*\*\* ?START OF (?:THE |THIS )?" + _EDITION + rb".*", re.I | re.S)
_END = re.compile(rb"\s*\*\*\* ?END OF (?:THE |THIS )?" + _EDITION + rb".*", re.I | re.S)
_SMALL_PRINT = re.compile(rb"\*END[* ]{1,2}THE SMALL PRINT!.*\*END\*\s*", re.S)
_FAREWELL = re.compile(
    rb"\s*(?:End of|Ende dieses|Fin de|Fin du) (?:the |this )?Proje[ck]t Gutenberg"
    rb"(?:'s|\xe2\x80\x99s| E-?(?:book|text)).*",
    re.I | re.S,
)
_ONLY_IN_HEADERS = re.compile(
    rb"for\s+the\s+use\s+of\s+anyone\s+anywhere|\[e-?(?:book|text) ?\#|small print!"
    rb"|copyright laws are changing",
    re.I,
)
_ONLY_IN_FOOTERS = re.compile(
    rb"Project\s+Gutenberg(?:-tm|\xe2\x84\xa2)|should be named|editions\s+will\s+replace", re.I
)
_BLANK_LINE = rb"(?:\r?\n[ \t]*\r?\n|\r[ \t]*\r)"
_PARAGRAPH_END = rb"(?:" + _BLANK_LINE + rb"|\Z)"
_CREDITS = re.compile(
    rb"\s*(?:Produced by|E-?text prepared by|This e-?(?:text|book) was (?:prepared|produced) by)"
    rb"(?:(?!" + _PARAGRAPH_END + rb").){1,1000}(?=" + _PARAGRAPH_END + rb")",
    re.I | re.S,
)
_REST_OF_PARAGRAPH = re.compile(rb"(?:(?!" + _PARAGRAPH_END + rb").){0,500}", re.S)


@dataclass(frozen=True)
class Stripped:
    """Texts without boilerplate, one a text given, and what was done.

    `counts` holds: boilerplate_documents (texts that changed), boilerplate_bytes (taken out).
    """

    texts: pa.Array
    counts: dict[str, int]


def strip_boilerplate(texts: pa.Array) -> Stripped:
    """Take headers and footers out of raw texts (before lines are joined: `cleaning.clean`).

    Costs a search for the project's name where there is none. The result of a text does not depend
    on its neighbours.

    Raises:
        ValueError: a text is null, or the column is not of strings.
    """
    data, offsets = text_buffer(texts)
    raw = data.tobytes()
    found = {at for mention in _MENTIONS for at in rows_with(raw, mention, offsets)}
    pieces: list[bytes] = []
    lengths = offsets[1:] - offsets[:-1]
    done = changed = 0
    for row in sorted(found):
        start, end = int(offsets[row]), int(offsets[row + 1])
        text = raw[start:end]
        cuts = list(_cuts(text))
        for low, high in cuts:
            pieces.append(raw[done : start + low])
            done = start + high
            lengths[row] -= high - low
        changed += bool(cuts)
    if not changed:
        counts = {"boilerplate_documents": 0, "boilerplate_bytes": 0}
        return Stripped(texts, counts)
    pieces.append(raw[done:])
    joined = np.frombuffer(b"".join(pieces), np.uint8)
    counts = {"boilerplate_documents": changed, "boilerplate_bytes": len(data) - len(joined)}
    return Stripped(text_array(joined, np.concatenate(([0], np.cumsum(lengths)))), counts)


class _Mark(NamedTuple):
    """A line that begins or ends boilerplate."""

    kind: str
    start: int
    end: int


def _marks(text: bytes) -> list[_Mark]:
    found = {}
    for mention in _MENTIONS:
        at = text.find(mention)
        while at >= 0:
            mark = _mark(text, at)
            if mark:
                found[mark.start] = mark
            at = text.find(mention, mark.end if mark else at + 1)
    return sorted(found.values(), key=lambda mark: mark.start)


def _mark(text: bytes, at: int) -> _Mark | None:
    """What the line around `at` is."""
    low = max(0, at - MOST_LINE)
    start = max(text.rfind(b"\n", low, at), text.rfind(b"\r", low, at)) + 1
    end = _line_end(text, at)
    if (low and not start) or end - at >= MOST_LINE:
        return None  # a long line is text
    line = text[start:end]
    if _SMALL_PRINT.fullmatch(line):
        return _Mark("small_print", start, end)
    if _FAREWELL.fullmatch(line):
        return _Mark("farewell", start, end)
    for kind, pattern in (("start", _START), ("end", _END)):
        if pattern.fullmatch(line):
            # A long title goes on over a few lines.
            closed = text.find(b"***", at, end + 300)
            if closed >= end and not re.search(_BLANK_LINE, text[at:closed]):
                end = _line_end(text, closed)
            return _Mark(kind, start, end)
    return None


def _line_end(text: bytes, at: int) -> int:
    """Where the line around `at` ends, or `MOST_LINE` behind `at`."""
    high = min(at + MOST_LINE, len(text))
    ends = (text.find(b"\n", at, high), text.find(b"\r", at, high))
    return min((end for end in ends if end >= 0), default=high)


def _cuts(text: bytes) -> Iterator[tuple[int, int]]:
    """Stretches to take out, in order."""
    marks = _marks(text)
    if not marks:
        return
    done = 0  # the end of the last stretch
    opened = 0  # where a header may have begun
    for i, mark in enumerate(marks):
        if mark.start < done:
            continue
        if mark.kind in ("start", "small_print"):
            if _is_header(text[opened : mark.start]):
                end = _behind_credits(text, mark.end)
                yield done, end
                done = end
            continue
        books = (m.start for m in marks[i + 1 :] if m.kind == "start")
        end = next(books, len(text))
        after = mark.end
        if i + 1 < len(marks) and marks[i + 1].kind == "end" and mark.kind == "farewell":
            behind = _REST_OF_PARAGRAPH.match(text, mark.end)
            assert behind is not None
            if not text[behind.end() : marks[i + 1].start].strip():
                after = marks[i + 1].end
        if _is_footer(text, mark.start, after, end):
            yield mark.start, end
            done, opened = end, mark.start


def _is_header(text: bytes) -> bool:
    """Whether what stands before the line that ends a header is one."""
    mention = min((at for m in _MENTIONS if (at := text.find(m)) >= 0), default=len(text))
    return (
        len(text) <= MOST_BYTES
        and mention <= MOST_BEFORE
        and _ONLY_IN_HEADERS.search(text) is not None
    )


def _is_footer(text: bytes, start: int, after: int, end: int) -> bool:
    """Whether text[start:end], whose first lines end at `after`, is a footer."""
    if end - start > MOST_BYTES:
        return False
    paragraph = _REST_OF_PARAGRAPH.match(text, after)
    assert paragraph is not None
    rest = text[paragraph.end() : end]
    return not rest.strip() or _ONLY_IN_FOOTERS.search(rest[:3_000]) is not None


def _behind_credits(text: bytes, at: int) -> int:
    for _ in range(2):
        credit = _CREDITS.match(text, at)
        at = credit.end() if credit else at
    return at
