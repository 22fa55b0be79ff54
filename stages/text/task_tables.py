"""Features and rows of a task as Arrow tables, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from stages.text.task_pieces import Features, Lists
from stages.text.tasks.rows import Answer, SequenceRow, SpanRow, TokenRow

Objective = Literal["classification", "regression", "tagging", "answers"]
Row = SequenceRow | TokenRow | SpanRow

_LIST_FIELDS = {"char_start": "char_starts", "char_end": "char_ends", "own": "own"}


def feature_table(
    features: Features,
    objective: Objective,
    stitching: bool,
    metadata: Mapping[bytes, bytes] | None = None,
) -> pa.Table:
    """N features as rows.

    Args:
        features: of a chunk.
        objective: which labels they have.
        stitching: keep what is needed to put windows together again.
        metadata: of the schema.

    Returns:
        Columns `row` int64, `input_ids` list<int32>, `a_length` int32; `label` int64
        (classification) or float32 (regression), `labels` list<int64> (tagging), or `start` and
        `end` int64 (answers). With `stitching`, but for texts, `char_start` and `char_end`
        list<int32> and `own` list<bool>, as in `Features`.
    """
    offsets = pa.array(features.input_ids.offsets.astype(np.int32))

    def lists(values: Any) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values))

    columns: dict[str, pa.Array] = {
        "row": pa.array(features.rows.astype(np.int64)),
        "input_ids": lists(features.input_ids.values),
        "a_length": pa.array(features.a_length),
    }
    if objective == "tagging":
        columns["labels"] = lists(features.labels)
    elif objective == "answers":
        columns |= {"start": pa.array(features.starts), "end": pa.array(features.ends)}
    else:
        columns["label"] = pa.array(features.labels)
    if stitching and features.own is not None:
        columns |= {name: lists(getattr(features, own)) for name, own in _LIST_FIELDS.items()}
    table = pa.table(columns)
    return table.replace_schema_metadata(dict(metadata)) if metadata else table


def features_of(table: pa.Table) -> Features:
    """The reverse of `feature_table`."""
    ids = _column(table, "input_ids")
    fields: dict[str, Any] = {
        own: _column(table, name).values.to_numpy(zero_copy_only=False)
        for name, own in {**_LIST_FIELDS, "labels": "labels"}.items()
        if name in table.column_names
    }
    for name, own in {"label": "labels", "start": "starts", "end": "ends"}.items():
        if name in table.column_names:
            fields[own] = table[name].to_numpy()
    return Features(
        rows=table["row"].to_numpy(),
        input_ids=Lists(ids.values.to_numpy(), ids.offsets.to_numpy().astype(np.int64)),
        a_length=table["a_length"].to_numpy(),
        **fields,
    )


def _column(table: pa.Table, name: str) -> pa.ListArray:
    """A column of lists as one array whose offsets begin at 0."""
    column = table[name]
    if column.num_chunks == 1 and column.chunk(0).offset == 0:
        return column.chunk(0)
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


_TEXTS = pa.list_(pa.string())


def row_table(rows: Sequence[Row]) -> pa.Table:
    """Rows of one kind: their ids, texts and gold, what scoring shows and compares.

    Returns:
        `id`, and `text_a`, `text_b`, `label` (string), `value` (float64); or `words`, `tags`
        (lists); or `question`, `context`, `answers`, `answer_starts` (lists), `is_impossible`.
    """
    columns: dict[str, Any] = {"id": pa.array([row.id for row in rows], pa.string())}
    first = rows[0]
    if isinstance(first, SequenceRow):
        own = [row for row in rows if isinstance(row, SequenceRow)]
        labels = [row.label for row in own]
        columns |= {
            "text_a": pa.array([row.text_a for row in own], pa.string()),
            "text_b": pa.array([row.text_b for row in own], pa.string()),
            "label": pa.array([x if isinstance(x, str) else None for x in labels], pa.string()),
            "value": pa.array([x if isinstance(x, float) else None for x in labels], pa.float64()),
        }
    elif isinstance(first, TokenRow):
        words = [row for row in rows if isinstance(row, TokenRow)]
        columns |= {
            "words": pa.array([list(row.words) for row in words], _TEXTS),
            "tags": pa.array([list(row.tags or ()) for row in words], _TEXTS),
        }
    else:
        spans = [row for row in rows if isinstance(row, SpanRow)]
        starts = [[answer.start for answer in row.answers] for row in spans]
        columns |= {
            "question": pa.array([row.question for row in spans], pa.string()),
            "context": pa.array([row.context for row in spans], pa.string()),
            "answers": pa.array([[a.text for a in row.answers] for row in spans], _TEXTS),
            "answer_starts": pa.array(starts, pa.list_(pa.int64())),
            "is_impossible": pa.array([row.is_impossible for row in spans], pa.bool_()),
        }
    return pa.table(columns)


def rows_of(table: pa.Table) -> list[Row]:
    """The reverse of `row_table`."""
    return list(_rows(table.to_pylist()))


def _rows(values: Iterable[Mapping[str, Any]]) -> Iterable[Row]:
    for v in values:
        if "words" in v:
            yield TokenRow(v["id"], tuple(v["words"]), tuple(v["tags"]))
        elif "question" in v:
            answers = zip(v["answer_starts"], v["answers"], strict=True)
            found = tuple(Answer(start, text) for start, text in answers)
            yield SpanRow(v["id"], v["question"], v["context"], found, v["is_impossible"])
        else:
            label = v["value"] if v["label"] is None else v["label"]
            yield SequenceRow(v["id"], v["text_a"], v["text_b"], label)
