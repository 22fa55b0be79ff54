"""What outputs of each objective come to on a set: figures, mistakes, predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stage import Table
from stages.metrics.answers import (
    AnswerScores,
    answer_figures,
    answer_scores,
    best_threshold,
    with_threshold,
)
from stages.metrics.classes import (
    class_scores,
    classification_figures,
    confusion,
    regression_figures,
)
from stages.metrics.entities import entity_figures
from stages.metrics.figures import Figures
from stages.metrics.mistakes import (
    Mistake,
    answer_mistakes,
    class_mistakes,
    tag_mistakes,
    value_mistakes,
)
from stages.text.task_answers import Answers, best_answers, fill_class, stitched
from stages.text.task_pieces import Features
from stages.text.task_tables import Row
from stages.text.tasks.rows import SequenceRow, SpanRow, TokenRow

Outputs = NDArray[np.float32]

MISTAKES = 50
TUNED = "with the null threshold {:.4g}, which was tuned on these same rows"


Task = Mapping[str, Any]


@dataclass(frozen=True)
class Scored:
    """All that outputs came to; `matrix` where there are classes."""

    figures: Figures
    mistakes: list[Mistake]
    predictions: list[dict[str, Any]]
    tables: list[Table]
    matrix: NDArray[np.int64] | None = None
    null_threshold: float | None = None


def score_classification(
    task: Task, features: Features, rows: Sequence[Row], outputs: Outputs
) -> Scored:
    """Of logits float32 [N, K]."""
    classes: list[str] = task["classes"]
    gold = np.asarray(features.labels, np.int64)
    chosen, chance = _chosen(outputs)
    positive = task["positive"]
    figures = classification_figures(
        gold, chosen, classes, classes.index(positive) if positive else 1
    )
    predictions = [
        {
            **_shown(row),
            "gold": classes[own],
            "predicted": classes[guess],
            "score": round(p, 6),
        }
        for row, own, guess, p in zip(
            rows, gold.tolist(), chosen.tolist(), chance.tolist(), strict=True
        )
    ]
    return Scored(
        figures,
        class_mistakes(outputs, gold, classes, MISTAKES),
        predictions,
        [_class_table(gold, chosen, classes)],
        confusion(gold, chosen, len(classes)),
    )


def _class_table(
    gold: NDArray[np.int64], chosen: NDArray[np.int64], classes: Sequence[str]
) -> Table:
    scores = class_scores(gold, chosen, len(classes))
    shares = (scores.precision, scores.recall, scores.f1)
    rows = [
        [name, *(round(float(share[i]), 4) for share in shares), int(scores.gold[i])]
        for i, name in enumerate(classes)
    ]
    return Table("By class", ["class", "precision", "recall", "f1", "gold"], rows)


def score_regression(
    task: Task, features: Features, rows: Sequence[Row], outputs: Outputs
) -> Scored:
    """Of values float32 [N, 1]."""
    gold = np.asarray(features.labels, np.float64)
    values = outputs[:, 0].astype(np.float64)
    predictions = [
        {**_shown(row), "gold": own, "predicted": guess, "error": guess - own}
        for row, own, guess in zip(rows, gold.tolist(), values.tolist(), strict=True)
    ]
    figures = regression_figures(gold, values)
    return Scored(figures, value_mistakes(gold, values, MISTAKES), predictions, [])


def score_tagging(task: Task, features: Features, rows: Sequence[Row], outputs: Outputs) -> Scored:
    """Of logits float32 [T, K] at all positions."""
    classes: list[str] = task["classes"]
    sentences = [row for row in rows if isinstance(row, TokenRow)]
    chosen, chance = _chosen(outputs)
    fill = fill_class(classes, task["class_counts"]["train"])
    found = stitched(
        [(features, np.stack([chosen, chance], axis=1))],
        [len(row.words) for row in sentences],
        np.array([fill, np.nan]),
    )
    gold = [row.tags or () for row in sentences]
    numbers: list[NDArray[np.int64]] = []
    predictions = []
    for row, words in zip(sentences, found, strict=True):
        numbers.append(words[:, 0].astype(np.int64))
        predictions.append(
            {
                **_shown(row),
                "gold": list(row.tags or ()),
                "predicted": [classes[i] for i in numbers[-1].tolist()],
                "score": [None if math.isnan(p) else round(p, 6) for p in words[:, 1].tolist()],
            }
        )
    guessed = [prediction["predicted"] for prediction in predictions]
    if task["scheme"] != "plain":
        figures = entity_figures(gold, guessed)
        mistakes = tag_mistakes([row.words for row in sentences], gold, guessed, MISTAKES)
        return Scored(figures, mistakes, predictions, [])
    index = {name: number for number, name in enumerate(classes)}
    own = np.array([index[tag] for tags in gold for tag in tags], np.int64)
    guess = np.concatenate(numbers)
    return Scored(
        classification_figures(own, guess, classes),
        _plain_mistakes(sentences, guessed),
        predictions,
        [_class_table(own, guess, classes)],
        confusion(own, guess, len(classes)),
    )


def score_answers(task: Task, features: Features, rows: Sequence[Row], outputs: Outputs) -> Scored:
    """Of scores float32 [T, 2] of the first and the last piece.

    Where some questions have no answer, the null threshold is tuned on these rows.
    """
    questions = [row for row in rows if isinstance(row, SpanRow)]
    found = list(
        best_answers(
            features,
            outputs[:, 0],
            outputs[:, 1],
            [row.context for row in questions],
            task["max_answer_length"],
            n_best=1,
        )
    )
    references = [[answer.text for answer in row.answers] for row in questions]
    texts = [answers.best[0].text if answers.best else "" for answers in found]
    scores = answer_scores(texts, references)
    threshold: float | None = None
    if not scores.has_answer.all():
        margins = _margins(found)
        threshold = best_threshold(scores, margins, task["metric"]).value
        scores = with_threshold(scores, margins, threshold)
        texts = [
            "" if margin > threshold else text
            for text, margin in zip(texts, margins.tolist(), strict=True)
        ]
    figures = answer_figures(scores)
    if threshold is not None:
        said = TUNED.format(threshold)
        figures.notes.update(dict.fromkeys(("exact", "f1"), said))
    predictions = [
        _answer_prediction(row, answers, text)
        for row, answers, text in zip(questions, found, texts, strict=True)
    ]
    mistakes = answer_mistakes(texts, references, scores, MISTAKES)
    return Scored(figures, mistakes, predictions, _answer_tables(scores), null_threshold=threshold)


def _chosen(outputs: Outputs) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """[N] the likeliest class, and its probability."""
    shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
    return outputs.argmax(axis=1), 1 / np.exp(shifted).sum(axis=1)


def _margins(found: Sequence[Answers]) -> NDArray[np.float64]:
    """[N] null margins; where a context has no piece, above all others instead of infinite."""
    margins = np.array([answers.null_margin for answers in found], np.float64)
    known = margins[np.isfinite(margins)]
    margins[~np.isfinite(margins)] = known.max(initial=0.0) + 1.0
    return margins


def _answer_prediction(row: SpanRow, answers: Answers, text: str) -> dict[str, Any]:
    best = answers.best[0] if answers.best and text else None
    margin = answers.null_margin
    return {
        **_shown(row),
        "gold": [answer.text for answer in row.answers],
        "predicted": text,
        "start": None if best is None else best.start,
        "end": None if best is None else best.end,
        "score": answers.best[0].score if answers.best else None,
        "null_margin": margin if math.isfinite(margin) else None,
    }


def _answer_tables(scores: AnswerScores) -> list[Table]:
    kinds = (("answer", scores.has_answer), ("no answer", ~scores.has_answer))
    rows = [
        [name, int(own.sum()), *(round(float(s[own].mean()), 4) for s in (scores.exact, scores.f1))]
        for name, own in kinds
        if own.any()
    ]
    return [Table("By what the question has", ["", "questions", "exact", "f1"], rows)]


def _plain_mistakes(rows: Sequence[TokenRow], guessed: Sequence[Sequence[str]]) -> list[Mistake]:
    """The sentences with the most wrong tags."""
    found = []
    for number, (row, tags) in enumerate(zip(rows, guessed, strict=True)):
        wrong = [
            (word, own, guess)
            for word, own, guess in zip(row.words, row.tags or (), tags, strict=True)
            if own != guess
        ]
        if wrong:
            gold = "; ".join(f"{word} ({own})" for word, own, _ in wrong)
            predicted = "; ".join(f"{word} ({guess})" for word, _, guess in wrong)
            found.append(Mistake(number, gold, predicted, float(len(wrong)), "wrong tags"))
    return sorted(found, key=lambda mistake: -mistake.badness)[:MISTAKES]


def _shown(row: Row) -> dict[str, Any]:
    """The id and the texts of a row."""
    if isinstance(row, TokenRow):
        return {"id": row.id, "words": list(row.words)}
    if isinstance(row, SpanRow):
        return {"id": row.id, "question": row.question, "context": row.context}
    pair = {} if row.text_b is None else {"text_b": row.text_b}
    return {"id": row.id, "text": row.text_a, **pair}


def text_of(row: Row) -> str:
    """A row as a person reads it."""
    if isinstance(row, SequenceRow):
        return row.text_a if row.text_b is None else f"{row.text_a} | {row.text_b}"
    return " ".join(row.words) if isinstance(row, TokenRow) else f"{row.question} | {row.context}"


SCORES = {
    "classification": score_classification,
    "regression": score_regression,
    "tagging": score_tagging,
    "answers": score_answers,
}
"""By objective: (what task.json says, features and rows of the set, outputs) -> `Scored`."""
