"""Joining hard-wrapped lines, so that a sentence is not cut where a line ends.

A line break inside a block (lines without a blank one between) is taken out, except where it says
something. It stays

- before a line that is indented deeper (a paragraph, definition, quotation or code), unless it goes
  on with a list item;
- after a line indented by four or more when the next is indented less, unless it is the first line
  of a paragraph: the only one indented like this, not at a full stop;
- before a line that starts with a list mark (`- `, `* `, `1. `, `:param x: `, `>>>`, `#`, `|`...),
  and after a line that starts with `>`, `#` or `|`;
- before and after a ruler (`-----`, `=====`);
- after a short line: its successor's first word would have fitted in four fifths of the block's
  widest line, so nobody wrapped there (headings, verse ends, addresses, last lines);
- beside a line wider than 160 columns, which nobody wraps at.

Lines are joined with a space, and with nothing between two characters of scripts written without
spaces (Chinese, Japanese). Blank lines are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes, Flags, Offsets, Positions, Rank, byte_table
from stages.text.runs import NEWLINE, SPACE, Runs

WIDEST_WRAP = 160
FITS = 0.8
DEEP_INDENT = 4

_DIGIT = byte_table(b"0123456789")
_BULLET = byte_table(b"-*+")
_LINE_OF_ITS_OWN = byte_table(b"#|>")
_RULER = byte_table(b"-=~^*_+#.")
_NUMBER_END = byte_table(b".)")
_FULL_STOP = byte_table(b".:!?")
_FIRST_WITHOUT_SPACES = 0xE3
_WITHOUT_SPACES = byte_table(range(_FIRST_WITHOUT_SPACES, 0xEA), b"\xef")
_COLON, _DOT = ord(":"), ord(".")
_MARK = byte_table(b"0123456789-*+#|>=~^_.:\xe2")

_ONES, _HIGHS, _SPACES = (np.uint64(0x0101010101010101 * byte) for byte in (1, 0x80, SPACE))
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Lines:
    """Lines that are not blank, of all texts.

    Attributes:
        first, last: [n] positions of the first and last byte that is not white space.
        indent: [n] columns before it.
        opens: [n] whether a blank line or the text's beginning stands before.
        before: [breaks] the line before each break; the next line stands behind it.
    """

    first: Positions
    last: Positions
    indent: Positions
    opens: Flags
    before: Positions


def wrapped_breaks(
    data: Bytes, offsets: Offsets, runs: Runs, inside: Flags
) -> tuple[Positions, Flags]:
    """The line breaks that are to be taken out.

    Args:
        data: UTF-8 without control characters but newlines; carriage returns have no width.
        offsets: n + 1 offsets of the texts.
        runs: those of the column.
        inside: `runs.inside()`.

    Returns:
        Indices of runs, rising; and of each, whether not even a space stands in its place.
    """
    breaks = np.flatnonzero(inside & (runs.newlines > 0))
    # What stands behind the data lets the look-ups below run over its end.
    padded = np.append(data, np.zeros(8, np.uint8))
    # A carriage return before a newline is neither inside a line nor before one.
    fillers = runs.fillers[padded[runs.fillers + 1] != NEWLINE]
    lines = _lines(offsets, runs, breaks, fillers)
    single = runs.newlines[breaks] == 1
    breaks, before = breaks[single], lines.before[single]
    if len(breaks):
        goes = ~_stay(padded, lines, before, _Columns(data, fillers))
        breaks, before = breaks[goes], before[goes]
    closed = np.zeros(len(breaks), np.bool_)
    if len(breaks) and int(data.max()) >= _FIRST_WITHOUT_SPACES:
        closed = _without_spaces(padded, lines.last[before], lines.first[before + 1])
    return breaks, closed


def _lines(offsets: Offsets, runs: Runs, breaks: Positions, fillers: Positions) -> _Lines:
    start, end = offsets[:-1][offsets[1:] > offsets[:-1]], offsets[1:][offsets[1:] > offsets[:-1]]
    first, line, last = start.copy(), start.copy(), end - 1
    headed = np.searchsorted(start, runs.start[runs.heads])
    first[headed] = runs.end[runs.heads]
    line[headed] = runs.line[runs.heads]
    last[np.searchsorted(end, runs.end[runs.tails])] = runs.start[runs.tails] - 1
    filled = first <= last
    first, line, last = first[filled], line[filled], last[filled]

    # Each text has a line more than it has breaks.
    break_at = runs.start[breaks]
    before = np.arange(len(breaks)) + np.searchsorted(first, break_at) - 1
    head = np.arange(len(first)) + np.searchsorted(break_at, first)
    n = len(first) + len(breaks)
    firsts, lasts, starts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    firsts[head], firsts[before + 1] = first, runs.end[breaks]
    lasts[np.append(head[1:], n)[: len(head)] - 1], lasts[before] = last, break_at - 1
    starts[head], starts[before + 1] = line, runs.line[breaks]
    indent = firsts - starts
    if len(fillers):
        indent -= np.searchsorted(fillers, firsts) - np.searchsorted(fillers, starts)
    opens = np.ones(n, np.bool_)
    opens[before + 1] = runs.newlines[breaks] > 1
    return _Lines(firsts, lasts, indent, opens, before)


class _Columns:
    """Display columns between positions: East Asian characters and emoji are two wide."""

    def __init__(self, data: Bytes, fillers: Positions) -> None:
        highest = int(data.max())
        self._none = self._wide = None
        if highest >= 0x80 or len(fillers):
            none = data.view(np.int8) < -64  # continuation bytes
            none[fillers] = True
            self._none = Rank(none)
        if highest >= 0xE3:
            self._wide = Rank((data >= 0xE3) & (data != 0xEE))

    def __call__(self, start: Positions, end: Positions) -> Positions:
        """Columns of [start, end)."""
        width = end - start
        if self._none is not None:
            width = width - self._none(end) + self._none(start)
        if self._wide is not None:
            width = width + self._wide(end) - self._wide(start)
        return width


def _stay(data: Bytes, lines: _Lines, before: Positions, columns: _Columns) -> Flags:
    """Of each break, by the line before it: whether it stays."""
    first, last, indent, behind = lines.first, lines.last, lines.indent, before + 1
    width = columns(first, last + 1)
    blocks = np.flatnonzero(lines.opens)
    widest = np.maximum.reduceat(width, blocks)
    fits = FITS * np.repeat(widest, np.diff(np.append(blocks, len(width))))

    item, listed, of_its_own, alone = _marks(data, lines, width, columns)
    alone |= width > WIDEST_WRAP
    more, less = indent[behind] > indent[before], indent[behind] < indent[before]
    stays = alone[before] | alone[behind] | listed[behind] | of_its_own[before]
    stays |= more & ~item[before]
    # Whether a line opens a paragraph matters only where one indented less follows.
    deep = np.flatnonzero(less & (indent[before] >= DEEP_INDENT))
    line = before[deep]
    opens = lines.opens[line] | (indent[np.maximum(line - 1, 0)] < indent[line])
    stays[deep] |= ~opens | _FULL_STOP[data[last[line]]]
    # A space and a word of one column at least.
    short = np.flatnonzero(~stays & ((width + 2 <= fits)[before]))
    start, end = first[behind[short]], last[behind[short]]
    word = columns(start, _first_space(data, start, end))
    # Where there are no spaces a line can be wrapped at any character.
    word = np.where(_WITHOUT_SPACES[data[start]], np.minimum(word, 2), word)
    stays[short] = width[before[short]] + 1 + word <= fits[before[short]]
    return stays


def _marks(
    data: Bytes, lines: _Lines, width: Positions, columns: _Columns
) -> tuple[Flags, Flags, Flags, Flags]:
    """Of each line: is it an item, listed (items too), a line of its own, a ruler."""
    item, listed, of_its_own, ruler = np.zeros((4, len(width)), np.bool_)
    marked = np.flatnonzero(_MARK[data[lines.first]])
    first, last = lines.first[marked], lines.last[marked]
    # As if spaces followed the line: a mark may stand alone.
    b0, b1, b2, b3 = (np.where(first + i <= last, data[first + i], SPACE) for i in range(4))
    item[marked] = (
        (_BULLET[b0] & (b1 == SPACE))
        | ((b0 == 0xE2) & (b1 == 0x80) & (b2 == 0xA2))
        | (_DIGIT[b0] & _NUMBER_END[b1] & (b2 == SPACE))
        | (_DIGIT[b0] & _DIGIT[b1] & _NUMBER_END[b2] & (b3 == SPACE))
        | _field_names(data, first, last)
    )
    of_its_own[marked] = _LINE_OF_ITS_OWN[b0]
    listed[marked] = item[marked] | of_its_own[marked] | ((b0 == _DOT) & (b1 == _DOT))
    may = (b0 == b1) & (data[last] == b0) & _RULER[b0] & (width[marked] <= WIDEST_WRAP)
    marked, first, last = marked[may], first[may], last[may]
    ruler[marked] = _first_space(data, first, last) > last
    return item, listed, of_its_own, ruler


def _first_space(data: Bytes, first: Positions, last: Positions) -> Positions:
    """Where the first space behind each `first` is, `last` + 1 if there is none before.

    Args:
        data: eight bytes longer than what is looked at.
    """
    # Eight bytes at a time, without a loop over them (Mycroft 1987).
    words: _Words = np.ndarray((len(data) - 7,), "<u8", data.data, 0, (1,))
    found = last + 1
    rows, at = np.arange(len(first)), first
    while len(rows):
        other = words[at] ^ _SPACES
        zeros = (other - _ONES) & ~other & _HIGHS
        hit = zeros != 0
        spaces = at + (np.bitwise_count((zeros - np.uint64(1)) & ~zeros) >> 3)
        found[rows[hit]] = np.minimum(found[rows[hit]], spaces[hit])
        more = ~hit & (at + 8 <= last[rows])
        rows, at = rows[more], at[more] + 8
    return found


def _field_names(data: Bytes, first: Positions, last: Positions) -> Flags:
    """Whether each line starts with a field name (`:param x: `); a role (":math:`x`") is text."""
    fields = data[first] == _COLON
    if fields.any():
        colons = np.append(np.flatnonzero(data == _COLON), len(data) - 1)
        second = colons[np.minimum(np.searchsorted(colons, first) + 1, len(colons) - 1)]
        following = data[np.minimum(second + 1, len(data) - 1)]
        fields &= (second == last) | ((second < last) & (following == SPACE))
    return np.asarray(fields)


def _without_spaces(data: Bytes, last: Positions, first: Positions) -> Flags:
    """Whether the characters at the two sides of a break are written without spaces.

    Quotation marks, dashes and dots (U+2014 to U+2026) go with the character on the other side.
    """
    lead = last.copy()
    for _ in range(3):
        lead -= data.view(np.int8)[lead] < -64  # a continuation byte
    sides = []
    for at in (lead, first):
        mark = (data[at] == 0xE2) & (data[at + 1] == 0x80)
        mark &= (data[at + 2] >= 0x94) & (data[at + 2] <= 0xA6)
        sides.append((_WITHOUT_SPACES[data[at]], mark))
    (before, mark_before), (after, mark_after) = sides
    closed: Flags = (before & (after | mark_after)) | (mark_before & after)
    return closed
