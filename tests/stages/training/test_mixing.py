"""Interleaving in exact proportions: prefixes, seeking, and the plain twin."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.mixing import Interleaving, exact_share
from tests.oracle.plain_loader import plain_mix

weights = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(weights, st.integers(0, 400))
@settings(deadline=None)
def test_counts_are_those_of_rows_sorted_by_time(shares, rows):
    order = plain_mix(shares, rows)
    expected = [order.count(stream) for stream in range(len(shares))]
    assert Interleaving(shares).counts(rows) == expected


@given(weights, st.integers(0, 10**12), st.integers(0, 50))
@settings(deadline=None)
def test_prefixes_grow_row_by_row_and_keep_the_proportions(shares, start, steps):
    mix = Interleaving(shares)
    whole = sum(shares)
    last = mix.counts(start)
    for rows in range(start, start + steps + 1):
        counts = mix.counts(rows)
        assert sum(counts) == rows
        assert sum(now - before for now, before in zip(counts, last, strict=True)) <= 1
        assert all(now >= before for now, before in zip(counts, last, strict=True))
        for share, count in zip(shares, counts, strict=True):
            off = abs(count - Fraction(share, whole) * rows)
            assert off <= Fraction(1, 2) + Fraction(share, whole) * Fraction(len(shares), 2)
        last = counts


@given(weights, st.integers(1, 10**9))
@settings(deadline=None)
def test_proportions_are_exact_after_each_period(shares, rounds):
    mix = Interleaving(shares)
    expected = [Fraction(share, sum(shares)) * mix.period * rounds for share in shares]
    assert mix.counts(mix.period * rounds) == expected


def test_weights_count_as_they_are_written():
    assert exact_share(0.1) == Fraction(1, 10) and exact_share(1e-07) == Fraction(1, 10**7)
    assert Interleaving([0.7, 0.3]).period == 10
    assert Interleaving([0.7, 0.3]).counts(10**15) == [7 * 10**14, 3 * 10**14]
    assert Interleaving([2, 1, 1]).counts(4) == [2, 1, 1]


def test_weights_of_any_precision_take_no_table():
    draws = [random.Random(1).random() for _ in range(20)]
    mix = Interleaving(draws)
    counts = mix.counts(10**14)
    assert sum(counts) == 10**14
    for count, weight in zip(counts, draws, strict=True):
        assert count == pytest.approx(10**14 * weight / sum(draws), abs=20)


@pytest.mark.parametrize("wrong", [[], [0.5, 0.0], [1, -1]])
def test_weights_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="above 0"):
        Interleaving(wrong)
