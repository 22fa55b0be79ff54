"""The rows of a task: its files read as its config says, checked as whole sets."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stages.text.tasks.conll import ConllColumns
from stages.text.tasks.glue import glue_layout
from stages.text.tasks.labels import find_classes, labels_of, require_known, require_values
from stages.text.tasks.rows import (
    MissingColumnError,
    Read,
    SequenceRow,
    SpanRow,
    TaskFileError,
    TokenRow,
    require_usable,
)
from stages.text.tasks.sequences import SequenceColumns, read_sequences
from stages.text.tasks.spans import read_spans
from stages.text.tasks.tables import TableOptions
from stages.text.tasks.tags import PREFIXES, Scheme, detect_scheme, split_tag
from stages.text.tasks.tokens import TokenColumns, read_tokens

Kind = Literal["sequence", "token", "span"]
Rows = Read[SequenceRow] | Read[TokenRow] | Read[SpanRow]

KINDS: Mapping[str, Kind] = {
    "classification": "sequence",
    "regression": "sequence",
    "tagging": "token",
    "answers": "span",
}
"""Which head and which features an objective has."""


@dataclass(frozen=True)
class TaskRows:
    """What the files of a task hold.

    Attributes:
        train, dev: the sets.
        classes: of classification and tagging, each at its index; else none.
        scheme: of tags; else None.
        class_counts: how often each class stands in train, and in dev.
    """

    train: Rows
    dev: Rows
    classes: tuple[str, ...] = ()
    scheme: Scheme | None = None
    class_counts: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)


def read_task(
    task: Mapping[str, Any],
    name: str,
    files: Mapping[str, Sequence[str]],
    max_unusable_share: float,
) -> TaskRows:
    """Read both sets of a task.

    Args:
        task: the slice of its config: objective, columns, labels, scheme.
        name: of the task, for messages.
        files: paths of "train" and of "dev".
        max_unusable_share: largest share of the rows of a set that may be left out.

    Raises:
        TaskFileError: a file is not there, damaged or lacks a column; too much cannot be used; the
            labels are no set of classes.
    """
    labels = tuple(task.get("labels", ()))
    sets: dict[str, Any] = {}
    for which in ("train", "dev"):
        try:
            sets[which] = _read(task, files[which], labels)
        except MissingColumnError as error:
            keys = ("words", "tags") if task["objective"] == "tagging" else ("text", "label")
            named = " ".join(f"tasks.{name}.{key}=..." for key in keys)
            raise TaskFileError(f"{error}. Columns are named by {named}") from None
        require_usable(sets[which], which, max_unusable_share)
    objective = task["objective"]
    if objective == "answers":
        return TaskRows(sets["train"], sets["dev"])
    if objective == "regression":
        require_values(sets["train"])
        return TaskRows(sets["train"], sets["dev"])
    scheme: Scheme | None = None
    if objective == "tagging":
        scheme = _scheme(task["scheme"], sets["train"], name)
    classes = find_classes(sets["train"], labels, scheme or "plain")
    require_known(sets["dev"], classes)
    counts = {which: _counted(read, classes) for which, read in sets.items()}
    return TaskRows(sets["train"], sets["dev"], classes, scheme, counts)


def _read(task: Mapping[str, Any], files: Sequence[str], labels: tuple[str, ...]) -> Rows:
    if task["objective"] == "answers":
        return read_spans(files, encoding=task["encoding"])
    if task["objective"] == "tagging":
        return read_tokens(files, _token_columns(task), labels)
    return read_sequences(files, _sequence_columns(task), labels)


def _sequence_columns(task: Mapping[str, Any]) -> SequenceColumns:
    if task["glue"] is not None:
        layout = glue_layout(task["glue"])
        table = dataclasses.replace(layout.table, encoding=task["encoding"])
        return dataclasses.replace(layout, id=task["id"] or "", table=table)
    return SequenceColumns(
        text_a=task["text"] or "text",
        text_b=task["text_b"] or "",
        label=task["label"] or "label",
        id=task["id"] or "",
        regression=task["objective"] == "regression",
        table=TableOptions(task["format"], task["encoding"]),
    )


def _token_columns(task: Mapping[str, Any]) -> TokenColumns:
    return TokenColumns(
        format=task["format"],
        words=task["words"] or "words",
        tags=task["tags"] or "tags",
        id=task["id"] or "",
        conll=ConllColumns(
            words=task["words_column"],
            tags=task["tags_column"],
            separator=task["separator"],
            comment=task["comment"],
        ),
        encoding=task["encoding"],
    )


def _scheme(given: Scheme | None, train: Read[TokenRow], name: str) -> Scheme:
    """The scheme that is given, or that `train` shows."""
    if given is None:
        return detect_scheme(row.tags or () for row in train.rows)
    if given == "plain":
        return given
    for row in train.rows:
        for tag in row.tags or ():
            try:
                prefix = split_tag(tag)[0]
            except ValueError as error:
                raise TaskFileError(
                    f"train is not in tasks.{name}.scheme={given}: {error}, in {row.id}. Leave "
                    "scheme out, and it is found out"
                ) from None
            if prefix and prefix not in PREFIXES[given]:
                raise TaskFileError(
                    f"train is not in tasks.{name}.scheme={given}: it has {tag!r}, in {row.id}. "
                    "Leave scheme out, and it is found out"
                )
    return given


def _counted(read: Read[SequenceRow] | Read[TokenRow], classes: Sequence[str]) -> dict[str, int]:
    counts = Counter(label for row in read.rows for label in labels_of(row))
    return {name: counts[name] for name in classes}
