"""Figures, mistakes and predictions of a task on its dev set, from what a model gives out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq
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
from stages.metrics.report import (
    MOST_CLASSES,
    confusion_table,
    figures_table,
    mistakes_table,
    most_confused,
    page,
)
from stages.text.task_answers import Answers, best_answers, fill_class, stitched
from stages.text.task_pieces import Features
from stages.text.task_tables import Row, features_of, rows_of
from stages.text.tasks.rows import SequenceRow, SpanRow, TokenRow

Outputs = NDArray[np.float32]

MISTAKES = 50
N_BEST = 20
TUNED = "with the null threshold {:.4g}, which was tuned on these same rows"


class TaskArtifact(Protocol):
    """What is read of an artifact of the stage task."""

    @property
    def node(self) -> str:
        """Name of its node."""
        ...

    def read_bytes(self, name: str) -> bytes:
        """A whole file."""
        ...

    def open(self, name: str) -> Any:
        """A file as a seekable stream."""
        ...


@dataclass(frozen=True)
class _Scored:
    """All that outputs came to; `matrix` where there are classes."""

    figures: Figures
    mistakes: list[Mistake]
    predictions: list[dict[str, Any]]
    tables: list[Table]
    matrix: NDArray[np.int64] | None = None
    null_threshold: float | None = None


class Scorer:
    """Scores outputs on a task's dev set.

    Outputs are float32 in the order of dev.parquet: [N, K] logits (classification; [N, 1] values
    for regression), [T, K] logits at all positions (tagging), or [T, 2] scores of the first and
    the last piece (answers).

    Attributes:
        task: what task.json says.
        metric: the figure that the task is judged by.
        higher_is_better: whether more of it is better.
        classes: names by index.
    """

    def __init__(
        self, task: Mapping[str, Any], features: Features, rows: Sequence[Row], title: str
    ) -> None:
        """Take a task apart; `open` does it for an artifact.

        Args:
            task: as task.json.
            features: of dev, with what stitching needs.
            rows: of dev.
            title: names the task on pages.
        """
        self.task = dict(task)
        self.metric: str = task["metric"]
        self.higher_is_better: bool = task["higher_is_better"]
        self.classes: tuple[str, ...] = tuple(task["classes"])
        self._features = features
        self._rows = rows
        self._title = title
        self._last: tuple[bytes, _Scored] | None = None

    @classmethod
    def open(cls, task: TaskArtifact) -> Scorer:
        """The scorer of an artifact of the stage task."""
        described = json.loads(task.read_bytes("task.json"))
        with task.open("dev.parquet") as file:
            features = features_of(pq.read_table(file))
        with task.open("dev-rows.parquet") as file:
            rows = rows_of(pq.read_table(file))
        return cls(described, features, rows, task.node.partition("/")[2] or task.node)

    def figures(self, outputs: Outputs) -> Figures:
        """All figures of the objective; notes say what must be known of them."""
        return self._score(outputs).figures

    def value(self, outputs: Outputs) -> float:
        """The metric; the worst that there is where it is undefined (a correlation of equal
        predictions)."""
        worst = -math.inf if self.higher_is_better else math.inf
        return self.figures(outputs).values.get(self.metric, worst)

    def null_threshold(self, outputs: Outputs) -> float | None:
        """Above this null margin a question has no answer: tuned for the metric on dev, where some
        of its questions have none (SQuAD 2); else None."""
        return self._score(outputs).null_threshold

    def tables(self, outputs: Outputs) -> list[Table]:
        """Figures, what was confused or each class on its own, and the worst mistakes."""
        scored = self._score(outputs)
        found = [figures_table(scored.figures)]
        if scored.matrix is not None:
            few = len(self.classes) <= MOST_CLASSES
            found.append((confusion_table if few else most_confused)(scored.matrix, self.classes))
        return [*found, *scored.tables, self._mistakes(scored)]

    def page(self, outputs: Outputs) -> str:
        """The same as one HTML page."""
        scored = self._score(outputs)
        tables = [figures_table(scored.figures), *scored.tables, self._mistakes(scored)]
        return page(f"{self._title}: mistakes on dev", tables, scored.matrix, self.classes)

    def predictions(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """A dict of JSON values for each row of dev: `id`, its texts, `gold`, `predicted`, `score`.

        `score` is the probability of what was predicted, of tags one a word (None where a word has
        no piece), of answers the sum of the scores of both ends. Regression has `error` instead.
        """
        yield from self._score(outputs).predictions

    def _mistakes(self, scored: _Scored) -> Table:
        texts = [_text(row) for row in self._rows]
        return mistakes_table(scored.mistakes, texts, [row.id for row in self._rows])

    def _score(self, outputs: Outputs) -> _Scored:
        """Remembered for the last outputs, by their content: a trainer may use an array again."""
        outputs = np.ascontiguousarray(outputs, np.float32)
        self._check(outputs)
        key = hashlib.blake2b(outputs.data).digest()
        if self._last is None or self._last[0] != key:
            score = {
                "classification": self._classification,
                "regression": self._regression,
                "tagging": self._tagging,
                "answers": self._answers,
            }[self.task["objective"]]
            self._last = key, score(outputs)
        return self._last[1]

    def _check(self, outputs: Outputs) -> None:
        objective = self.task["objective"]
        positions = int(self._features.input_ids.offsets[-1])
        wanted = {
            "classification": (len(self._features), len(self.classes)),
            "regression": (len(self._features), 1),
            "tagging": (positions, len(self.classes)),
            "answers": (positions, 2),
        }[objective]
        if outputs.shape != wanted:
            raise ValueError(f"outputs of {objective} are {wanted} here, not {outputs.shape}")
        if not np.isfinite(outputs).all():
            raise ValueError("some outputs are not finite numbers")

    def _classification(self, outputs: Outputs) -> _Scored:
        gold = np.asarray(self._features.labels, np.int64)
        chosen, chance = _chosen(outputs)
        positive = self.task["positive"]
        figures = classification_figures(
            gold, chosen, self.classes, self.classes.index(positive) if positive else 1
        )
        predictions = [
            {
                **_shown(row),
                "gold": self.classes[own],
                "predicted": self.classes[guess],
                "score": round(p, 6),
            }
            for row, own, guess, p in zip(
                self._rows, gold.tolist(), chosen.tolist(), chance.tolist(), strict=True
            )
        ]
        return _Scored(
            figures,
            class_mistakes(outputs, gold, self.classes, MISTAKES),
            predictions,
            [self._class_table(gold, chosen)],
            confusion(gold, chosen, len(self.classes)),
        )

    def _class_table(self, gold: NDArray[np.int64], chosen: NDArray[np.int64]) -> Table:
        scores = class_scores(gold, chosen, len(self.classes))
        shares = (scores.precision, scores.recall, scores.f1)
        rows = [
            [name, *(round(float(share[i]), 4) for share in shares), int(scores.gold[i])]
            for i, name in enumerate(self.classes)
        ]
        return Table("By class", ["class", "precision", "recall", "f1", "gold"], rows)

    def _regression(self, outputs: Outputs) -> _Scored:
        gold = np.asarray(self._features.labels, np.float64)
        values = outputs[:, 0].astype(np.float64)
        predictions = [
            {**_shown(row), "gold": own, "predicted": guess, "error": guess - own}
            for row, own, guess in zip(self._rows, gold.tolist(), values.tolist(), strict=True)
        ]
        figures = regression_figures(gold, values)
        return _Scored(figures, value_mistakes(gold, values, MISTAKES), predictions, [])

    def _tagging(self, outputs: Outputs) -> _Scored:
        rows = [row for row in self._rows if isinstance(row, TokenRow)]
        chosen, chance = _chosen(outputs)
        fill = fill_class(self.classes, self.task["class_counts"]["train"])
        found = stitched(
            [(self._features, np.stack([chosen, chance], axis=1))],
            [len(row.words) for row in rows],
            np.array([fill, np.nan]),
        )
        gold = [row.tags or () for row in rows]
        numbers: list[NDArray[np.int64]] = []
        predictions = []
        for row, words in zip(rows, found, strict=True):
            numbers.append(words[:, 0].astype(np.int64))
            predictions.append(
                {
                    **_shown(row),
                    "gold": list(row.tags or ()),
                    "predicted": [self.classes[i] for i in numbers[-1].tolist()],
                    "score": [None if math.isnan(p) else round(p, 6) for p in words[:, 1].tolist()],
                }
            )
        guessed = [prediction["predicted"] for prediction in predictions]
        if self.task["scheme"] != "plain":
            figures = entity_figures(gold, guessed)
            mistakes = tag_mistakes([row.words for row in rows], gold, guessed, MISTAKES)
            return _Scored(figures, mistakes, predictions, [])
        index = {name: number for number, name in enumerate(self.classes)}
        own = np.array([index[tag] for tags in gold for tag in tags], np.int64)
        guess = np.concatenate(numbers)
        return _Scored(
            classification_figures(own, guess, self.classes),
            _plain_mistakes(rows, guessed),
            predictions,
            [self._class_table(own, guess)],
            confusion(own, guess, len(self.classes)),
        )

    def _answers(self, outputs: Outputs) -> _Scored:
        rows = [row for row in self._rows if isinstance(row, SpanRow)]
        found = list(
            best_answers(
                self._features,
                outputs[:, 0],
                outputs[:, 1],
                [row.context for row in rows],
                self.task["max_answer_length"],
                N_BEST,
            )
        )
        references = [[answer.text for answer in row.answers] for row in rows]
        texts = [answers.best[0].text if answers.best else "" for answers in found]
        scores = answer_scores(texts, references)
        threshold: float | None = None
        if not scores.has_answer.all():
            margins = _margins(found)
            threshold = best_threshold(scores, margins, self.metric).value
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
            for row, answers, text in zip(rows, found, texts, strict=True)
        ]
        mistakes = answer_mistakes(texts, references, scores, MISTAKES)
        return _Scored(
            figures, mistakes, predictions, _answer_tables(scores), null_threshold=threshold
        )


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


def _text(row: Row) -> str:
    """A row as a person reads it."""
    if isinstance(row, SequenceRow):
        return row.text_a if row.text_b is None else f"{row.text_a} | {row.text_b}"
    return " ".join(row.words) if isinstance(row, TokenRow) else f"{row.question} | {row.context}"
