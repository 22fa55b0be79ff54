"""ICU's sentence boundaries (UAX #29), for text of many lines at once.

ICU looks at every character. Plain lines are not given to it (`plain_lines`). Of others,
what decides are the few characters around each full stop, so most of the text between two of them
is left out: the result is the same, in a fraction of the time.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from stages.text.buffers import Bytes, Flags, Positions, byte_table
from stages.text.plain_lines import may_end, plain_ends

GROUP_BYTES = 512_000
"""Text split at a time. A call a document would cost more than the splitting itself."""

KEPT = 8
"""Bytes kept behind and before what may end a sentence: more is left out where it is safe."""

MOST_OTHERS = 64
"""Text with more than one of so many bytes that may end a sentence has hardly a plain line."""

_NEWLINE = 10
_CONTINUATION = byte_table(range(0x80, 0xC0))
# First bytes of letters, among the characters that stand between two places.
_LETTER = byte_table(range(0x41, 0x5B), range(0x61, 0x7B), range(0xC4, 0xCA), b"\xd0\xd1\xe1")


def icu_ends(data: Bytes) -> Positions:
    """Ends of ICU's sentences, rising positions in `data`; each newline is the end of one.

    Args:
        data: UTF-8 that is empty or ends with a newline.
    """
    found = []
    start = 0
    while start < len(data):
        end = _group_end(data, start)
        found.append(_group_ends(data[start:end]) + start)
        start = end
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _group_end(data: Bytes, start: int) -> int:
    """Behind the last newline inside the group's size, or else behind the first one after it."""
    limit = start + GROUP_BYTES
    last = data[start:limit].tobytes().rfind(b"\n")
    return start + last + 1 if last >= 0 else limit + int(np.argmax(data[limit:] == _NEWLINE)) + 1


def _group_ends(data: Bytes) -> Positions:
    others = may_end(data)
    if np.count_nonzero(others) > len(data) // MOST_OTHERS:
        return _ends_by_icu(data)
    at = np.flatnonzero(_terminators(data) | (data == _NEWLINE))
    ends_line = data[at] == _NEWLINE
    line = np.cumsum(ends_line)[~ends_line]
    newlines, at = at[ends_line], at[~ends_line]
    is_other = np.zeros(len(newlines), np.bool_)
    is_other[np.searchsorted(newlines, np.flatnonzero(others))] = True
    ends, undecided = plain_ends(data, at[~is_other[line]])
    is_other[np.searchsorted(newlines, undecided)] = True
    behind = newlines + 1
    if not is_other.any():
        return np.sort(np.concatenate((ends, behind)))
    ends = ends[~is_other[np.searchsorted(newlines, ends)]]
    begins = np.append(0, behind[:-1])
    rest = data[np.repeat(is_other, behind - begins)]
    plain = ~is_other
    asked = _restored(_ends_by_icu(rest), begins[plain], behind[plain])
    return np.sort(np.concatenate((ends, behind[plain], asked)))


def _terminators(data: Bytes) -> Flags:
    flags: Flags = (data == ord(".")) | (data == ord("!")) | (data == ord("?"))
    return flags


def _restored(ends: Positions, start: Positions, end: Positions) -> Positions:
    """Ends in what is left of a text without the stretches [start, end), as ends in the text."""
    # No sentence ends inside a stretch, so the byte before each end says how much was left out.
    gone = np.cumsum(end - start)
    before = np.searchsorted(end - gone, ends - 1, side="right")
    restored: Positions = ends + np.append(0, gone)[before]
    return restored


def _ends_by_icu(data: Bytes) -> Positions:
    start, end = _left_out(data)
    if not len(start):
        return _breaks_of(data)
    edges = np.zeros(len(data), np.int8)
    edges[start], edges[end] = 1, -1
    keep = np.cumsum(edges, dtype=np.int8) == 0
    return _restored(_breaks_of(data[keep]), start, end)


def _left_out(data: Bytes) -> tuple[Positions, Positions]:
    """Stretches [start, end) of `data` that cannot change where sentences end.

    A boundary stands behind a terminator (`.!?`, or one of many characters beyond Latin) or at a
    line's end. What follows a terminator is looked at up to the next letter, and what stands before
    it back to the last character that is no combining mark. Whatever may be a terminator, a mark or
    a line's end is a *place* here, all else plain: so of the plain text between two places, all but
    a beginning with a letter in it, and some of the end, has no say.
    """
    stop = _terminators(data) | (data < 32)
    highest = int(data.max())
    if highest >= 0x80:
        stop |= data >= 0xCA
        stop |= data == 0xC2
        stop &= (data & 0xFE) != 0xD0  # Cyrillic
        if highest >= 0xE1:
            # Vietnamese: U+1E80 to U+1EFF.
            stop[:-1] &= ~((data[:-1] == 0xE1) & ((data[1:] & 0xFE) == 0xBA))
    at = np.flatnonzero(stop)
    if len(at) * 8 > len(data):
        at = at[:1]
    gap = np.flatnonzero(np.diff(at) > 3 * KEPT)
    start, end = at[gap] + KEPT, at[gap + 1] - KEPT
    for _ in range(2):
        start += _CONTINUATION[data[start]]
        end -= _CONTINUATION[data[end]]
    safe = _LETTER[data[start - 1]] | _LETTER[data[start - 2]] | _LETTER[data[start - 3]]
    return start[safe], end[safe]


def _breaks_of(data: Bytes) -> Positions:
    """Ends of ICU's sentences in `data`, as byte offsets."""
    # Imported here: ICU's data is large, and other methods do without.
    from icu4py.breakers import SentenceBreaker

    text = data.tobytes()
    segments = SentenceBreaker(text.decode(), "und").segments()
    units = np.fromiter(map(itemgetter(1), segments), np.int64)
    if text.isascii():
        return units
    # ICU counts UTF-16 units: one a character of up to three bytes, two of one of four. The bytes
    # that add none are continuation bytes, except the first of each character of four.
    surplus = data.view(np.int8) < -64
    if int(data.max()) >= 0xF0:
        surplus[np.flatnonzero(data >= 0xF0) + 1] = False
    at = np.flatnonzero(surplus)
    return units + np.searchsorted(at - np.arange(len(at)), units, side="right")
