"""Many training rows out of a few: the rows of a small artifact again and again, with other ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stages.mask import ID_COLUMNS
from stages.tables import COMPRESSION, ROW_GROUP_ROWS

FILE_BYTES = 64_000_000
"""A shard's order of size."""

SHIFT = 7919
"""Ids move by so much from copy to copy: a prime, so that copies are unlike for long."""


def files_of(folder: Path) -> list[Path]:
    """Training files of an artifact's folder, or all Parquet files of any other folder."""
    found = sorted(folder.rglob("*.parquet"))
    return [path for path in found if path.name.startswith("train-")] or found


def grow(
    sources: list[Path], folder: Path, entries: int, special: int, megabytes: float
) -> dict[str, int]:
    """Write the rows of `sources` into files in `folder` until about `megabytes` are stored.

    Args:
        sources: files of masks or of pairs.
        folder: made.
        entries: of the vocabulary.
        special: the first so many ids stay as they are.

    Returns:
        `rows`, `tokens` and stored `bytes`.
    """
    folder.mkdir()
    rows = tokens = stored = 0
    copies = _copies(sources, entries, special)
    for number in count():
        path = folder / f"train-c0m0-{number:05d}.parquet"
        with path.open("wb") as stream:
            table = next(copies)
            ids = [c for c in ID_COLUMNS if c.partition(".")[0] in table.column_names]
            with pq.ParquetWriter(
                stream,
                table.schema,
                compression=COMPRESSION,
                use_dictionary=False,
                column_encoding=dict.fromkeys(ids, "BYTE_STREAM_SPLIT"),
                write_statistics=False,
            ) as writer:
                while True:
                    writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                    rows += table.num_rows
                    tokens += len(table["input_ids"].combine_chunks().flatten())
                    if stored + stream.tell() >= megabytes * 1e6 or stream.tell() >= FILE_BYTES:
                        break
                    table = next(copies)
        stored += path.stat().st_size
        if stored >= 0.99 * megabytes * 1e6:
            return {"rows": rows, "tokens": tokens, "bytes": stored}
    raise AssertionError


def _copies(sources: list[Path], entries: int, special: int) -> Iterator[pa.Table]:
    for copy in count():
        for path in sources:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                yield _respelled(file.read_row_group(group), copy * SHIFT, entries, special)


def _respelled(table: pa.Table, shift: int, entries: int, special: int) -> pa.Table:
    for name in ("input_ids", "mlm_labels"):
        if name in table.column_names:
            lists = table[name].combine_chunks()
            lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
            ids = lists.flatten().to_numpy()
            offsets = pa.array(lists.offsets.to_numpy() - lists.offsets.to_numpy()[0])
            moved = pa.ListArray.from_arrays(
                offsets, pa.array(_moved(ids, shift, entries, special))
            )
            table = table.set_column(table.schema.get_field_index(name), name, moved)
    return table


def _moved(ids: NDArray[np.integer], shift: int, entries: int, special: int) -> NDArray[np.integer]:
    others = (ids.astype(np.int64) - special + shift) % (entries - special) + special
    return np.where(ids < special, ids, others).astype(ids.dtype)
