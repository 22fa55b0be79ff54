import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.text.random import Stream
from stages.text.truncation import truncate_spans, truncated_lengths
from tests.oracle.google_pairs import truncate


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1), st.integers(5, 61))
def test_lengths_are_those_of_the_reference_loop(pairs: list[tuple[int, int]], room: int) -> None:
    table = np.asarray(pairs, dtype=np.int64)
    a_kept, b_kept = truncated_lengths(table[:, 0], table[:, 1], room)
    for (a_tokens, b_tokens), a, b in zip(pairs, a_kept.tolist(), b_kept.tolist(), strict=True):
        a_list, b_list = ["x"] * a_tokens, ["x"] * b_tokens
        truncate(a_list, b_list, room, random.Random(0))
        assert (a, b) == (len(a_list), len(b_list))


def test_each_removed_token_falls_on_a_random_side() -> None:
    count, removed = 20_000, 9
    spans = np.stack([np.full(count, 100), np.full(count, 130)], axis=1)
    cut = truncate_spans(spans, np.full(count, 30 - removed), Stream(1))
    assert np.all(cut[:, 1] - cut[:, 0] == 30 - removed)
    fronts = cut[:, 0] - 100
    expected = [count * n / 2**9 for n in (1, 9, 36, 84, 126, 126, 84, 36, 9, 1)]
    counts = np.bincount(fronts, minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # 9 degrees, p = 0.001


def test_what_fits_is_left_alone() -> None:
    spans = np.array([[5, 9], [9, 9]])
    assert np.array_equal(truncate_spans(spans, np.array([4, 0]), Stream(1)), spans)
