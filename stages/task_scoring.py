"""Figures, mistakes and predictions of a task on its dev set, from what a model gives out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq

from pipeline.stage import Table
from stages.metrics.figures import Figures
from stages.metrics.report import (
    MOST_CLASSES,
    confusion_table,
    figures_table,
    mistakes_table,
    most_confused,
    page,
)
from stages.task_figures import SCORES, Outputs, Scored, text_of
from stages.text.task_pieces import Features
from stages.text.task_tables import Row, features_of, rows_of


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
        self._last: tuple[bytes, Scored] | None = None

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

    def _mistakes(self, scored: Scored) -> Table:
        texts = [text_of(row) for row in self._rows]
        return mistakes_table(scored.mistakes, texts, [row.id for row in self._rows])

    def _score(self, outputs: Outputs) -> Scored:
        """Remembered for the last outputs, by their content: a trainer may use an array again."""
        outputs = np.ascontiguousarray(outputs, np.float32)
        self._check(outputs)
        key = hashlib.blake2b(outputs.data).digest()
        if self._last is None or self._last[0] != key:
            score = SCORES[self.task["objective"]]
            self._last = key, score(self.task, self._features, self._rows, outputs)
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
