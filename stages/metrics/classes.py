"""Figures of sequence classification and regression, as GLUE reports them.

By scikit-learn and SciPy, so that a figure here is what others mean by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import confusion_matrix, matthews_corrcoef, precision_recall_fscore_support

from stages.metrics.figures import Figures, check_finite, check_rows

CONSTANT = 1e-12
"""A spread below this part of the mean is rounding: no correlation can be read from it."""


@dataclass(frozen=True)
class ClassScores:
    """Each class on its own; 0 where a share is one of nothing.

    Attributes:
        precision: float64[K].
        recall: float64[K].
        f1: float64[K].
        gold: int64[K], rows of the class.
        predicted: int64[K], rows predicted as the class.
    """

    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]
    gold: NDArray[np.int64]
    predicted: NDArray[np.int64]


def confusion(gold: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """int64[K, K]: rows of class i (first axis, gold) that were predicted as class j.

    Raises:
        ValueError: no rows, unequal lengths, or a class outside 0..K-1.
    """
    gold, predicted = _checked(gold, predicted, classes)
    counted: NDArray[np.int64] = confusion_matrix(gold, predicted, labels=np.arange(classes))
    return counted.astype(np.int64)


def class_scores(gold: ArrayLike, predicted: ArrayLike, classes: int) -> ClassScores:
    """Precision, recall and F1 of each of the classes 0..K-1.

    Raises:
        ValueError: as `confusion`.
    """
    gold, predicted = _checked(gold, predicted, classes)
    precision, recall, f1, support = precision_recall_fscore_support(
        gold, predicted, labels=np.arange(classes), average=None, zero_division=0.0
    )
    times = np.bincount(predicted, minlength=classes)
    return ClassScores(precision, recall, f1, support.astype(np.int64), times.astype(np.int64))


def classification_figures(
    gold: ArrayLike, predicted: ArrayLike, classes: Sequence[str], positive: int = 1
) -> Figures:
    """Accuracy, F1 and Matthews.

    Args:
        gold: int[N], indices into `classes`.
        predicted: int[N].
        classes: names; K of them.
        positive: with K = 2, the class that `f1`, `precision` and `recall` are of.

    Returns:
        `accuracy`, `f1/macro` (over the classes that are in gold or predicted, as scikit-learn
        does), `f1/micro` (with one class a row it equals the accuracy), `matthews` (Gorodkin's
        for K > 2); with K = 2 also `f1`, `precision` and `recall`.

    Raises:
        ValueError: no rows, unequal lengths, or an index outside 0..K-1.
    """
    k = len(classes)
    gold, predicted = _checked(gold, predicted, k)
    scores = class_scores(gold, predicted, k)
    seen = (scores.gold + scores.predicted) > 0
    accuracy = float(np.mean(gold == predicted))
    figures = Figures(
        {
            "accuracy": accuracy,
            "f1/macro": float(scores.f1[seen].mean()),
            "f1/micro": accuracy,
            "matthews": 0.0,
        }
    )
    if not seen.all():
        absent = ", ".join(repr(classes[i]) for i in np.flatnonzero(~seen)[:5])
        figures.notes["f1/macro"] = (
            f"{np.sum(~seen):,} of {k:,} classes are neither in gold nor predicted and do not "
            f"count: {absent}{', ...' if np.sum(~seen) > 5 else ''}"
        )
    for side, what in ((gold, "rows are"), (predicted, "predictions are")):
        if (side == side[0]).all():
            figures.notes["matthews"] = f"all {what} {classes[side[0]]!r}: 0 by convention"
    if "matthews" not in figures.notes:
        figures.values["matthews"] = float(matthews_corrcoef(gold, predicted))
    if k == 2:
        _binary(figures, scores, positive, repr(classes[positive]))
    return figures


def regression_figures(gold: ArrayLike, predicted: ArrayLike) -> Figures:
    """Pearson's and Spearman's correlation, and the mean squared error.

    Args:
        gold: float[N].
        predicted: float[N].

    Returns:
        `pearson`, `spearman` (tied values share the mean of their ranks), `mean_squared_error`.
        A correlation that is undefined (one row, all values equal) is left out, with a note.

    Raises:
        ValueError: no rows, unequal lengths, or a value that is not finite.
    """
    x = np.asarray(gold, np.float64).reshape(-1)
    y = np.asarray(predicted, np.float64).reshape(-1)
    check_rows(x, y)
    check_finite("the gold value", x)
    check_finite("the prediction", y)
    figures = Figures({"mean_squared_error": float(np.mean((x - y) ** 2))})
    why = _no_correlation(x, "gold values") or _no_correlation(y, "predictions")
    if why:
        figures.notes.update(pearson=why, spearman=why)
    else:
        figures.values["pearson"] = float(pearsonr(x, y).statistic)
        figures.values["spearman"] = float(spearmanr(x, y).statistic)
    return figures


def _no_correlation(values: NDArray[np.float64], what: str) -> str:
    if len(values) == 1:
        return "undefined: there is one row"
    if np.ptp(values) <= CONSTANT * abs(values.mean()):
        return f"undefined: all {what} are {values[0]:.6g}"
    return ""


def _binary(figures: Figures, scores: ClassScores, positive: int, name: str) -> None:
    for measure in ("f1", "precision", "recall"):
        figures.values[measure] = float(getattr(scores, measure)[positive])
    if not scores.gold[positive]:
        figures.notes["recall"] = f"no row is {name}: 0 by convention"
    if not scores.predicted[positive]:
        figures.notes["precision"] = f"no row was predicted as {name}: 0 by convention"
    if not scores.gold[positive] + scores.predicted[positive]:
        figures.notes["f1"] = f"no row is {name} and none was predicted as it: 0 by convention"


def _checked(
    gold: ArrayLike, predicted: ArrayLike, classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sides = {"gold": np.asarray(gold), "predicted": np.asarray(predicted)}
    check_rows(sides["gold"], sides["predicted"])
    for name, values in sides.items():
        if not np.issubdtype(values.dtype, np.integer) or values.ndim != 1:
            raise ValueError(
                f"{name} classes must be one row of integers, not {values.dtype}{values.shape}"
            )
        wrong = np.flatnonzero((values < 0) | (values >= classes))
        if len(wrong):
            raise ValueError(
                f"the {name} class of row {wrong[0]} is {values[wrong[0]]}; "
                f"{classes} classes are known, from 0"
            )
    return sides["gold"].astype(np.int64), sides["predicted"].astype(np.int64)
