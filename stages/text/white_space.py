"""White space laid out anew: hard-wrapped lines joined, runs made single, the ends stripped."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stages.text.buffers import Bytes, Offsets
from stages.text.runs import NEWLINE, SPACE, find_runs
from stages.text.unwrapping import wrapped_breaks

DELETED = 0


def layout(
    data: Bytes, offsets: Offsets, unwrap: bool, single: bool, counts: Counter[str]
) -> tuple[Bytes, Offsets]:
    """Lay out the white space of a column.

    Args:
        data: written to; no control character but newlines, and carriage returns, which are white
            space to be deleted.
        offsets: n + 1 offsets of the texts.
        unwrap: join hard-wrapped lines; counted as joined_lines.
        single: make runs one space, one newline or two (a blank line); else they stay.
        counts: also added to: white_space, the bytes that went, except carriage returns and what
            stood between two lines that are joined without a space.
    """
    runs = find_runs(data, offsets)
    if not len(runs.start):
        return data, offsets
    inside = runs.inside()
    width = runs.end - runs.start
    # A run becomes one or two newlines if it holds any, else a space; at an end nothing.
    becomes = np.where(inside, np.clip(runs.newlines, 1, 2), 0)
    byte = np.where(runs.newlines > 0, NEWLINE, SPACE).astype(np.uint8)
    anew = ~inside | single
    closed = np.zeros(0, np.int64)
    if unwrap:
        joined, without_space = wrapped_breaks(data, offsets, runs, inside)
        counts["joined_lines"] += len(joined)
        byte[joined] = SPACE
        closed = joined[without_space]
        becomes[closed] = 0
        anew[joined] = True
    filled = np.zeros(len(width), np.int64)
    if len(runs.fillers):
        filled = np.bincount(
            np.searchsorted(runs.start, runs.fillers, side="right") - 1, minlength=len(width)
        )
    removed = np.where(anew, width - becomes, filled)
    white_space = removed - filled
    white_space[closed] = 0
    counts["white_space"] += int(white_space.sum())

    gone = runs.members
    if not single:
        gone = gone[anew[np.searchsorted(runs.start, gone, side="right") - 1]]
        data[runs.fillers] = DELETED
    data[gone] = DELETED
    data[runs.end[anew] - 1] = DELETED
    write = np.flatnonzero(anew & (becomes > 0))
    data[runs.start[write]] = byte[write]
    data[runs.start[write[becomes[write] > 1]] + 1] = NEWLINE
    before = np.concatenate(([0], np.cumsum(removed)))
    if not before[-1]:
        return data, offsets
    # A search for the next byte to go and a copy up to it: what stays comes in long pieces.
    kept = np.frombuffer(data.tobytes().replace(b"\0", b""), np.uint8)
    return kept, offsets - before[np.searchsorted(runs.start, offsets)]
