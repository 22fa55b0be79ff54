"""Slow, plain twins of windows and of the search for answers."""

from __future__ import annotations

from collections.abc import Sequence


def windows(pieces: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """[start, end) of each window, one by one until the text is read."""
    found = [(0, min(room, pieces))]
    while found[-1][1] < pieces:
        start = found[-1][0] + room - overlap
        found.append((start, min(start + room, pieces)))
    return found


def scored_by(place: int, found: Sequence[tuple[int, int]]) -> int:
    """The window that shows most of what is around a piece; the first of equals."""
    context = {
        number: min(place - start, end - 1 - place)
        for number, (start, end) in enumerate(found)
        if start <= place < end
    }
    return max(context, key=lambda number: (context[number], -number))


def best_spans(
    starts: Sequence[float], ends: Sequence[float], max_length: int
) -> list[tuple[float, int, int]]:
    """All spans [first, last] of a text that is read at once, best first."""
    spans = [
        (starts[first] + ends[last], first, last)
        for first in range(len(starts))
        for last in range(first, min(first + max_length, len(starts)))
    ]
    return sorted(spans, key=lambda span: (-span[0], span[1], span[2]))
