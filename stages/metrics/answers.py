"""Exact match and F1 of answers, by the rules of SQuAD (Rajpurkar et al. 2016, 2018).

Figures are fractions of 1; the official scripts print them times 100.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stages.metrics.figures import Figures, check_finite, check_rows


@dataclass(frozen=True)
class Rules:
    """How answers are made comparable: lower case, no punctuation, no articles, plain spaces.

    The defaults are the official rules: they know ASCII punctuation and English articles only, so
    that “Paris” in curly quotes is another answer than Paris, and F1 of a language without spaces
    is little more than exact match.

    Attributes:
        articles: words that are left out.
        unicode_punctuation: leave out all punctuation (categories P*), not ASCII's alone.
        ideographs_apart: each Han, Hiragana or Katakana character is a word of its own for F1.
    """

    articles: tuple[str, ...] = ("a", "an", "the")
    unicode_punctuation: bool = False
    ideographs_apart: bool = False


OFFICIAL = Rules()

IDEOGRAPH = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)


def normalised(text: str, rules: Rules = OFFICIAL) -> str:
    """The text as answers are compared."""
    text = "".join(c for c in text.lower() if not _is_punctuation(c, rules))
    if rules.articles:
        text = re.sub(rf"\b({'|'.join(map(re.escape, rules.articles))})\b", " ", text)
    if rules.ideographs_apart:
        text = IDEOGRAPH.sub(r" \1 ", text)
    return " ".join(text.split())


def exact_match(predicted: str, gold: str, rules: Rules = OFFICIAL) -> bool:
    """Whether both are the same once normalised."""
    return normalised(predicted, rules) == normalised(gold, rules)


def answer_f1(predicted: str, gold: str, rules: Rules = OFFICIAL) -> float:
    """F1 of the words that both share; where one has none, 1 if neither has (SQuAD 2)."""
    ours, theirs = normalised(predicted, rules).split(), normalised(gold, rules).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs))


@dataclass(frozen=True)
class AnswerScores:
    """Scores of N questions.

    Attributes:
        exact: float64[N], 0 or 1.
        f1: float64[N].
        has_answer: bool[N], whether the question has one.
    """

    exact: NDArray[np.float64]
    f1: NDArray[np.float64]
    has_answer: NDArray[np.bool_]


def answer_scores(
    predicted: Sequence[str], answers: Sequence[Sequence[str]], rules: Rules = OFFICIAL
) -> AnswerScores:
    """Each question's best score over its reference answers.

    Args:
        predicted: N texts; "" says that there is no answer.
        answers: N times the references; none where the question has no answer. References that
            normalise to nothing count as no answer, as the official script of SQuAD 2 has it.
        rules: how texts are made comparable.

    Raises:
        ValueError: no questions, or unequal numbers.
    """
    check_rows(answers, predicted)
    exact, f1 = [], []
    for ours, references in zip(predicted, answers, strict=True):
        golds = [g for g in references if normalised(g, rules)] or [""]
        exact.append(max(float(exact_match(ours, g, rules)) for g in golds))
        f1.append(max(answer_f1(ours, g, rules) for g in golds))
    return AnswerScores(
        np.array(exact),
        np.array(f1),
        np.array([len(references) > 0 for references in answers]),
    )


def answer_figures(scores: AnswerScores) -> Figures:
    """Means over all questions, and over those with and without an answer.

    Returns:
        `exact`, `f1`; where both kinds of question are there, also `has_answer/exact`,
        `has_answer/f1`, `no_answer/exact` and `no_answer/f1`.
    """
    figures = Figures({"exact": float(scores.exact.mean()), "f1": float(scores.f1.mean())})
    if scores.has_answer.all():
        return figures
    for name, rows in (("has_answer", scores.has_answer), ("no_answer", ~scores.has_answer)):
        if rows.any():
            figures.values[f"{name}/exact"] = float(scores.exact[rows].mean())
            figures.values[f"{name}/f1"] = float(scores.f1[rows].mean())
        else:
            why = "undefined: no question has an answer"
            figures.notes.update({f"{name}/exact": why, f"{name}/f1": why})
    return figures


@dataclass(frozen=True)
class Threshold:
    """Above `value` the null score says: no answer. `score` is the mean that it gave."""

    value: float
    score: float


def best_threshold(scores: AnswerScores, null_scores: ArrayLike, by: str = "f1") -> Threshold:
    """The threshold of the null score that gives the best mean on these questions.

    Tune it on one set and apply it to another with `with_threshold`: on the set it was tuned on
    its score is too good.

    Args:
        scores: of the best spans, whatever the null scores say.
        null_scores: float[N]; the higher, the surer that there is no answer (the score of `[CLS]`
            less that of the best span, or a probability).
        by: "f1" or "exact".

    Returns:
        One of the null scores, the lowest where several give the same mean; a number just below
        all of them where answering nothing is best. Unlike the official search it never ends
        between questions of the same null score, where no threshold can cut.

    Raises:
        ValueError: unequal numbers, or a null score that is not finite.
    """
    own = {"f1": scores.f1, "exact": scores.exact}[by]
    null = _null_scores(scores, null_scores)
    order = np.argsort(null, kind="stable")
    silent = (~scores.has_answer).astype(np.float64)
    means = (silent.sum() + np.cumsum((own - silent)[order])) / len(null)
    ends = np.flatnonzero(np.append(np.diff(null[order]) > 0, True))
    # The rounding of sums must not choose between equal means.
    best = ends[np.argmax(np.round(means[ends], 12))]
    if means[best] <= silent.mean() + 1e-12:
        return Threshold(float(np.nextafter(null.min(), -np.inf)), float(silent.mean()))
    return Threshold(float(null[order[best]]), float(means[best]))


def with_threshold(scores: AnswerScores, null_scores: ArrayLike, threshold: float) -> AnswerScores:
    """The scores when a null score above the threshold makes the answer empty.

    Raises:
        ValueError: as `best_threshold`.
    """
    silent = _null_scores(scores, null_scores) > threshold
    right = (~scores.has_answer).astype(np.float64)
    return replace(
        scores,
        exact=np.where(silent, right, scores.exact),
        f1=np.where(silent, right, scores.f1),
    )


def _null_scores(scores: AnswerScores, null_scores: ArrayLike) -> NDArray[np.float64]:
    null = np.asarray(null_scores, np.float64).reshape(-1)
    check_rows(scores.exact, null)
    check_finite("the null score", null)
    return null


def _is_punctuation(character: str, rules: Rules) -> bool:
    if character in string.punctuation:
        return True
    return rules.unicode_punctuation and unicodedata.category(character).startswith("P")
