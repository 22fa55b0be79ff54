from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.cuts import Totals, Window, distinct_rows, shard_cuts, shard_number, shard_of
from tests.oracle.plain_cuts import plain_cuts

SIZES = st.dictionaries(
    st.integers(0, 2**64 - 1) | st.integers(0, 50), st.integers(1, 1000), min_size=1, max_size=40
)


def windows_of(rows: list[tuple[int, int]], edges: list[int]) -> list[Window]:
    """The rows, in windows that end before each of the edges."""
    keys = np.array([k for k, _ in rows], np.uint64)
    sizes = np.array([s for _, s in rows])
    place = np.searchsorted(np.array(sorted(edges), np.uint64), keys, side="right")
    return [distinct_rows(keys[place == i], sizes[place == i]) for i in range(len(edges) + 1)]


def cuts_of(windows: list[Window], shards: int) -> list[int]:
    total = Totals(0, 0)
    for window in windows:
        total = total.add(window)
    number = shard_number(total, 1, shards)
    return [int(k) for k in shard_cuts(lambda: iter(windows), total, number)]


@settings(max_examples=300, deadline=None)
@given(SIZES, st.integers(1, 60), st.lists(st.integers(0, 2**64 - 1), max_size=5), st.randoms())
def test_cuts_are_those_of_the_plain_twin(
    sizes: dict[int, int], shards: int, edges: list[int], generator: random.Random
) -> None:
    """In whatever windows and order, and duplicates count once; no shard is empty."""
    rows = list(sizes.items())
    again = rows + generator.choices(rows, k=10)
    generator.shuffle(again)
    cuts = cuts_of(windows_of(again, edges), shards)
    assert cuts == plain_cuts(sizes, min(shards, len(sizes)))
    keys = np.array(list(sizes), np.uint64)
    held = shard_of(keys, np.array(cuts, np.uint64))
    assert len(np.unique(held)) == min(shards, len(rows))


def test_of_unequal_rows_with_one_key_the_larger_counts() -> None:
    keys = np.array([5, 3, 5, 5], np.uint64)
    for sizes in ([1, 7, 9, 4], [9, 7, 4, 1]):
        window = distinct_rows(keys, np.array(sizes))
        assert window.keys.tolist() == [3, 5] and window.sizes.tolist() == [7, 9]


@pytest.mark.parametrize("law", ["uniform", "lognormal", "two sizes"])
def test_shards_are_equal_to_five_percent_when_documents_are_small(law: str) -> None:
    """No document is more than 1 % of a shard."""
    generator = np.random.default_rng(5)
    sizes = {
        "uniform": generator.integers(1, 10_000, 40_000),
        "lognormal": np.minimum(generator.lognormal(7, 1.5, 40_000).astype(np.int64) + 1, 10_000),
        "two sizes": np.where(generator.random(40_000) < 0.9, 30, 10_000),
    }[law]
    keys = generator.integers(0, 2**64, len(sizes), np.uint64)
    window = distinct_rows(keys, sizes)
    total = Totals(0, 0).add(window)
    number = shard_number(total, 1_000_000)
    assert number == -(-int(sizes.sum()) // 1_000_000)
    cuts = shard_cuts(lambda: [window], total, number)
    held = np.bincount(shard_of(keys, cuts), weights=sizes)
    assert held.max() / held.mean() < 1.05
    assert held.min() / held.mean() > 0.95


def test_a_window_is_read_when_it_is_needed() -> None:
    """Never two at a time: memory is that of one range of keys."""
    alive = 0

    def windows() -> Iterator[Window]:
        nonlocal alive
        for i in range(20):
            alive += 1
            assert alive == 1
            yield Window(np.array([2 * i, 2 * i + 1], np.uint64), np.array([3, 4]))
            alive -= 1

    assert len(shard_cuts(windows, Totals(40, 140), 7)) == 6


def test_no_rows_make_one_empty_shard() -> None:
    assert shard_number(Totals(0, 0), 100) == 1
    assert len(shard_cuts(lambda: [], Totals(0, 0), 1)) == 0
