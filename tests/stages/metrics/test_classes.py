"""Classification and regression: against plain twins, known examples and at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.metrics.classes import (
    class_scores,
    classification_figures,
    confusion,
    regression_figures,
)
from tests.oracle import plain_metrics as plain

NAMES = ["no", "yes"]

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
# Whole numbers tie often; their spread is far above rounding.
values = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=60)
@given(rows)
def test_classes_equal_the_plain_twin(pairs: list[tuple[int, int]]) -> None:
    gold, predicted = map(list, zip(*pairs, strict=True))
    figures = classification_figures(gold, predicted, list("abcd")).values
    assert figures["accuracy"] == pytest.approx(np.mean(np.equal(gold, predicted)))
    assert figures["f1/micro"] == figures["accuracy"]
    assert figures["f1/macro"] == pytest.approx(plain.macro_f1(gold, predicted))
    assert figures["matthews"] == pytest.approx(plain.matthews(gold, predicted), abs=1e-12)
    matrix = confusion(gold, predicted, 4)
    for i in range(4):
        for j in range(4):
            assert matrix[i, j] == pairs.count((i, j))
    scores = class_scores(gold, predicted, 4)
    for c in range(4):
        assert scores.f1[c] == pytest.approx(float(plain.f1_of(gold, predicted, c)))
    np.testing.assert_array_equal(scores.gold, matrix.sum(axis=1))
    np.testing.assert_array_equal(scores.predicted, matrix.sum(axis=0))


def test_twelve_cats_and_dogs() -> None:
    """6 of 8 cats and 3 of 4 dogs are found: Matthews 0.478, F1 of cats 12/15."""
    gold = [1] * 8 + [0] * 4
    predicted = [1] * 6 + [0] * 2 + [0] * 3 + [1]
    figures = classification_figures(gold, predicted, ["dog", "cat"]).values
    assert figures["matthews"] == pytest.approx(0.478, abs=5e-4)
    assert figures["accuracy"] == 9 / 12
    assert figures["f1"] == pytest.approx(0.8)
    assert (figures["precision"], figures["recall"]) == (6 / 7, 6 / 8)
    of_dogs = classification_figures(gold, predicted, ["dog", "cat"], positive=0).values
    assert of_dogs["f1"] == pytest.approx(6 / 9)


def test_no_positive_and_one_class() -> None:
    none = classification_figures([0, 0, 0], [0, 0, 0], NAMES)
    assert none.values["accuracy"] == 1 and none.values["f1/macro"] == 1
    assert none.values["f1"] == none.values["matthews"] == 0
    assert "no row is 'yes' and none was predicted" in none.notes["f1"]
    assert "0 by convention" in none.notes["matthews"] and "'yes'" in none.notes["f1/macro"]
    unseen = classification_figures([0, 0, 1], [0, 0, 0], NAMES)
    assert unseen.values["f1"] == 0 and set(unseen.notes) == {"precision", "matthews"}
    assert "no row is 'yes'" in classification_figures([0, 0], [0, 1], NAMES).notes["recall"]
    assert not classification_figures([0, 1], [1, 0], NAMES).notes


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "no rows"),
        ([0], [0, 1], "1 gold rows, but 2 predictions"),
        ([0, 2], [0, 1], "gold class of row 1 is 2; 2 classes"),
        ([0, 1], [0, -1], "predicted class of row 1 is -1"),
        ([0.5, 1], [0, 1], "integers"),
    ],
)
def test_wrong_classes_are_errors(gold: list[int], predicted: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classification_figures(np.array(gold), np.array(predicted), NAMES)


@settings(deadline=None, max_examples=60)
@given(values)
def test_correlations_equal_the_plain_twin(pairs: list[tuple[int, int]]) -> None:
    x, y = map(list, zip(*pairs, strict=True))
    figures = regression_figures(x, y)
    assert figures.values["mean_squared_error"] == pytest.approx(
        sum((a - b) ** 2 for a, b in pairs) / len(pairs)
    )
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert set(figures.notes) == {"pearson", "spearman"}
        assert set(figures.values) == {"mean_squared_error"}
        return
    assert figures.values["pearson"] == pytest.approx(plain.pearson(x, y), abs=1e-12)
    expected = plain.pearson(plain.ranks(x), plain.ranks(y))
    assert figures.values["spearman"] == pytest.approx(expected, abs=1e-12)


def test_intelligence_and_television() -> None:
    """The worked example of Spearman's rho in textbooks: -29/165."""
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert regression_figures(iq, hours).values["spearman"] == pytest.approx(-29 / 165)


@pytest.mark.filterwarnings("error")
def test_undefined_correlations_say_so() -> None:
    figures = regression_figures([1.0, 2.0, 3.0], np.full((3, 1), 0.1, np.float32))
    assert figures.notes["pearson"] == "undefined: all predictions are 0.1"
    assert "gold values are 2" in regression_figures([2, 2], [1, 3]).notes["spearman"]
    assert "one row" in regression_figures([2], [1]).notes["spearman"]
    nearly = [1e6, 1e6 + 1e-10, 1e6 - 1e-10]
    assert "undefined" in regression_figures([1, 2, 3], nearly).notes["pearson"]
    with pytest.raises(ValueError, match=r"prediction of row 1 is nan \(1 of 2"):
        regression_figures([1, 2], [1, float("nan")])
    with pytest.raises(ValueError, match="no rows"):
        regression_figures([], [])
