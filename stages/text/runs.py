"""Runs of white space: all of it but the single spaces inside lines.

Most white space is one space between two words. What is left is one place in forty bytes of prose,
and all that unwrapping and white space need to look at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stages.text.buffers import Bytes, Flags, Offsets, Positions

SPACE, NEWLINE, CARRIAGE_RETURN = 32, 10, 13


@dataclass(frozen=True)
class Runs:
    """Runs of spaces, newlines and carriage returns, rising; none goes on in the next text.

    A single space inside a text is no run, one at either end is.

    Attributes:
        members: rising positions of all bytes of all runs; the last of each may be missing.
        start, end: [n] positions.
        newlines: [n] how many newlines the run holds.
        line: [n] where the line that follows begins: behind the last newline, else at `start`.
        fillers: rising positions of all carriage returns: white space of no width.
        heads, tails: the runs at the beginnings and at the ends of texts, rising indices.
    """

    members: Positions
    start: Positions
    end: Positions
    newlines: Positions
    line: Positions
    fillers: Positions
    heads: Positions
    tails: Positions

    def inside(self) -> Flags:
        """[n] whether the run has text on both sides."""
        flags = np.ones(len(self.start), np.bool_)
        flags[self.heads] = False
        flags[self.tails] = False
        return flags


def find_runs(data: Bytes, offsets: Offsets) -> Runs:
    """The runs of a column. `data` holds no control character but newline and carriage return."""
    filled = offsets[1:] > offsets[:-1]
    first, last = offsets[:-1][filled], offsets[1:][filled] - 1
    blank = data <= SPACE
    goes_on = np.zeros(len(data), np.bool_)
    np.logical_and(blank[:-1], blank[1:], out=goes_on[:-1])
    goes_on[last] = False
    is_member = (data < SPACE) | goes_on
    is_member[first] = blank[first]
    is_member[last] = blank[last]
    members = np.flatnonzero(is_member)
    opens = np.ones(len(members), np.bool_)
    opens[1:] = members[1:] != members[:-1] + 1
    opens[np.searchsorted(members, first[blank[first]])] = True
    opening = np.flatnonzero(opens)
    closing = np.append(opening, len(members))[1:] - 1
    start = members[opening]
    end = members[closing] + 1 + goes_on[members[closing]]

    byte = data[members]
    is_newline = byte == NEWLINE
    behind = np.append(members[is_newline] + 1, 0)
    so_far = np.cumsum(is_newline)
    newlines = so_far[closing] - so_far[opening] + is_newline[opening]
    return Runs(
        members,
        start,
        end,
        newlines,
        np.where(newlines > 0, behind[so_far[closing] - 1], start),
        members[byte == CARRIAGE_RETURN],
        np.searchsorted(start, first[blank[first]]),
        np.searchsorted(end, last[blank[last]] + 1),
    )
