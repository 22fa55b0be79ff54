"""Rows of a task as ragged arrays, read from the Parquet that the stage task writes.

Legend: N features, T tokens over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from model.task_heads import TaskKind
from model.task_losses import IGNORED
from stages.training.examples import DataError, Ragged
from stages.training.nonfinite import lists


@dataclass(frozen=True)
class TaskExamples:
    """N features of a task.

    Attributes:
        kind: of the task.
        input_ids: special tokens included.
        a_length: [N] tokens of A; segment 0 is positions 0..a_length + 1.
        labels: "sequence": [N] int64 classes (`IGNORED`: none) or float32 values; "token": [T]
            int64 classes (`IGNORED` where none counts); "span": [N, 2] int64, positions of the
            answer's first and last token in the feature (0, 0: none; `IGNORED`: not known).
    """

    kind: TaskKind
    input_ids: Ragged
    a_length: NDArray[Any]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def tokens(self) -> int:
        """T."""
        return int(self.input_ids.offsets[-1])

    @property
    def counted(self) -> int:
        """Labels that the loss is divided by: sequences, tagged tokens or questions."""
        if self.labels.dtype.kind == "f":
            return len(self.labels)
        labels = self.labels[:, 0] if self.kind == "span" else self.labels
        return int((labels != IGNORED).sum())

    def take(self, rows: NDArray[np.int64]) -> TaskExamples:
        """The features `rows`, in that order."""
        labels = self.labels
        if self.kind == "token":
            labels = Ragged(labels, self.input_ids.offsets).take(rows).values
        else:
            labels = labels[rows]
        return replace(
            self, input_ids=self.input_ids.take(rows), a_length=self.a_length[rows], labels=labels
        )

    def table(self) -> pa.Table:
        """As columns, for a person to look at a batch."""
        columns = {"input_ids": lists(self.input_ids), "a_length": pa.array(self.a_length)}
        if self.kind == "token":
            columns["labels"] = lists(Ragged(self.labels, self.input_ids.offsets))
        elif self.kind == "span":
            columns |= {
                name: pa.array(self.labels[:, place]) for place, name in enumerate(("start", "end"))
            }
        else:
            columns["label"] = pa.array(self.labels)
        return pa.table(columns)


def read_task_examples(
    filesystem: FileSystem, path: str, kind: TaskKind, vocab_size: int, longest: int
) -> TaskExamples:
    """Read a file of features whole.

    Args:
        filesystem: where `path` lies.
        path: Parquet with `input_ids`, `a_length` and `label`, `labels`, or `start` and `end`.
        kind: of the task.
        vocab_size: ids are below it.
        longest: positions that the model has.

    Raises:
        DataError: a column is not there, or a feature does not fit the model.
    """
    wanted = {"sequence": ["label"], "token": ["labels"], "span": ["start", "end"]}[kind]
    try:
        with filesystem.open_input_file(path) as source:
            table = pq.read_table(source, columns=["input_ids", "a_length", *wanted])
    except (pa.ArrowInvalid, KeyError) as error:
        raise DataError(f"{path} is not of a task of this kind, or damaged: {error}") from None
    missing = {"input_ids", "a_length", *wanted} - set(table.column_names)
    if missing:
        raise DataError(f"{path} has no column {', '.join(sorted(missing))}: make the task anew")
    input_ids = _ragged(table["input_ids"])
    if kind == "token":
        labels = _ragged(table["labels"]).values.astype(np.int64)
    elif kind == "span":
        labels = np.stack([_numbers(table[name]) for name in wanted], axis=1).astype(np.int64)
    else:
        labels = _numbers(table["label"])
    examples = TaskExamples(kind, input_ids, _numbers(table["a_length"]), labels)
    if not len(examples):
        raise DataError(f"{path} holds no rows: there is nothing to train on")
    if kind == "token" and len(labels) != examples.tokens:
        raise DataError(f"{path}: {len(labels):,} labels for {examples.tokens:,} tokens")
    _check(path, input_ids, vocab_size, longest)
    return examples


def _check(path: str, input_ids: Ragged, vocab_size: int, longest: int) -> None:
    lengths = input_ids.lengths
    if lengths.max() > longest:
        row = int(lengths.argmax())
        raise DataError(
            f"{path}, row {row}: {lengths[row]} tokens, and the model has {longest} positions: "
            "lower the task's max_length"
        )
    if lengths.min() < 2:
        raise DataError(f"{path}, row {int(lengths.argmin())}: a row without its special tokens")
    ids = input_ids.values
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise DataError(
            f"{path} has ids up to {ids.max()}, and the model's vocabulary has {vocab_size} "
            "entries: the rows were made with another vocabulary"
        )


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy()
    return values


def _ragged(column: pa.ChunkedArray) -> Ragged:
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], whole.type)
    offsets = np.asarray(whole.offsets).astype(np.int64)
    values = np.asarray(whole.values)[offsets[0] : offsets[-1]]
    return Ragged(values, offsets - offsets[0])
