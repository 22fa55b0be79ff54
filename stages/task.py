"""Stage task: the files of a task -> features, with the vocabulary of the encoder to come.

It runs in the driver, which is where a person's files are; they are small beside a corpus.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.stage import Context, Result, StageError
from stages.tables import ROW_GROUP_ROWS, write_table
from stages.task_reading import KINDS, TaskRows, read_task
from stages.task_report import SetFigures, sample_lines, task_result
from stages.task_source import SETS, given_tokens, list_task, task_files
from stages.text.engines import EngineFailed
from stages.text.parity import choose_engine
from stages.text.task_pieces import Features, sequence_features
from stages.text.task_spans import span_features
from stages.text.task_tables import feature_table, row_table
from stages.text.task_words import word_features
from stages.text.tasks.rows import SequenceRow, SpanRow, TaskFileError, TokenRow
from stages.text.tokenizer_files import VOCAB_FILE, tokenizer_files, vocabulary_digest
from stages.text.wordpiece import Tokenizer
from stages.vocabulary_files import DIGEST_KEY, SETTINGS, load_tokenizer

TASK_FILE = "task.json"
ROWS_FILE = "dev-rows.parquet"

LOWER_IS_BETTER = ("mean_squared_error",)

SAMPLES = 4
PARITY_TEXTS = 32


def run(context: Context) -> Result:
    """Read the files, make features of train and dev, write them beside the tokeniser."""
    task, settings = context.node.config["task"], context.node.settings["task"]
    name = settings["name"]
    files = task_files(settings, name, Path.cwd())
    if context.raw is not None and (
        list(list_task(settings, name, Path.cwd()).entries) != list(context.raw.entries)
    ):
        raise StageError(
            f"the files of tasks.{name} changed while the run began: run again, and they are read "
            "anew"
        )
    paths = {which: [file.path for file in files[which]] for which in SETS}
    context.progress.start(None, "features")
    try:
        found = read_task(task, name, paths, settings["max_unusable_share"])
        task = _settled(context, task, found, name)
    except TaskFileError as error:
        raise StageError(f"tasks.{name}: {error}") from None
    tokenizer = _tokenizer(context, settings)
    for note in choose_engine(
        tokenizer, context.node.settings["speed"]["tokenizer"], _texts(found, PARITY_TEXTS)
    ):
        context.progress.note(note)
    sets: dict[str, SetFigures] = {}
    for which in SETS:
        context.stop.check()
        read = getattr(found, which)
        figures = SetFigures(which, files[which], dict(read.counts), read.examples)
        _write_features(context, task, found, which, tokenizer, figures)
        sets[which] = figures
    shared = _rows_in_both(found)
    if shared:
        context.progress.note(
            f"{shared:,} of {len(found.dev.rows):,} dev rows stand in train too: a model knows "
            "them by heart, and dev figures are too good"
        )
    table = row_table(found.dev.rows)
    write_table(context.output, ROWS_FILE, [table], row_group_rows=ROW_GROUP_ROWS)
    described = _described(task, found, sets)
    described["dev"]["rows_in_train"] = shared
    data = json.dumps(described, ensure_ascii=False, indent=1, sort_keys=True).encode()
    context.output.write_bytes(TASK_FILE, data)
    return task_result(described, sets)


def _tokenizer(context: Context, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokeniser of this run, or of the model that is given; its files are written."""
    if settings["init_from"] is None:
        vocab = context.inputs["vocab"]
        tokenizer = load_tokenizer(vocab)
        for name in (*_file_names(tokenizer), SETTINGS):
            rows = len(tokenizer.vocab) if name == VOCAB_FILE else None
            context.output.write_bytes(name, vocab.read_bytes(name), rows=rows)
        return tokenizer
    _, given = given_tokens(settings["init_from"], settings["init_from_key"], Path.cwd())
    tokenizer = Tokenizer(given.tokens, given.normalisation, given.max_word_characters)
    normalisation = dataclasses.asdict(given.normalisation) | {
        "max_word_characters": given.max_word_characters
    }
    files = tokenizer_files(tokenizer, given.positions)
    files[SETTINGS] = json.dumps(normalisation, sort_keys=True).encode()
    for name, data in files.items():
        rows = len(tokenizer.vocab) if name == VOCAB_FILE else None
        context.output.write_bytes(name, data, rows=rows)
    return tokenizer


def _file_names(tokenizer: Tokenizer) -> list[str]:
    return list(tokenizer_files(tokenizer, 512))


