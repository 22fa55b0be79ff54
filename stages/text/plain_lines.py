"""Sentence boundaries of plain lines: the rules of UAX #29, for many places at once.

A line is plain when all that can end its sentences is ASCII's `.!?`, and nothing but ASCII stands
close to them: what the rules come to then is short, and ICU need not see the line. `icu` asks ICU
about all others, and a test compares the two.
"""

from __future__ import annotations

import numpy as np

from stages.text.buffers import Bytes, Flags, Positions, byte_table

NEWLINE, SPACE = 10, 32

# The names of classes and rules are those of UAX #29, chapter 5.
_FULL_STOP = ord(".")
_TERMINATOR = byte_table(b".!?")
_CLOSE = byte_table(b"\"'()[]{}")
_SPACE = byte_table(b" ")
_CONTINUES = byte_table(b",-:.!?")
_DIGIT = byte_table(range(0x30, 0x3A))
_UPPER = byte_table(range(0x41, 0x5B))
_LOWER = byte_table(range(0x61, 0x7B))
_LETTER = _UPPER | _LOWER
_OTHER = byte_table(range(0x80, 0x100))
_DECIDES = _LETTER | _TERMINATOR | byte_table(b"\n") | _OTHER
# Versions of Unicode differ about semicolons.
_DOUBTFUL = _OTHER | byte_table(b";")

MOST_STEPS = 12
"""Characters that are looked at behind a terminator; a line that needs more is left to ICU."""


def may_end(data: Bytes) -> Flags:
    """Bytes of what may end a sentence or line, besides `.!?` and newlines: never too few.

    Latin and Cyrillic letters do not, nor do dashes and curly quotes (U+2013 to U+201F).
    """
    flags = data < SPACE
    flags &= data != NEWLINE
    highest = int(data.max(initial=0))
    if highest >= 0x80:
        flags |= data >= 0xCA
        flags |= data == 0xC2
        flags &= (data & 0xFE) != 0xD0  # Cyrillic
    if highest >= 0xE2:
        at = np.flatnonzero(data == 0xE2)
        last = data[at + 2]
        flags[at[(data[at + 1] == 0x80) & (last >= 0x93) & (last <= 0x9F)]] = False
    return flags


def plain_ends(data: Bytes, at: Positions) -> tuple[Positions, Positions]:
    r"""Ends of sentences inside lines, without those at `\n`.

    Args:
        data: UTF-8 that ends with a newline.
        at: rising positions of `.!?` in lines without `may_end` elsewhere.

    Returns:
        Rising ends; and those of `at` that cannot be decided here.
    """
    stop = data[at] == _FULL_STOP
    before, behind = data[np.maximum(at - 1, 0)], data[at + 1]
    unsure = at[stop & _UPPER[behind] & _OTHER[before]]
    # SB6, SB7: in a number, in an abbreviation such as U.S.
    inner = stop & (_DIGIT[behind] | (_UPPER[behind] & _LETTER[before] & (at > 0)))
    at, stop = at[~inner], stop[~inner]
    # SB9, SB10: closing marks and spaces stay with the sentence.
    following, doubt = _skip(data, at + 1, _CLOSE)
    following, more_doubt = _skip(data, following, _SPACE)
    doubt |= more_doubt
    # SB8, SB8a: the sentence goes on with a comma or a further terminator, or in a small letter.
    first = data[following]
    doubt |= _DOUBTFUL[first]
    goes_on = _CONTINUES[first] | (first == NEWLINE)
    asked = np.flatnonzero(stop & ~goes_on)
    decisive, never = _skip(data, following[asked], ~_DECIDES)
    goes_on[asked] |= _LOWER[data[decisive]]
    doubt[asked] |= never | _OTHER[data[decisive]]
    return following[~(goes_on | doubt)], np.append(at[doubt], unsure)


def _skip(data: Bytes, at: Positions, those: Flags) -> tuple[Positions, Flags]:
    """Move each position behind what is of `those`; and which are still at one after the most."""
    at = at.copy()
    active = np.flatnonzero(those[data[at]])
    for _ in range(MOST_STEPS):
        if not len(active):
            break
        at[active] += 1
        active = active[those[data[at[active]]]]
    unfinished = np.zeros(len(at), np.bool_)
    unfinished[active] = True
    return at, unfinished
