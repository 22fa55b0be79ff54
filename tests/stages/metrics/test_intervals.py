"""Intervals: published examples, plain twins, and the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stages.metrics.intervals import over_seeds, ratio_interval, welch, wilson
from tests.oracle import plain_metrics as plain

Z = 1.959963984540054

# Sleep gained under two drugs (Student 1908); R's documentation prints Welch's interval.
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


@pytest.mark.parametrize(
    ("right", "rows", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_of_newcombe(right: int, rows: int, low: float, high: float) -> None:
    """Newcombe (1998), Two-sided confidence intervals for the single proportion, table I."""
    found = wilson(right, rows)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(case: tuple[int, int]) -> None:
    found = wilson(*case)
    assert (found.low, found.high) == pytest.approx(plain.wilson(*case, Z), abs=1e-9)


def test_welch_of_student() -> None:
    found = welch(DRUG_1, DRUG_2)
    assert found.interval.low == pytest.approx(-3.3654832)
    assert found.interval.high == pytest.approx(0.2054832)
    assert found.degrees == pytest.approx(17.776, abs=5e-4)
    assert (found.a.mean, found.b.mean) == (pytest.approx(0.75), pytest.approx(2.33))
    assert found.includes_zero and found.note == ""
    assert not welch(DRUG_1, [v + 1 for v in DRUG_2]).includes_zero


arm = st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=2, max_size=6)


@settings(deadline=None, max_examples=50)
@given(arm, arm, st.sampled_from([0.9, 0.95]))
def test_welch_equals_the_plain_twin(a: list[float], b: list[float], confidence: float) -> None:
    found = welch(a, b, confidence)
    assert found.value == pytest.approx(sum(a) / len(a) - sum(b) / len(b), abs=1e-12)
    if len(set(a)) == len(set(b)) == 1:
        assert found.interval.low == found.interval.high == found.value
        assert found.degrees is None and "no arm varies" in found.note
        return
    if min(len(set(a)), len(set(b))) > 1:
        theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(confidence)
        assert (found.interval.low, found.interval.high) == pytest.approx(tuple(theirs), abs=1e-9)
    error, degrees = plain.welch_degrees(a, b)
    half = float(stats.t.ppf((1 + confidence) / 2, degrees)) * error
    assert found.degrees == pytest.approx(degrees)
    assert found.interval.low == pytest.approx(found.value - half, abs=1e-9)
    assert found.interval.high == pytest.approx(found.value + half, abs=1e-9)


def test_seeds() -> None:
    spread = over_seeds([0.8, 0.9, 0.85])
    assert (spread.mean, spread.seeds) == (pytest.approx(0.85), 3)
    assert spread.deviation == pytest.approx(0.05)
    assert over_seeds([0.8]).deviation is None
    for values in ([], [0.5, float("nan")]):
        with pytest.raises(ValueError, match="finite figures"):
            over_seeds(values)
    with pytest.raises(ValueError, match="1 and 2 seeds"):
        welch([0.5], [0.5, 0.6])


def test_wilson_of_nothing() -> None:
    for right, rows in ((0, 0), (3, 2)):
        with pytest.raises(ValueError, match="no share"):
            wilson(right, rows)


def test_ratio_over_documents() -> None:
    # Of one label each, a ratio is a mean, and the interval Student's.
    sums = np.array([1.1, 0.3, 2.0, 1.7, 0.9])
    found = ratio_interval(sums, np.ones(5))
    half = stats.t.ppf(0.975, 4) * sums.std(ddof=1) / 5**0.5
    assert found.low == pytest.approx(sums.mean() - half)
    assert found.high == pytest.approx(sums.mean() + half)
    # Documents of many labels that are all alike in mean vary in nothing.
    counts = np.array([3.0, 50.0, 7.0])
    flat = ratio_interval(2.5 * counts, counts)
    assert flat.low == pytest.approx(2.5) == flat.high
    with pytest.raises(ValueError, match="1 documents"):
        ratio_interval(sums[:1], np.ones(1))


def test_ratio_interval_covers_the_truth() -> None:
    generator = np.random.default_rng(5)
    truth, covered = 1.4, 0
    for _ in range(400):
        counts = generator.integers(20, 400, 30).astype(float)
        means = truth + generator.normal(0, 0.3, 30)
        found = ratio_interval(counts * means, counts)
        covered += found.low <= truth <= found.high
    assert 0.91 < covered / 400 < 0.98