def _settled(
    context: Context, task: Mapping[str, Any], found: TaskRows, name: str
) -> dict[str, Any]:
    """The slice with the metric as the data allow it, and the class that f1 is of."""
    settled = {**task, "positive": task.get("positive")}
    metric = task["metric"]
    if found.scheme == "plain" and metric != "accuracy":
        context.progress.note(
            f"these tags mark no entities: the task is judged by accuracy, not by {metric}"
        )
        settled["metric"] = "accuracy"
    if task["objective"] == "classification" and len(found.classes) == 2:
        positive = settled["positive"] or found.classes[1]
        if positive not in found.classes:
            raise TaskFileError(
                f"tasks.{name}.positive={positive} is no class: they are "
                f"{' and '.join(map(repr, found.classes))}"
            )
        settled["positive"] = positive
    elif task["objective"] == "classification":
        if metric in ("f1", "precision", "recall"):
            raise TaskFileError(
                f"tasks.{name}.metric={metric} is of two classes, and there are "
                f"{len(found.classes)}: set metric=f1/macro, accuracy or matthews"
            )
        settled["positive"] = None
    return settled


def _rows_in_both(found: TaskRows) -> int:
    """Rows of dev whose text (words; question and context) is that of a row of train."""
    known = {_content(row) for row in found.train.rows}
    return sum(_content(row) in known for row in found.dev.rows)


def _content(row: Any) -> bytes:
    if isinstance(row, SequenceRow):
        parts = [row.text_a, row.text_b or ""]
    elif isinstance(row, TokenRow):
        parts = list(row.words)
    else:
        parts = [row.question, row.context]
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


def _texts(found: TaskRows, count: int) -> list[str]:
    """Texts of some rows, to hold the fast tokenisers against the plain one."""
    rows: list[Any] = [*found.train.rows[:count], *found.dev.rows[:count]]
    texts = []
    for row in rows:
        if isinstance(row, SequenceRow):
            texts += [row.text_a, row.text_b or ""]
        elif isinstance(row, TokenRow):
            texts.append(" ".join(row.words))
        else:
            texts += [row.question, row.context]
    return [text[:1000] for text in texts]


def _write_features(
    context: Context,
    task: Mapping[str, Any],
    found: TaskRows,
    which: str,
    tokenizer: Tokenizer,
    figures: SetFigures,
) -> None:
    metadata = {DIGEST_KEY: vocabulary_digest(tokenizer).encode()}
    objective = task["objective"]

    def tables() -> Iterator[Any]:
        for part in _features(task, found, getattr(found, which).rows, tokenizer):
            figures.add(part, objective)
            if which == "train" and len(figures.samples) < SAMPLES:
                figures.samples += sample_lines(part, tokenizer.vocab, found.classes, SAMPLES)
            context.progress.advance(len(part))
            context.stop.check()
            yield feature_table(part, objective, which == "dev", metadata)

    try:
        write_table(
            context.output,
            f"{which}.parquet",
            tables(),
            row_group_rows=ROW_GROUP_ROWS,
            byte_stream_split=("input_ids.list.element",),
        )
    except EngineFailed as error:
        raise StageError(f"the tokeniser failed: {error}: set speed.tokenizer=tokenizers") from None


def _features(
    task: Mapping[str, Any], found: TaskRows, rows: Iterable[Any], tokenizer: Tokenizer
) -> Iterator[Features]:
    length = task["max_length"]
    if task["objective"] == "answers":
        spans: Iterable[SpanRow] = rows
        return span_features(spans, tokenizer, length, task["overlap"], task["max_question_length"])
    if task["objective"] == "tagging":
        return word_features(rows, tokenizer, length, task["overlap"], found.classes)
    classes = None if task["objective"] == "regression" else found.classes
    return sequence_features(rows, tokenizer, length, classes)


def _described(
    task: Mapping[str, Any], found: TaskRows, sets: Mapping[str, SetFigures]
) -> dict[str, Any]:
    """What task.json says."""
    metric = task["metric"]
    return {
        "objective": task["objective"],
        "kind": KINDS[task["objective"]],
        "classes": list(found.classes),
        "class_counts": {which: dict(counts) for which, counts in found.class_counts.items()},
        "scheme": found.scheme,
        "positive": task["positive"],
        "max_length": task["max_length"],
        "overlap": task.get("overlap"),
        "max_question_length": task.get("max_question_length"),
        "max_answer_length": task.get("max_answer_length"),
        "metric": metric,
        "higher_is_better": metric not in LOWER_IS_BETTER,
        **{which: figures.counts() for which, figures in sets.items()},
    }
