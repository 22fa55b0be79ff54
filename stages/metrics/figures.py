"""What a metric function returns, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Figures:
    """Figures of one set of rows.

    Attributes:
        values: name -> finite number, as a fraction of 1 where it is a share.
        notes: name -> why the figure is not in `values` (it is undefined on these rows), or the
            convention behind its value (a share of nothing counts as 0).
    """

    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def share(self, name: str, part: float, whole: float, nothing: str) -> None:
        """Set `name` to part / whole; 0 with a note that says `nothing` where whole is 0."""
        self.values[name] = part / whole if whole else 0.0
        if not whole:
            self.notes[name] = f"{nothing}: 0 by convention"


def check_rows(gold: Sequence[Any] | NDArray[Any], predicted: Sequence[Any] | NDArray[Any]) -> int:
    """The number of rows.

    Raises:
        ValueError: there are none, or one side has more than the other.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold):,} gold rows, but {len(predicted):,} predictions")
    if not len(gold):
        raise ValueError("no rows: a figure of nothing is undefined; give rows that have gold")
    return len(gold)


def check_finite(what: str, values: NDArray[np.float64]) -> None:
    """Raise ValueError that names the first value that is infinite or not a number."""
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(
            f"{what} of row {wrong[0]} is {values.reshape(-1)[wrong[0]]} "
            f"({len(wrong):,} of {values.size:,} are not finite)"
        )
