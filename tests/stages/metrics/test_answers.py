"""Answers: against plain twins, the official rules by example, and at the edges."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.metrics.answers import (
    AnswerScores,
    Rules,
    answer_f1,
    answer_figures,
    answer_scores,
    best_threshold,
    exact_match,
    normalised,
    with_threshold,
)
from tests.oracle import plain_metrics as plain
from tests.oracle.real_text import shared_data

PIECES = [
    "the",
    "The",
    "a",
    "an",
    "cat",
    "hat",
    "é",
    "ABBA",
    "-",
    "'s",
    "?",
    "“",
    "中",
    " ",
    "\u3000",
]
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("an  apple,\ta pear", "apple pear"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("a-team", "ateam"),  # punctuation goes first, so no article is left
        ("$1,000", "1000"),
        ("“The” end", "“ ” end"),  # other punctuation stays, and cuts words
        ("1990–2000", "1990–2000"),
        ("中国。", "中国。"),
        ("the", ""),
        ("\u3000 x\u00a0y ", "x y"),
        ("İstanbul", "i̇stanbul"),
    ],
)
def test_the_official_rules(text: str, expected: str) -> None:
    assert normalised(text) == expected


@settings(deadline=None, max_examples=300)
@given(texts, texts)
def test_answers_equal_the_plain_twin(ours: str, gold: str) -> None:
    assert normalised(ours).split() == plain.squad_words(ours)
    assert answer_f1(ours, gold) == pytest.approx(plain.squad_f1(ours, gold))
    assert exact_match(ours, gold) == (plain.squad_words(ours) == plain.squad_words(gold))


def test_the_best_reference_counts() -> None:
    predicted = ["the cat sat", "Paris", "", "", "no", "the"]
    answers = [["cat", "a cat sat down"], ["paris.", "Rome"], [], ["x"], [], ["a", "!"]]
    scores = answer_scores(predicted, answers)
    np.testing.assert_array_equal(scores.exact, [0, 1, 1, 0, 0, 1])
    np.testing.assert_allclose(scores.f1, [4 / 5, 1, 1, 0, 0, 1])
    figures = answer_figures(scores).values
    assert figures["exact"] == 3 / 6
    assert figures["has_answer/f1"] == pytest.approx(2.8 / 4)
    assert figures["no_answer/exact"] == figures["no_answer/f1"] == 1 / 2


def test_sets_of_one_kind_and_empty_ones() -> None:
    assert set(answer_figures(answer_scores(["a"], [["b"]])).values) == {"exact", "f1"}
    silent = answer_figures(answer_scores(["a"], [[]]))
    assert set(silent.notes) == {"has_answer/exact", "has_answer/f1"}
    with pytest.raises(ValueError, match="no rows"):
        answer_scores([], [])
    with pytest.raises(ValueError, match="1 gold rows, but 2"):
        answer_scores(["a", "b"], [["a"]])


def test_rules_of_other_languages() -> None:
    wide = Rules(articles=("die",), unicode_punctuation=True, ideographs_apart=True)
    assert exact_match("„die Stadt“", "Stadt", wide) and not exact_match("„Stadt“", "Stadt")
    assert answer_f1("中国人", "中国", wide) == pytest.approx(4 / 5)
    assert answer_f1("中国人", "中国") == 0
    assert normalised("the a", Rules(articles=())) == "the a"


questions = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 1 / 3, 1.0]), st.integers(-3, 3)),
    min_size=1,
    max_size=15,
)


def scored(rows: list[tuple[bool, float, int]]) -> tuple[AnswerScores, list[int]]:
    has, f1, null = zip(*rows, strict=True)
    return AnswerScores(np.floor(f1), np.array(f1), np.array(has)), list(null)


@settings(deadline=None, max_examples=200)
@given(questions, st.sampled_from(["f1", "exact"]))
def test_no_threshold_is_better(rows: list[tuple[bool, float, int]], by: str) -> None:
    scores, null = scored(rows)
    own = getattr(scores, by)
    found = best_threshold(scores, null, by)
    every = [min(null) - 1, *sorted(set(null))]
    means = {t: plain.mean_at(own, null, scores.has_answer, t) for t in every}
    best = max(means.values())
    assert found.score == pytest.approx(best)
    lowest = min(t for t in every if means[t] == pytest.approx(best))
    assert found.value == pytest.approx(lowest) or (found.value < min(null) and lowest < min(null))
    # It gives what it promised, and applies to other questions.
    applied = with_threshold(scores, null, found.value)
    assert getattr(applied, by).mean() == pytest.approx(found.score)
    for threshold in every:
        other = with_threshold(scores, null, threshold)
        assert getattr(other, by).mean() == pytest.approx(means[threshold])


def test_a_threshold_never_cuts_between_equal_null_scores() -> None:
    """The official search would promise 1.0 here, which no threshold gives."""
    scores = AnswerScores(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([True, False]))
    found = best_threshold(scores, [2.0, 2.0])
    assert found.score == 0.5
    assert json.loads(json.dumps(found.value)) == found.value < 2.0


def test_null_scores_must_be_numbers() -> None:
    scores = answer_scores(["a"], [["a"]])
    with pytest.raises(ValueError, match="null score of row 0 is inf"):
        best_threshold(scores, [np.inf])
    with pytest.raises(ValueError, match="1 gold rows, but 2"):
        with_threshold(scores, [1, 2], 0)


def test_gold_answers_of_a_real_set_are_right() -> None:
    path = shared_data() / "tasks/squad_v2/dev-v2.0.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    golds = [
        [a["text"] for a in q["answers"]]
        for article in articles
        for p in article["paragraphs"]
        for q in p["qas"]
    ]
    first = answer_scores([g[0] if g else "" for g in golds], golds)
    assert first.exact.all() and (first.f1 == 1).all()
    silent = answer_figures(answer_scores([""] * len(golds), golds)).values
    assert silent["no_answer/exact"] == 1 and silent["has_answer/exact"] == 0
    assert silent["exact"] == sum(not g for g in golds) / len(golds)
