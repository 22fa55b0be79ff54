"""Results as JSON lines or Parquet. A long tagged text is written piece by piece."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.stage import StageError
from stages.prediction_models import Objective
from stages.prediction_rows import Do
from stages.prediction_tags import BLOCK_WORDS, Tagged
from stages.predictor import Result

Row = Result | Tagged
BATCH_ROWS = 1000
BATCH_WORDS = 50_000
"""Tagged words of a batch of Parquet; a row of more is one by itself."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)

SUFFIXES = (".jsonl", ".parquet")

_ANSWER = [
    ("answer", pa.string()),
    ("start", pa.int64()),
    ("end", pa.int64()),
    ("score", pa.float64()),
]
_WORD = [("word", pa.string()), *_ANSWER[1:3], ("tag", pa.string()), _ANSWER[3]]
_ENTITY = [("type", pa.string()), ("text", pa.string()), *_ANSWER[1:]]
_OFFER = pa.struct([("token", pa.string()), ("score", pa.float64())])
_MASK = pa.struct([*_ANSWER[1:3], ("tokens", pa.list_(_OFFER))])


def schema(do: Do, objective: Objective, top: int) -> pa.Schema:
    """The columns of results in Parquet."""
    columns: list[tuple[str, pa.DataType]]
    if do == "tag":
        columns = [
            ("words", pa.list_(pa.struct(_WORD))),
            ("entities", pa.list_(pa.struct(_ENTITY))),
        ]
        return pa.schema([("row", pa.int64()), *columns])
    if do == "answer":
        listed = [("answers", pa.list_(pa.struct(_ANSWER)))] if top > 1 else []
        columns = [*_ANSWER, ("null_margin", pa.float64()), *listed]
    elif do == "embed":
        columns = [("vector", pa.list_(pa.float32()))]
    elif do == "fill_mask":
        columns = [("masks", pa.list_(_MASK)), ("filled", pa.string())]
    elif objective == "regression":
        columns = [("value", pa.float64())]
    else:
        scores = pa.map_(pa.string(), pa.float64())
        columns = [("label", pa.string()), ("score", pa.float64()), ("scores", scores)]
    return pa.schema([("row", pa.int64()), *columns, ("truncated", pa.bool_())])


class Sink(Protocol):
    """Takes results one by one."""

    def write(self, number: int, row: Row) -> None:
        """One more result, of row `number` of the input."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


class JsonLines:
    """An object a line."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, number: int, row: Row) -> None:
        """One more result."""
        for piece in json_pieces(number, row):
            self._file.write(piece)

    def close(self) -> None:
        """What was written is in the file."""
        self._file.flush()


def json_pieces(number: int, row: Row) -> Iterator[str]:
    """A line of JSON, in pieces."""
    if not isinstance(row, Tagged):
        yield _ENCODER.encode({"row": number, **row}) + "\n"
        return
    yield f'{{"row": {number}, "words": ['
    yield from _joined(row.word_dicts())
    yield '], "entities": ['
    yield from _joined(row.entity_dicts())
    yield "]}\n"


def _joined(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    comma = ""
    for one in found:
        yield comma + _ENCODER.encode(one)
        comma = ", "


class Parquet:
    """A Parquet file, row group by row group."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self._columns = columns
        self._writer = pq.ParquetWriter(path, columns, compression="zstd")
        self._rows: list[Result] = []
        self._tagged: list[pa.RecordBatch] = []
        self._words = 0

    def write(self, number: int, row: Row) -> None:
        """One more result."""
        if isinstance(row, Tagged):
            self._words += len(row.words)
            self._tagged.append(tagged_batch(number, row, self._columns))
        else:
            pairs = {"scores": list(row["scores"].items())} if "scores" in row else {}
            self._rows.append({"row": number, **row, **pairs})
        held = len(self._rows) + len(self._tagged)
        if held >= BATCH_ROWS or self._words >= BATCH_WORDS:
            self._flush()

    def close(self) -> None:
        """End the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._columns))
        if self._tagged:
            self._writer.write_table(pa.Table.from_batches(self._tagged, self._columns))
        self._rows, self._tagged, self._words = [], [], 0


def tagged_batch(number: int, row: Tagged, columns: pa.Schema) -> pa.RecordBatch:
    """A tagged text as one row, made block by block: its dicts are never there together."""
    lists = []
    for name, found in (("words", row.word_dicts()), ("entities", row.entity_dicts())):
        kind = columns.field(name).type.value_type
        blocks = [pa.array([], kind)]
        while block := list(itertools.islice(found, BLOCK_WORDS)):
            blocks.append(pa.array(block, kind))
        values = pa.concat_arrays(blocks)
        lists.append(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values))
    return pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), *lists], schema=columns)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say of which output an error is that comes while it is written, a full disk for example.

    Raises:
        StageError: for each `OSError` inside.
    """
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        raise StageError(f"--output {target} cannot be written: {said}") from None


class _Named:
    """A sink whose errors name the output."""

    def __init__(self, sink: Sink, target: Path) -> None:
        self._sink = sink
        self._target = target

    def write(self, number: int, row: Row) -> None:
        with writing(self._target):
            self._sink.write(number, row)

    def close(self) -> None:
        with writing(self._target):
            self._sink.close()


def open_sink(path: Path, columns: pa.Schema, target: Path | None = None) -> Sink:
    """A file of results; its ending says which.

    Args:
        path: of the file.
        columns: of Parquet.
        target: what the file is for, in messages; None: itself.

    Raises:
        StageError: it cannot be written; writing to it raises it too.
    """
    target = target or path
    with writing(target):
        sink: Sink = Parquet(path, columns) if path.suffix == ".parquet" else _JsonFile(path)
    return _Named(sink, target)


class _JsonFile(JsonLines):
    def __init__(self, path: Path) -> None:
        self._opened = path.open("w", encoding="utf-8")
        super().__init__(self._opened)

    def close(self) -> None:
        self._opened.close()


def merge(parts: Sequence[Path], target: Path, columns: pa.Schema) -> None:
    """Files of results, in their order, as one."""
    if target.suffix != ".parquet":
        with target.open("wb") as sink:
            for part in parts:
                with part.open("rb") as source:
                    while chunk := source.read(1 << 20):
                        sink.write(chunk)
        return
    with pq.ParquetWriter(target, columns, compression="zstd") as writer:
        for part in parts:
            with pq.ParquetFile(part) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))


def temporary(target: Path) -> Path:
    """A name beside a file or folder that is renamed to it at the end."""
    suffix = target.suffix if target.suffix in SUFFIXES else ""
    return target.parent / f".{target.stem}.{os.getpid()}.making{suffix}"
