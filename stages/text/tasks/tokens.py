"""Rows of token tagging: CoNLL files, and tables with a list of words and a list of tags a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.text.listing import file_format
from stages.text.records import Reject, record_id
from stages.text.tasks.conll import ConllColumns, conll_rows
from stages.text.tasks.rows import KnownLabels, Read, TokenRow, file_names, gather
from stages.text.tasks.sequences import class_name
from stages.text.tasks.tables import Cells, TableOptions, json_kind, table_rows

LISTS = ("jsonl", "parquet", "arrow")
"""Tables whose cells can be lists."""


@dataclass(frozen=True)
class TokenColumns:
    """How tagged words are read.

    Attributes:
        format: "conll", one of `LISTS`, or "auto": a table by its ending, else CoNLL.
        words, tags, id: columns of lists; no tags are read where `tags` is "", and the id is the
            place in the file where `id` is "".
        conll: columns of CoNLL files.
        encoding: of files of text.
    """

    format: str = "auto"
    words: str = "words"
    tags: str = "tags"
    id: str = ""
    conll: ConllColumns = field(default_factory=ConllColumns)
    encoding: str = "utf-8"


def read_tokens(
    paths: Sequence[str | Path], columns: TokenColumns, classes: Sequence[str] = ()
) -> Read[TokenRow]:
    """Read the files of a set.

    Reasons: those of `conll_rows`; of lists missing_field, wrong_type, empty, empty_word,
    missing_tag, unequal_lengths, malformed_json, undecodable, too_large; unknown_label.

    Args:
        classes: the tags that there are; () for any.

    Raises:
        TaskFileError: a file is not there, damaged or no such file, or lacks a column.
    """
    return gather(_found(paths, columns, classes))


def _found(
    paths: Sequence[str | Path], columns: TokenColumns, classes: Sequence[str]
) -> Iterator[tuple[str, TokenRow | Reject]]:
    known = KnownLabels(classes)
    for path, name, prefix in file_names(paths):
        format = columns.format
        if format == "auto":
            format = file_format(path)[0] or ""
        lists = format in LISTS
        for found in _list_rows(path, format, columns) if lists else _conll(path, columns):
            if isinstance(found, Reject):
                yield name, found
                continue
            where, row = found
            problem = next(filter(None, map(known.problem, row.tags or ())), "")
            if problem:
                yield name, Reject("unknown_label", where, problem, " ".join(row.words)[:100])
            else:
                own = prefix + where if row.id == where else row.id
                yield name, TokenRow(own, row.words, row.tags)


def _conll(path: str, columns: TokenColumns) -> Iterator[tuple[str, TokenRow] | Reject]:
    for row in conll_rows(path, columns.conll, columns.encoding):
        yield row if isinstance(row, Reject) else (row.id, row)


def _list_rows(
    path: str, format: str, columns: TokenColumns
) -> Iterator[tuple[str, TokenRow] | Reject]:
    names = [name for name in (columns.words, columns.tags, columns.id) if name]
    for cells in table_rows(path, names, TableOptions(format, columns.encoding)):
        row = cells if isinstance(cells, Reject) else _row(cells, columns)
        yield row if isinstance(row, Reject) else (cells.where, row)


def _row(cells: Cells, columns: TokenColumns) -> TokenRow | Reject:
    values = iter(cells.values)
    words = _strings(next(values), cells.where, columns.words)
    if isinstance(words, Reject):
        return words
    if not words:
        return Reject("empty", cells.where, f"no words under {columns.words!r}")
    for word in words:
        if not word.strip():
            return Reject("empty_word", cells.where, f"an empty word under {columns.words!r}")
    tags = _strings(next(values), cells.where, columns.tags, tags=True) if columns.tags else None
    if isinstance(tags, Reject):
        return tags
    if tags is not None and len(tags) != len(words):
        detail = f"{len(tags)} tags for {len(words)} words"
        return Reject("unequal_lengths", cells.where, detail, " ".join(words)[:100])
    if tags is not None and not all(tag.strip() for tag in tags):
        return Reject("missing_tag", cells.where, f"an empty tag under {columns.tags!r}")
    own = record_id(next(values), cells.where) if columns.id else cells.where
    return TokenRow(own, words, tags)


def _strings(value: Any, where: str, column: str, tags: bool = False) -> tuple[str, ...] | Reject:
    if value is None:
        return Reject("missing_field", where, f"nothing under {column!r}")
    if not isinstance(value, list):
        return Reject("wrong_type", where, f"{column!r} holds {json_kind(value)}, not a list")
    # Tags may be numbers of classes; a number among words is a mistake.
    names = [class_name(item) if tags or isinstance(item, str) else None for item in value]
    wrong = next((i for i, name in enumerate(names) if name is None), None)
    if wrong is not None:
        kind = json_kind(value[wrong])
        return Reject("wrong_type", where, f"{column!r} holds {kind} at {wrong}, not a string")
    found = tuple(name for name in names if name is not None)
    try:
        "".join(found).encode()
        return found
    except UnicodeEncodeError:
        return Reject("undecodable", where, f"half of a surrogate pair in {column!r}")
