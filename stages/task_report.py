"""What the stage task tells of the sets that it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.stage import Histogram, Result, Table
from stages.task_source import TaskFile
from stages.text.task_pieces import IGNORED, Features, add_counts

BINS = 16
SHOWN_CLASSES = 100
SAMPLE_PIECES = 120

WORDS = {
    "truncated": "rows cut at max_length",
    "pieces": "pieces of text",
    "pieces_cut": "pieces cut off",
    "without_pieces": "rows with a text of which no piece is left",
    "long_rows": "rows of several windows",
    "words": "words",
    "words_without_pieces": "words without a piece (they get a tag by rule)",
    "windows": "windows",
    "rows_impossible": "questions without an answer",
    "rows_without_gold": "questions whose answers have no piece",
    "rows_answer_in_no_window": "questions whose answer is longer than a window shows",
    "questions_truncated": "questions cut at max_question_length",
    "question_pieces_cut": "pieces of questions cut off",
    "contexts_without_pieces": "contexts without a piece",
    "long_contexts": "contexts of several windows",
    "answers": "reference answers",
    "answers_exact": "answers that pieces give back exactly",
    "answers_begin_inside_piece": "answers that begin inside a piece",
    "answers_end_inside_piece": "answers that end inside a piece",
    "answers_begin_inside_unknown": "answers that begin inside an unknown word",
    "answers_end_inside_unknown": "answers that end inside an unknown word",
    "answers_with_outer_space": "answers with white space around them",
    "answers_with_outer_characters": "answers with control characters around them",
    "answers_without_piece": "answers without a piece",
}
"""Counts of features, in words."""


@dataclass
class SetFigures:
    """What one set came to; `add` is called with each chunk of its features.

    Attributes:
        which: "train" or "dev".
        files: that it was read from.
        read: as `Read.counts`.
        examples: as `Read.examples`.
        made: counts of the features.
        lengths: features by length.
        samples: decoded features.
    """

    which: str
    files: Sequence[TaskFile]
    read: Mapping[str, int]
    examples: Mapping[str, Sequence[str]]
    made: dict[str, int] = field(default_factory=dict)
    features: int = 0
    lengths: dict[int, int] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def add(self, part: Features, objective: str) -> None:
        """Count a chunk of features."""
        self.made = add_counts([self.made, part.counts])
        self.features += len(part)
        sizes, times = np.unique(part.input_ids.lengths, return_counts=True)
        for size, n in zip(sizes.tolist(), times.tolist(), strict=True):
            self.lengths[size] = self.lengths.get(size, 0) + n
        if objective == "regression" and part.labels is not None:
            values = part.labels[np.isfinite(part.labels)].astype(np.float64)
            self._values += [float(values.sum()), *map(float, (values.min(), values.max()))]

    @property
    def reasons(self) -> dict[str, int]:
        """Rows left out, by reason."""
        return {name: n for name, n in self.read.items() if name not in ("in", "rows")}

    def values(self) -> tuple[float, float, float] | None:
        """Least, mean and greatest value of regression."""
        if not self._values:
            return None
        return (
            min(self._values[1::3]),
            sum(self._values[::3]) / max(1, self.read["rows"]),
            max(self._values[2::3]),
        )

    def counts(self) -> dict[str, Any]:
        """For task.json; `reasons` are of rows left out."""
        own = {"in": self.read["in"], "rows": self.read["rows"], "reasons": self.reasons}
        return {**self.made, **own, "features": self.features}


def task_result(task: Mapping[str, Any], sets: Mapping[str, SetFigures]) -> Result:
    """The stage's result from what task.json says and what each set came to."""
    counts = {
        "in": sum(figures.read["in"] for figures in sets.values()),
        "out": sum(figures.read["rows"] for figures in sets.values()),
        **{
            f"{which}/{reason}": n
            for which, figures in sets.items()
            for reason, n in figures.reasons.items()
        },
    }
    numbers: dict[str, Any] = {"classes": len(task["classes"])} if task["classes"] else {}
    for which, figures in sets.items():
        numbers |= {f"rows/{which}": figures.read["rows"], f"features/{which}": figures.features}
        numbers[f"pieces/{which}"] = sum(size * n for size, n in figures.lengths.items())
        for name in ("truncated", "long_rows", "long_contexts"):
            if name in figures.made:
                numbers[f"{name}/{which}"] = figures.made[name]
    return Result(
        figures=numbers,
        counts=counts,
        unit="rows",
        report=[
            _sets_table(task, sets),
            _files_table(sets),
            *_class_tables(task, sets),
            *_value_tables(sets),
            *(_lengths(figures) for figures in sets.values()),
            _made_table(sets),
            *_left_out(sets),
        ],
        samples=[sample for figures in sets.values() for sample in figures.samples],
    )


