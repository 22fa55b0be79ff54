"""The worst mistakes, and what is shown of them."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from stages.metrics import report
from stages.metrics.answers import answer_scores
from stages.metrics.classes import classification_figures, confusion
from stages.metrics.figures import Figures
from stages.metrics.mistakes import (
    answer_mistakes,
    class_mistakes,
    tag_mistakes,
    value_mistakes,
    worst,
)

NAMES = ["no", "yes", "<b>maybe</b>"]


def test_the_worst_come_first_and_ties_in_row_order() -> None:
    rng = np.random.default_rng(1)
    badness, wrong = rng.integers(0, 5, 50), rng.random(50) < 0.5
    expected = sorted(np.flatnonzero(wrong), key=lambda i: (-badness[i], i))
    np.testing.assert_array_equal(worst(badness, wrong, 50), expected)
    np.testing.assert_array_equal(worst(badness, wrong, 3), expected[:3])
    assert len(worst([1.0], [False], 5)) == 0
    with pytest.raises(ValueError, match="badness of row 0 is nan"):
        worst([float("nan")], [True], 1)


def test_class_mistakes() -> None:
    logits = np.log([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.01, 0.49, 0.5], [0.2, 0.7, 0.1]])
    gold = [1, 1, 0, 0]
    by_loss = class_mistakes(logits + 1000, gold, NAMES, 9)
    assert [m.row for m in by_loss] == [2, 3, 0]
    assert by_loss[0].badness == pytest.approx(-np.log(0.01))
    assert (by_loss[0].gold, by_loss[0].predicted) == ("no", "<b>maybe</b>")
    by_confidence = class_mistakes(logits, gold, NAMES, 2, by="confidence")
    assert [(m.row, round(m.badness, 6)) for m in by_confidence] == [(3, 0.7), (0, 0.6)]


def test_value_mistakes() -> None:
    found = value_mistakes([1, 2, 3], np.array([[1.0], [2.5], [0.0]]), 5)
    assert [(m.row, m.badness, m.gold, m.predicted) for m in found] == [
        (2, 3, "3", "0"),
        (1, 0.5, "2", "2.5"),
    ]


def test_tag_mistakes() -> None:
    words = [["Ada", "Byron", "met", "IBM"], ["Paris"], ["so"]]
    gold = [["B-PER", "I-PER", "O", "B-ORG"], ["B-LOC"], ["O"]]
    predicted = [["B-PER", "O", "O", "B-ORG"], ["O"], ["O"]]
    first, second = tag_mistakes(words, gold, predicted, 5)
    assert (first.row, first.gold, first.predicted) == (0, "Ada Byron (PER)", "Ada (PER)")
    assert (second.row, second.gold, second.predicted) == (1, "Paris (LOC)", "none")
    assert (first.badness, second.badness) == (2, 1)


def test_answer_mistakes() -> None:
    predicted, answers = ["a cat", "Rome", ""], [["cat", "cat"], ["Paris", "Paris"], ["x y"]]
    scores = answer_scores(predicted, answers)
    by_f1 = answer_mistakes(predicted, answers, scores, 5)
    assert [(m.row, m.gold, m.predicted) for m in by_f1] == [
        (1, "Paris", "Rome"),
        (2, "x y", "no answer"),
    ]
    sure = answer_mistakes(predicted, answers, scores, 1, confidence=[0.9, 0.2, 0.8])
    assert [(m.row, m.measure) for m in sure] == [(2, "confidence")]


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.texts.append(data)


def cells(html: str) -> list[str]:
    parser = Cells()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser.texts


def test_a_page_holds_every_number_and_escapes_text() -> None:
    gold, predicted = [0, 0, 1, 2, 2], [0, 1, 1, 0, 0]
    matrix = confusion(gold, predicted, 3)
    mistakes = class_mistakes(np.eye(3)[predicted], gold, NAMES, 9)
    texts = ["a", "<script>", "c", "d" * 700, "e"]
    table = report.mistakes_table(mistakes, texts, ids=list("vwxyz"))
    figures = report.figures_table(classification_figures(gold, predicted, NAMES))
    html = report.page("Dev & more", [table, figures], matrix, NAMES)
    assert "<script>" not in html and "<b>" not in html and "Dev &amp; more" in html
    found = cells(html)
    start = found.index("no") + 3  # after the heads of the columns
    shown = ["no", "1", "1", "0", "yes", "0", "1", "0", NAMES[2], "2", "0", "0"]
    assert found[start : start + 12] == shown
    assert {"<script>", "w", "accuracy", "0.4"} <= set(found)
    assert max(map(len, found)) < 700


def test_json_and_tables_give_the_same_numbers() -> None:
    matrix = confusion([0, 1, 1], [1, 1, 0], 2)
    table = report.confusion_table(matrix, NAMES[:2])
    assert json.loads(report.tables_json([table]))[0]["rows"] == [["no", 0, 1], ["yes", 1, 1]]
    assert report.most_confused(matrix, NAMES[:2]).rows == [
        ["no", "yes", 1, 1.0],
        ["yes", "no", 1, 0.5],
    ]


def test_a_large_matrix_is_listed() -> None:
    k = report.MOST_CLASSES + 1
    names = [f"class{i}" for i in range(k)]
    found = cells(report.page("Large", [], confusion([0, 3], [0, 4], k), names))
    assert found == ["gold", "predicted", "rows", "share of gold", "class3", "class4", "1", "1.0"]


def test_an_undefined_figure_is_shown_as_such() -> None:
    table = report.figures_table(Figures({"a": 0.5}, {"b": "undefined: one row"}))
    assert table.rows == [["a", 0.5, ""], ["b", None, "undefined: one row"]]
    assert "–" in cells(report.page("Figures", [table]))
    assert report.mistakes_table([], []).rows == []
