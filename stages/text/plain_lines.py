"""Sentence boundaries of lines in plain ASCII: the rules of UAX #29, for many places at once.

They are what ICU's rules come to where there is nothing but ASCII, so ICU need not see such lines:
that costs a third. `icu` asks ICU about all others, and a test compares the two.
"""

from __future__ import annotations

import numpy as np

from stages.text.buffers import Bytes, Flags, Positions, byte_table

NEWLINE = 10

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
_DECIDES = _LETTER | _TERMINATOR | byte_table(b"\n")
# Versions of Unicode differ about it.
_DOUBTFUL = byte_table(b";")

MOST_STEPS = 12
"""Characters that are looked at behind a terminator; a line that needs more is left to ICU."""


def plain_ends(data: Bytes, at: Positions) -> tuple[Positions, Positions]:
    r"""Ends of sentences inside lines of ASCII, without those at `\n`.

    Args:
        data: what stands around the places is printable ASCII and newlines; it ends with one.
        at: rising positions of the terminators `.!?`.

    Returns:
        Rising ends; and those of `at` that cannot be decided here.
    """
    stop = data[at] == _FULL_STOP
    before, behind = data[np.maximum(at - 1, 0)], data[at + 1]
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
    doubt[asked] |= never
    return following[~(goes_on | doubt)], at[doubt]


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