def _sets_table(task: Mapping[str, Any], sets: Mapping[str, SetFigures]) -> Table:
    rows = [
        [which, f.read["in"], f.read["rows"], f.read["in"] - f.read["rows"], f.features]
        for which, f in sets.items()
    ]
    scheme = f", tags in {task['scheme']}" if task["scheme"] else ""
    title = f"The sets: {task['objective']}{scheme}, judged by {task['metric']}"
    return Table(title, ["set", "rows found", "used", "left out", "features"], rows)


def _files_table(sets: Mapping[str, SetFigures]) -> Table:
    rows = [
        [which, file.name, f"{file.size / 1e3:,.1f} kB"]
        for which, figures in sets.items()
        for file in figures.files
    ]
    return Table("Files", ["set", "file", "size"], rows)


def _class_tables(task: Mapping[str, Any], sets: Mapping[str, SetFigures]) -> list[Table]:
    counts = task["class_counts"]
    if not counts:
        return []
    totals = {which: max(1, sum(counts[which].values())) for which in sets}
    rows = [
        [
            name,
            *(
                f"{counts[which][name]:,} ({100 * counts[which][name] / totals[which]:.1f} %)"
                for which in sets
            ),
        ]
        for name in task["classes"][:SHOWN_CLASSES]
    ]
    what = "words" if task["objective"] == "tagging" else "rows"
    return [Table(f"Classes, by {what}", ["class", *sets], rows)]


def _value_tables(sets: Mapping[str, SetFigures]) -> list[Table]:
    rows = [
        [which, *(f"{value:.4g}" for value in values)]
        for which, figures in sets.items()
        if (values := figures.values())
    ]
    return [Table("Values", ["set", "least", "mean", "greatest"], rows)] if rows else []


def _lengths(figures: SetFigures) -> Histogram:
    longest = max(figures.lengths)
    step = max(1, -(-longest // BINS))
    edges = list(range(0, longest + step + 1, step))
    counts = [0] * (len(edges) - 1)
    for size, n in figures.lengths.items():
        counts[size // step] += n
    return Histogram(f"Features of {figures.which} by length", edges, counts, "positions")


def _made_table(sets: Mapping[str, SetFigures]) -> Table:
    rows = [
        [words, *(figures.made.get(name, 0) for figures in sets.values())]
        for name, words in WORDS.items()
        if any(figures.made.get(name) for figures in sets.values())
    ]
    return Table("What was read and cut", ["", *sets], rows)


def _left_out(sets: Mapping[str, SetFigures]) -> list[Table]:
    rows = [
        [which, reason, n, "\n".join(figures.examples.get(reason, ())[:3])]
        for which, figures in sets.items()
        for reason, n in figures.reasons.items()
    ]
    return [Table("Rows left out", ["set", "reason", "rows", "such as"], rows)] if rows else []


def sample_lines(
    part: Features, vocab: Sequence[str], classes: Sequence[str], count: int
) -> list[str]:
    """The first features decoded, with their labels."""
    lines = []
    for number in range(min(count, len(part))):
        begin, end = part.input_ids.offsets[number : number + 2].tolist()
        pieces = [vocab[i] for i in part.input_ids.values[begin:end].tolist()]
        label = ""
        if part.starts is not None and part.ends is not None:
            first, last = int(part.starts[number]), int(part.ends[number])
            answer = " ".join(pieces[first : last + 1]) if first > 0 else "none in this window"
            label = f"answer: {answer}"
        elif part.own is not None and part.labels is not None:
            tags = part.labels[begin:end].tolist()
            pieces = [
                piece if tag == IGNORED else f"{piece}/{classes[tag]}"
                for piece, tag in zip(pieces, tags, strict=True)
            ]
        elif part.labels is not None:
            value = part.labels[number].item()
            label = f"label: {classes[value] if classes else f'{value:g}'}"
        shown = " ".join(pieces[:SAMPLE_PIECES]) + (" ..." if len(pieces) > SAMPLE_PIECES else "")
        lines.append("\n".join(filter(None, (shown, label))))
    return lines
