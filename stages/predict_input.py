"""Rows to predict from: arguments, lines of standard input, and files of any format we read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.stage import StageError, UserError
from stages.prediction_rows import KEYS, Do, Unusable
from stages.text.listing import COMPRESSIONS, ENDINGS, file_format
from stages.text.records import Reject, text_pieces
from stages.text.streams import DamagedFile, lines
from stages.text.tasks.rows import TaskFileError
from stages.text.tasks.tables import (
    MAX_RECORD_BYTES,
    TABLES,
    TableOptions,
    file_error,
    read_options,
    table_rows,
)

Item = Mapping[str, Any] | Unusable

SURE = 1000
"""Rows that are read before anything starts: what is wrong with a file as a whole shows there."""


def argument_rows(do: Do, words: Sequence[str], context: str | None) -> list[Item]:
    """Rows of the words behind the model.

    Args:
        do: what is asked.
        words: a text each; two for a pair, a question and its context for "answer".
        context: of all questions, where it is given apart.

    Raises:
        UserError: not as many words as needed.
    """
    if do == "pair" or (do == "answer" and context is None):
        if len(words) != 2:
            what = "two texts" if do == "pair" else "a question and its context"
            raise UserError(
                f"predict {do} takes {what}, not {len(words)} words: put each in quotes"
            )
        return [dict(zip(KEYS[do], words, strict=True))]
    return [_of_text(do, word, context) for word in words]


def line_rows(do: Do, raw: Iterable[bytes | None], context: str | None) -> Iterator[Item]:
    """Rows of lines: a text each; with a tab between where two are needed."""
    two = do == "pair" or (do == "answer" and context is None)
    for line in raw:
        if line is None:
            yield Unusable("too_large", f"longer than {MAX_RECORD_BYTES:,} bytes")
            continue
        try:
            text = line.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            yield Unusable("undecodable", f"not UTF-8: {error.reason}")
            continue
        if not two:
            yield _of_text(do, text, context)
            continue
        first, tab, second = text.partition("\t")
        if tab:
            yield dict(zip(KEYS[do], (first, second), strict=True))
        else:
            names = " and ".join(KEYS[do])
            yield Unusable("no_tab", f"a line has a tab between {names}")


def file_rows(
    path: Path, do: Do, columns: Mapping[str, str], context: str | None
) -> Iterator[Item]:
    """Rows of a file: a line each of .txt, named columns of the others.

    Args:
        path: its ending says the format.
        do: what is asked.
        columns: key of a row -> name of its column, where it is named.
        context: of all questions, where it is given apart.

    Raises:
        UserError: a file that is not there, lacks a column or is no such file.
        StageError: one that turns out to be damaged later.
    """
    found = _file_rows(path, do, columns, context)
    try:
        first = list(itertools.islice(found, SURE))
    except TaskFileError as error:
        raise UserError(str(error)) from None
    return itertools.chain(first, _checked(found))


def _checked(found: Iterator[Item]) -> Iterator[Item]:
    try:
        yield from found
    except TaskFileError as error:
        raise StageError(str(error)) from None


def _file_rows(
    path: Path, do: Do, columns: Mapping[str, str], context: str | None
) -> Iterator[Item]:
    name = str(path)
    if path.is_dir():
        raise TaskFileError(f"--input {name} is a folder: name one of its files")
    if not path.exists():
        raise TaskFileError(f"{name}: there is no such file")
    if not path.is_file():
        raise TaskFileError(f"--input {name} is no regular file: give lines on standard input")
    format, compression = file_format(name)
    if format != "text" and format not in TABLES:
        known = [ending for ending, kind in ENDINGS.items() if kind in ("text", *TABLES)]
        raise TaskFileError(
            f"--input {name}: its ending tells no format: it must be one of {', '.join(known)}, "
            f"and one of {', '.join(COMPRESSIONS)} may stand behind"
        )
    if format == "text":
        yield from line_rows(do, _text_lines(name, compression), context)
        return
    keys = _keys(do, columns, context)
    names = [columns.get(key, key) for key in keys]
    for found in table_rows(name, names, TableOptions()):
        if isinstance(found, Reject):
            yield Unusable(found.reason, f"{found.where}: {found.detail}")
        else:
            row = dict(zip(keys, found.values, strict=True))
            yield row if context is None else row | {"context": context}


def _keys(do: Do, columns: Mapping[str, str], context: str | None) -> list[str]:
    if do == "tag":
        return ["words" if "words" in columns else "text"]
    if do == "answer" and context is not None:
        return ["question"]
    extra = ["text_b"] if do == "classify" and "text_b" in columns else []
    return [*KEYS[do], *extra]


def _text_lines(path: str, compression: str) -> Iterator[bytes | None]:
    options = read_options(path, compression, "utf-8")
    try:
        yield from lines(text_pieces(path, compression, options), MAX_RECORD_BYTES)
    except DamagedFile as damage:
        raise file_error(path, damage.reason, str(damage)) from None


def _of_text(do: Do, text: str, context: str | None) -> Item:
    return {"question": text, "context": context} if do == "answer" else {"text": text}
