"""Interleaves endless streams of rows in given proportions, with the counts of any prefix at once.

Row k of a stream of share w has the time (k + 1/2) / w, and the mix is all rows by time: while w
of the time passes, each stream gives w of the rows. So of the first n rows of the mix, a stream
holds w n to within half a row and half a row a stream, for ever, and exactly w n wherever all of
these are whole numbers. (The divisors are those of Webster's apportionment.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm


def exact_share(weight: float | Fraction) -> Fraction:
    """A weight as it is written: 0.1 is 1/10, and not the binary number that is next to it."""
    return weight if isinstance(weight, Fraction) else Fraction(repr(weight))


class Interleaving:
    """How many rows of each stream stand among the first rows of the mix.

    Args:
        weights: of the streams, of any sum; above 0.

    Raises:
        ValueError: no weights, or one that is not above 0.
    """

    def __init__(self, weights: Sequence[float | Fraction]) -> None:
        shares = [exact_share(weight) for weight in weights]
        if not shares or min(shares) <= 0:
            raise ValueError("a mix takes one weight a stream, each above 0")
        denominator = lcm(*(share.denominator for share in shares))
        self._parts = [int(share * denominator) for share in shares]
        self._whole = sum(self._parts)

    @property
    def period(self) -> int:
        """After so many rows, and after each multiple, the proportions are exact."""
        return self._whole // gcd(*self._parts)

    def counts(self, rows: int) -> list[int]:
        """Rows of each stream among the first `rows` of the mix; they add up to `rows`."""
        parts, whole = self._parts, self._whole
        # All rows up to a time that is surely not too late; rounding adds half a row a stream.
        time = max(0, rows - len(parts))
        counts = [(2 * part * time + whole) // (2 * whole) for part in parts]
        for _ in range(rows - sum(counts)):
            # The stream whose next row has the earliest time; of equal ones the first.
            first = min(range(len(parts)), key=lambda s: (Fraction(2 * counts[s] + 1, parts[s]), s))
            counts[first] += 1
        return counts
