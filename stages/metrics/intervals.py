"""How sure a figure is: intervals of one run, spread over seeds, two arms of seeds side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, t


@dataclass(frozen=True)
class Interval:
    """The bounds of a figure at a confidence."""

    low: float
    high: float
    confidence: float


def wilson(right: int, rows: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval (1927) of a share of independent rows: accuracy, exact match.

    It stays inside 0 to 1 and has a width where all rows are right or none is.

    Raises:
        ValueError: no rows, or more right than rows.
    """
    if not 0 <= right <= rows or rows == 0:
        raise ValueError(f"{right} of {rows} rows is no share")
    found = binomtest(right, rows).proportion_ci(confidence, method="wilson")
    return Interval(float(found.low), float(found.high), confidence)


def ratio_interval(
    sums: NDArray[np.float64], counts: NDArray[np.float64], confidence: float = 0.95
) -> Interval:
    """The interval of sum(sums) / sum(counts) over documents: a mean loss a label, for example.

    Labels of one document are alike, so that documents are what was drawn: the linearised variance
    of a ratio over clusters (Cochran 1977, 6.4 and 9A) with Student's t of D - 1 degrees of
    freedom.

    Args:
        sums: [D], one a document, D of at least 2.
        counts: [D], of labels.
        confidence: of the interval.

    Raises:
        ValueError: fewer than two documents, or nothing counted.
    """
    documents, whole = len(counts), counts.sum()
    if documents < 2 or not whole:
        raise ValueError(f"{documents} documents with {whole:g} labels have no spread")
    ratio = sums.sum() / whole
    squares = np.square(sums - ratio * counts).sum() * documents / (documents - 1)
    half = t.ppf((1 + confidence) / 2, documents - 1) * math.sqrt(squares) / whole
    return Interval(float(ratio - half), float(ratio + half), confidence)


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: `deviation` is the sample's (n - 1); None of a single seed."""

    mean: float
    deviation: float | None
    seeds: int


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean and sample deviation of one figure over runs that differ in their seed alone.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    array = _finite(values, "a seed")
    if np.ptp(array) == 0:  # and no rounding of the mean makes a deviation of it
        return Spread(float(array[0]), 0.0 if len(array) > 1 else None, len(array))
    return Spread(float(array.mean()), float(array.std(ddof=1)), len(array))


@dataclass(frozen=True)
class Difference:
    """Mean of arm a less mean of arm b.

    Attributes:
        value: the difference.
        interval: Welch's, for the difference.
        degrees: Welch's degrees of freedom; None where no arm varies.
        a: arm a over its seeds.
        b: arm b over its seeds.
        note: what a reader must know of the interval; empty as a rule.
    """

    value: float
    interval: Interval
    degrees: float | None
    a: Spread
    b: Spread
    note: str = ""

    @property
    def includes_zero(self) -> bool:
        """Whether the arms may be equal: the interval has 0 in it."""
        return self.interval.low <= 0 <= self.interval.high


def welch(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Difference:
    """Welch's interval (1947) of the difference of two arms of seeds, whose variances may differ.

    Where no arm varies at all the interval is the difference itself, with a note: seeds that do
    not matter, or runs that are copies.

    Raises:
        ValueError: fewer than two seeds in an arm, or a value that is not finite.
    """
    first, second = _finite(a, "arm a"), _finite(b, "arm b")
    if min(len(first), len(second)) < 2:
        raise ValueError(
            f"{len(first)} and {len(second)} seeds: an interval needs two at least in each arm"
        )
    spreads = over_seeds(a), over_seeds(b)
    value = spreads[0].mean - spreads[1].mean
    # The variance of each arm's mean.
    p, q = ((s.deviation or 0.0) ** 2 / s.seeds for s in spreads)
    if p + q == 0:
        note = "no arm varies over its seeds: the interval has no width"
        return Difference(value, Interval(value, value, confidence), None, *spreads, note)
    degrees = (p + q) ** 2 / (p**2 / (len(first) - 1) + q**2 / (len(second) - 1))
    half = float(t.ppf((1 + confidence) / 2, degrees)) * math.sqrt(p + q)
    return Difference(value, Interval(value - half, value + half, confidence), degrees, *spreads)


def _finite(values: Sequence[float], what: str) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"{what} must give finite figures, not {array.tolist()}")
    return array
