"""Windows: every piece is scored by one window, the one that shows most around it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.windows import longest_whole, window_counts, windows
from tests.oracle import plain_windows


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    room = draw(st.integers(1, 20))
    return room, draw(st.integers(0, room - 1)), draw(st.lists(st.integers(0, 90), max_size=4))


@given(sizes())
@settings(deadline=None)
def test_equal_to_the_plain_twin(size: tuple[int, int, list[int]]) -> None:
    room, overlap, lengths = size
    pieces = np.array(lengths, np.int64)
    found = windows(pieces, np.full(len(pieces), room), overlap)
    for text, length in enumerate(lengths):
        mine = np.flatnonzero(found.text == text)
        plain = plain_windows.windows(length, room, overlap)
        assert list(zip(found.starts[mine], found.ends[mine], strict=True)) == plain
        assert window_counts(pieces[text], np.int64(room), overlap) == len(plain)
        scored = [
            (place, number)
            for number, window in enumerate(mine)
            for place in range(found.own_starts[window], found.own_ends[window])
        ]
        assert scored == [(p, plain_windows.scored_by(p, plain)) for p in range(length)]
        for place, number in scored:
            assert min(length, place + longest_whole(overlap)) <= plain[number][1]


def test_rooms_of_their_own() -> None:
    found = windows(np.array([10, 10]), np.array([4, 20]), 1)
    assert found.text.tolist() == [0, 0, 0, 1]
    assert found.starts.tolist() == [0, 3, 6, 0]
    assert found.own_ends.tolist() == [4, 7, 10, 10]


@pytest.mark.parametrize(("room", "overlap"), [(4, 4), (4, 5), (4, -1), (0, 0)])
def test_no_step(room: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="the overlap must be"):
        windows(np.array([9]), np.array([room]), overlap)
