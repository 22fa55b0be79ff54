"""The worst mistakes of a run, as rows for a person to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stages.metrics.answers import AnswerScores
from stages.metrics.entities import Strict, entities
from stages.metrics.figures import check_finite, check_rows

Order = Literal["loss", "confidence"]


@dataclass(frozen=True)
class Mistake:
    """One row that was got wrong.

    Attributes:
        row: its index.
        gold: what it should have been, in words.
        predicted: what it was taken for.
        badness: what the rows are ordered by, the worst first; `measure` names it.
        measure: "loss", "confidence", "error", "wrong entities" or "1 - f1".
    """

    row: int
    gold: str
    predicted: str
    badness: float
    measure: str


def worst(badness: ArrayLike, wrong: ArrayLike, count: int) -> NDArray[np.int64]:
    """Indices of at most `count` wrong rows, the highest badness first, ties in row order.

    Args:
        badness: float[N].
        wrong: bool[N].
        count: at most so many.

    Raises:
        ValueError: no rows, unequal lengths, or badness that is not finite.
    """
    values, mask = np.asarray(badness, np.float64), np.asarray(wrong, bool)
    check_rows(values, mask)
    check_finite("the badness", values)
    rows = np.flatnonzero(mask)
    return rows[np.argsort(-values[rows], kind="stable")][:count]


def class_mistakes(
    logits: ArrayLike,
    gold: ArrayLike,
    classes: Sequence[str],
    count: int,
    by: Order = "loss",
) -> list[Mistake]:
    """Rows whose likeliest class is not theirs.

    Args:
        logits: float[N, K].
        gold: int[N].
        classes: K names.
        count: at most so many.
        by: "loss" (nats of the gold class) or "confidence" (probability of the wrong one).

    Raises:
        ValueError: no rows, unequal lengths, or a logit that is not finite.
    """
    scores, true = np.asarray(logits, np.float64), np.asarray(gold)
    check_rows(true, scores)
    check_finite("the logit", scores)
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    guess = scores.argmax(axis=1)
    at = np.arange(len(true))
    badness = -logs[at, true] if by == "loss" else np.exp(logs[at, guess])
    return [
        Mistake(int(i), classes[true[i]], classes[guess[i]], float(badness[i]), by)
        for i in worst(badness, guess != true, count)
    ]


def value_mistakes(gold: ArrayLike, predicted: ArrayLike, count: int) -> list[Mistake]:
    """Regression: the rows whose prediction is farthest off.

    Raises:
        ValueError: no rows, unequal lengths, or a prediction that is not finite.
    """
    x, y = np.asarray(gold, np.float64).reshape(-1), np.asarray(predicted, np.float64).reshape(-1)
    check_rows(x, y)
    error = np.abs(x - y)
    return [
        Mistake(int(i), f"{x[i]:.6g}", f"{y[i]:.6g}", float(error[i]), "error")
        for i in worst(error, error > 0, count)
    ]


def tag_mistakes(
    words: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    count: int,
    strict: Strict | None = None,
) -> list[Mistake]:
    """The sentences with the most entities missed or invented, named on both sides.

    Raises:
        ValueError: no sentences, or unequal numbers of them.
    """
    check_rows(gold, predicted)
    missed, invented = [], []
    for true, guessed in zip(gold, predicted, strict=True):
        sides = entities(true, strict), entities(guessed, strict)
        missed.append([e for e in sides[0] if e not in sides[1]])
        invented.append([e for e in sides[1] if e not in sides[0]])

    def named(row: int, found: Sequence[tuple[int, int, str]]) -> str:
        return "; ".join(f"{' '.join(words[row][a:b])} ({kind})" for a, b, kind in found) or "none"

    wrong = np.array([len(a) + len(b) for a, b in zip(missed, invented, strict=True)])
    return [
        Mistake(
            int(i), named(i, missed[i]), named(i, invented[i]), float(wrong[i]), "wrong entities"
        )
        for i in worst(wrong, wrong > 0, count)
    ]


def answer_mistakes(
    predicted: Sequence[str],
    answers: Sequence[Sequence[str]],
    scores: AnswerScores,
    count: int,
    confidence: ArrayLike | None = None,
) -> list[Mistake]:
    """Questions whose answer is no exact match: the surest first, or else those of the lowest F1.

    Args:
        predicted: N texts.
        answers: N times the references.
        scores: of these predictions.
        count: at most so many.
        confidence: float[N], probability of the answer.

    Raises:
        ValueError: no questions, unequal numbers, or a confidence that is not finite.
    """
    check_rows(answers, predicted)
    by = "1 - f1" if confidence is None else "confidence"
    badness = 1 - scores.f1 if confidence is None else np.asarray(confidence, np.float64)
    return [
        Mistake(
            int(i),
            " | ".join(dict.fromkeys(answers[i])) or "no answer",
            predicted[i] or "no answer",
            float(badness[i]),
            by,
        )
        for i in worst(badness, scores.exact < 1, count)
    ]
