"""Rows of sequence and pair classification and of regression, from tables with named columns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.text.records import Reject, record_id
from stages.text.tasks.rows import KnownLabels, Read, SequenceRow, file_names, gather
from stages.text.tasks.tables import Cells, TableOptions, json_kind, table_rows

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class SequenceColumns:
    """Which columns hold what.

    Attributes:
        text_a: the text, or the first of a pair.
        text_b: the second of a pair; "" for one text.
        label: the class or value; "" for rows without labels (to predict).
        id: of the row; "": its place in the file.
        regression: the label is a number, not the name of a class.
        no_label: labels that say there is none.
        table: how the file is read.
    """

    text_a: str = "text"
    text_b: str = ""
    label: str = "label"
    id: str = ""
    regression: bool = False
    no_label: tuple[str, ...] = ("",)
    table: TableOptions = field(default_factory=TableOptions)


def read_sequences(
    paths: Sequence[str | Path], columns: SequenceColumns, classes: Sequence[str] = ()
) -> Read[SequenceRow]:
    """Read the files of a set.

    Reasons: empty, missing_field (null, or a key that is not there), missing_label, not_a_number,
    unknown_label, wrong_type, ragged_line, malformed_csv, malformed_json, undecodable, too_large.

    Args:
        classes: the labels that there are; () for any.

    Raises:
        TaskFileError: a file is not there, damaged or no such table, or lacks a column.
    """
    return gather(_found(paths, columns, classes))


def _found(
    paths: Sequence[str | Path], columns: SequenceColumns, classes: Sequence[str]
) -> Iterator[tuple[str, SequenceRow | Reject]]:
    names = [n for n in (columns.text_a, columns.text_b, columns.label, columns.id) if n]
    known = KnownLabels(classes)
    for path, name, prefix in file_names(paths):
        for cells in table_rows(path, names, columns.table):
            row = cells if isinstance(cells, Reject) else _row(cells, columns, prefix)
            label = row.label if isinstance(row, SequenceRow) else None
            if isinstance(label, str) and (problem := known.problem(label)):
                row = Reject("unknown_label", cells.where, problem)
            yield name, row


def _row(cells: Cells, columns: SequenceColumns, prefix: str) -> SequenceRow | Reject:
    values = iter(cells.values)
    texts: list[str] = []
    for column in filter(None, (columns.text_a, columns.text_b)):
        text = next(values)
        if problem := text_problem(text, column):
            return Reject(problem[0], cells.where, problem[1])
        texts.append(text)
    label: str | float | None = None
    if columns.label:
        found = _label(next(values), cells.where, columns)
        if isinstance(found, Reject):
            shown = texts[0] if len(texts) == 1 else " | ".join(texts)
            return found._replace(snippet=shown[:100])
        label = found
    place = prefix + cells.where
    own = record_id(next(values), place) if columns.id else place
    return SequenceRow(own, texts[0], texts[1] if columns.text_b else None, label)


def text_problem(text: Any, column: str) -> tuple[str, str] | None:
    """(reason, detail) of a value that is no text."""
    if text is None:
        return "missing_field", f"nothing under {column!r}"
    if not isinstance(text, str):
        return "wrong_type", f"{column!r} holds {json_kind(text)}, not a string"
    if not text.strip():
        return "empty", f"no text in {column!r}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "undecodable", f"half of a surrogate pair in {column!r}"
    return None


def _label(value: Any, where: str, columns: SequenceColumns) -> str | float | Reject:
    if isinstance(value, str):
        value = value.strip()
    if value is None or value in columns.no_label:
        said = f": {value!r} stands for none" if value else ""
        return Reject("missing_label", where, f"no label under {columns.label!r}{said}")
    if columns.regression:
        return _number(value, where, columns.label)
    name = class_name(value)
    if name is None:
        detail = f"{columns.label!r} holds {json_kind(value)}: a class is a string or an integer"
        return Reject("wrong_type", where, detail)
    try:
        name.encode()
    except UnicodeEncodeError:
        return Reject("undecodable", where, f"half of a surrogate pair in {columns.label!r}")
    return name


def class_name(value: Any) -> str | None:
    """The name of a class or tag: a string as it is, integers and truth values as JSON has them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) else None


def _number(value: Any, where: str, column: str) -> float | Reject:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return Reject("wrong_type", where, f"{column!r} holds {json_kind(value)}, not a number")
    try:
        # `float` takes more than people mean: digits of other scripts, 1_000, nan.
        number = float(value) if not isinstance(value, str) or _NUMBER.fullmatch(value) else None
    except OverflowError:
        number = None
    if number is None or not math.isfinite(number):
        return Reject("not_a_number", where, f"{value!r} under {column!r} is no finite number")
    return number
