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

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes, Offsets

WIDEST_WRAP = 160
FITS = 0.8
DEEP_INDENT = 4

Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]

_SPACE, _NEWLINE, _DELETED = 32, 10, 0


def _bytes_of(*groups: bytes | range) -> Flags:
    table = np.zeros(256, np.bool_)
    for group in groups:
        table[list(group)] = True
    return table


_DIGIT = _bytes_of(b"0123456789")
_BULLET = _bytes_of(b"-*+")
_LINE_OF_ITS_OWN = _bytes_of(b"#|>")
_RULER = _bytes_of(b"-=~^*_+#.")
_NUMBER_END = _bytes_of(b".)")
_FULL_STOP = _bytes_of(b".:!?")
_WITHOUT_SPACES = _bytes_of(range(0xE3, 0xEA), b"\xef")
_CONTINUATION = _bytes_of(range(0x80, 0xC0))
# Display columns by lead byte: East Asian characters and emoji are two wide.
_COLUMNS = np.where(_CONTINUATION, 0, 1).astype(np.int8)
_COLUMNS[0xE3:0xEE] = 2
_COLUMNS[0xEF:0xF8] = 2


def join_wrapped_lines(data: Bytes, offsets: Offsets) -> int:
    """Join the hard-wrapped lines of each text in place.

    Args:
        data: UTF-8 without control characters but newlines; written to. A newline becomes a space,
            or 0 where nothing is to stand.
        offsets: n + 1 offsets of the texts.

    Returns:
        How many lines were joined to the one before.
    """
    newlines = np.flatnonzero(data == _NEWLINE)
    if not len(newlines):
        return 0
    # Lines end at newlines and at the ends of texts; a text's end comes before a newline there,
    # which starts the next text.
    ends = np.concatenate((offsets[1:], newlines))
    order = np.argsort(ends, kind="stable")
    ends = ends[order]
    at_newline = order >= len(offsets) - 1
    starts = np.concatenate(([0], ends[:-1] + at_newline[:-1]))

    # A sentinel behind the data lets the look-ups below run over its end.
    padded = np.append(data, np.zeros(4, np.uint8))
    solid = np.append(np.flatnonzero(data != _SPACE), len(data))
    first = solid[np.searchsorted(solid, starts)]
    last = solid[np.searchsorted(solid, ends) - 1]
    blank = first >= ends
    first = np.where(blank, starts, first)
    last = np.where(blank, starts, last)

    keep = _breaks_that_stay(padded, starts, first, last, blank, at_newline)
    joined = np.flatnonzero(at_newline[:-1] & ~keep)
    closed = _without_spaces(padded, last[joined], first[joined + 1])
    data[ends[joined]] = np.where(closed, _DELETED, _SPACE)
    # The indentation behind a break that leaves nothing has to go too.
    for line in joined[closed & (first[joined + 1] > starts[joined + 1])]:
        data[starts[line + 1] : first[line + 1]] = _DELETED
    for line in joined[closed & (last[joined] + 1 < ends[joined])]:
        tail = data[last[line] : ends[line]]
        tail[tail == _SPACE] = _DELETED
    return len(joined)


def _breaks_that_stay(
    data: Bytes,
    starts: Positions,
    first: Positions,
    last: Positions,
    blank: Flags,
    at_newline: Flags,
) -> Flags:
    """For each line but the last of all: whether the break behind it stays."""
    indent = first - starts
    width, word = _widths(data, first, last, blank)

    text_start = np.append(True, ~at_newline[:-1])
    block_starts = np.flatnonzero(blank | text_start)
    widest = np.maximum.reduceat(width, block_starts)
    block_width = np.repeat(widest, np.diff(np.append(block_starts, len(starts))))

    # As if spaces followed the line: a mark may stand alone.
    b0, b1, b2, b3 = (np.where(first + i <= last, data[first + i], _SPACE) for i in range(4))
    item = (
        (_BULLET[b0] & (b1 == _SPACE))
        | ((b0 == 0xE2) & (b1 == 0x80) & (b2 == 0xA2))
        | (_DIGIT[b0] & _NUMBER_END[b1] & (b2 == _SPACE))
        | (_DIGIT[b0] & _DIGIT[b1] & _NUMBER_END[b2] & (b3 == _SPACE))
        | _field_names(data, first, last)
    )
    listed = item | _LINE_OF_ITS_OWN[b0] | ((b0 == ord(".")) & (b1 == ord(".")))
    ruler = _RULER[b0] & (b0 == b1) & (data[last] == b0) & (word == width)
    short = width[:-1] + 1 + word[1:] <= FITS * block_width[:-1]
    wide = width > WIDEST_WRAP
    deeper = (indent[1:] > indent[:-1]) & ~item[:-1]
    opens = np.append(True, (indent[:-1] < indent[1:]) | blank[:-1]) | text_start
    opens &= ~_FULL_STOP[data[last]]
    left_block = (indent[:-1] >= DEEP_INDENT) & (indent[1:] < indent[:-1]) & ~opens[:-1]
    alone = blank | ruler | wide
    stays: Flags = (
        alone[:-1]
        | alone[1:]
        | listed[1:]
        | _LINE_OF_ITS_OWN[b0][:-1]
        | short
        | deeper
        | left_block
    )
    return stays


def _field_names(data: Bytes, first: Positions, last: Positions) -> Flags:
    """Whether each line starts with a field name (`:param x: `); a role (":math:`x`") is text."""
    fields = data[first] == ord(":")
    if fields.any():
        colons = np.append(np.flatnonzero(data == ord(":")), len(data) - 1)
        second = colons[np.minimum(np.searchsorted(colons, first) + 1, len(colons) - 1)]
        following = data[np.minimum(second + 1, len(data) - 1)]
        fields &= (second == last) | ((second < last) & (following == _SPACE))
    return np.asarray(fields)


def _widths(
    data: Bytes, first: Positions, last: Positions, blank: Flags
) -> tuple[Positions, Positions]:
    """Columns of each line (white space at its ends left out) and of its first word."""
    columns = np.cumsum(_COLUMNS[data], dtype=np.int32)
    # `last` may stand on the continuation byte of a character; these are 0 wide.
    before = columns[first] - _COLUMNS[data[first]]
    width = np.where(blank, 0, columns[last] - before)
    spaces = np.append(np.flatnonzero(data == _SPACE), len(data))
    word_end = np.minimum(spaces[np.searchsorted(spaces, first)] - 1, last)
    word = np.where(blank, 0, columns[word_end] - before)
    # Where there are no spaces a line can be wrapped at any character.
    return width, np.where(_WITHOUT_SPACES[data[first]], np.minimum(word, 2), word)


def _without_spaces(data: Bytes, last: Positions, first: Positions) -> Flags:
    """Whether the characters at the two sides of a break are written without spaces.

    Quotation marks, dashes and dots (U+2014 to U+2026) go with the character on the other side.
    """
    lead = last.copy()
    for _ in range(3):
        lead = np.where(_CONTINUATION[data[lead]], lead - 1, lead)
    sides = []
    for at in (lead, first):
        mark = (data[at] == 0xE2) & (data[at + 1] == 0x80)
        mark &= (data[at + 2] >= 0x94) & (data[at + 2] <= 0xA6)
        sides.append((_WITHOUT_SPACES[data[at]], mark))
    (before, mark_before), (after, mark_after) = sides
    closed: Flags = (before & (after | mark_after)) | (mark_before & after)
    return closed
