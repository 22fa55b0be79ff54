"""Windows over long texts: where they stand, and which one scores which piece.

A text of n pieces that does not fit in a window of `room` pieces is read through several. Each
begins `room - overlap` pieces after the one before, and the last one ends where the text ends. What
is called `stride` in `tokenizers` is `overlap` here: the pieces that two neighbours share (in
google-research/bert `doc_stride` is the step between their starts).

A piece that several windows hold is scored by the one that shows most of its surroundings: where
the smaller of its distances to the two ends of the window is largest, and by the earlier window of
two as good. So every window scores one run of pieces, and these runs lie end to end: neighbours
share out their overlap at its middle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """N windows, those of a text one after another; pieces are counted from the text's first one.

    Attributes:
        text: int64 [N], which text.
        starts, ends: int64 [N], the pieces that the window holds.
        own_starts, own_ends: int64 [N], the pieces that the window scores.
    """

    text: Int64s
    starts: Int64s
    ends: Int64s
    own_starts: Int64s
    own_ends: Int64s


def window_counts(pieces: Int64s, room: Int64s, overlap: int) -> Int64s:
    """[D] how many windows each text needs; a text without a piece has one, which is empty."""
    counts: Int64s = 1 - np.minimum(room - pieces, 0) // (room - overlap)
    return counts


def windows(pieces: Int64s, room: Int64s, overlap: int) -> Windows:
    """Lay windows over D texts.

    Args:
        pieces: int64 [D], the length of each text.
        room: int64 [D], pieces that a window of it holds.
        overlap: pieces that neighbours share.

    Raises:
        ValueError: an overlap below 0, or one that leaves no step in some room.
    """
    if overlap < 0 or (len(room) and overlap >= room.min()):
        raise ValueError(
            f"windows of {room.min(initial=0)} pieces cannot share {overlap}: the overlap must be "
            "at least 0 and below the room"
        )
    counts = window_counts(pieces, room, overlap)
    text = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = number * (room - overlap)[text]
    ends = np.minimum(starts + room[text], pieces[text])
    own_starts = np.where(number == 0, 0, starts + kept_before(overlap))
    own_ends = np.append(own_starts[1:], 0)
    is_last = number == counts[text] - 1
    own_ends[is_last] = pieces[text][is_last]
    return Windows(text, starts, ends, own_starts, own_ends)


def kept_before(overlap: int) -> int:
    """How many pieces of an overlap the earlier window scores; the one in the middle is its."""
    return (overlap + 1) // 2


def longest_whole(overlap: int) -> int:
    """A run of so many pieces lies whole in the window that scores its first one."""
    return overlap // 2 + 1
