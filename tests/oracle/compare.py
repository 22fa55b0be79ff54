"""Whether two samples follow one law: chi-square and Kolmogorov-Smirnov, as p-values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike


def p_same_law(one: ArrayLike, other: ArrayLike, bins: int = 20) -> float:
    """The smaller p-value of two tests, times two (Bonferroni).

    Chi-square over the values themselves where there are few, else over quantile bins of both
    samples together.
    """
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    both = np.concatenate([first, second])
    edges = np.unique(np.quantile(both, np.linspace(0, 1, bins + 1)[1:-1]))
    counts = np.stack(
        [np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (first, second)]
    )
    # Cells that are empty or nearly so go to their neighbour.
    cells: list[np.ndarray] = []
    for cell in counts.T:
        if cells and cells[-1].sum() < 20:
            cells[-1] = cells[-1] + cell
        else:
            cells.append(cell)
    if len(cells) > 1 and cells[-1].sum() < 20:
        last = cells.pop()
        cells[-1] = cells[-1] + last
    chi = 1.0 if len(cells) < 2 else float(stats.chi2_contingency(np.stack(cells, axis=1))[1])
    smirnov = float(stats.ks_2samp(first, second, method="asymp")[1])
    return min(1.0, 2 * min(chi, smirnov))
