"""Files of the shuffle: Arrow IPC files with one batch for each of equal ranges of keys.

Keys are uniform hashes, so equal ranges hold about equal bytes, and the number of a batch says
which keys are in it: no index is needed, and a range is read without the rest of the file.

A *piece* holds what a worker read: `2**BITS["train"]` ranges of training rows, then
`2**BITS["validation"]` of validation rows, and behind them two batches with all rows of a side
but without their text, so that planning reads one place of a file. A *run* holds one of these
ranges, of many pieces, in `2**FINE_BITS` finer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.text.sharding import ROW_SCHEMA, Keys

BITS: Mapping[str, int] = {"train": 7, "validation": 3}
"""log2 of the ranges of each side. Held-out rows are few: finer ranges would be mostly empty."""

FINE_BITS = 7

SIDES = tuple(BITS)
PIECE_SCHEMA = ROW_SCHEMA.remove(ROW_SCHEMA.get_field_index("validation"))
PLAN_COLUMNS = ("key", "repeat", "size", "part")
"""All that planning the shards needs."""

# lz4 packs at twice the speed of zstd; the files live for minutes.
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)


def ranges(bits: int, low: int, high: int) -> range:
    """Numbers of those of `2**bits` ranges that hold keys from `low` to `high` - 1."""
    return range(low >> (64 - bits), ((high - 1) >> (64 - bits)) + 1)


def first_batch(side: str) -> int:
    """The batch of a piece that holds the first range of a side."""
    return 0 if side == "train" else 2 ** BITS["train"]


def plan_batch(side: str) -> int:
    """The batch of a piece that holds all rows of a side without their text."""
    ranges_of_both = sum(1 << bits for bits in BITS.values())
    return ranges_of_both + SIDES.index(side)


def write_piece(rows: pa.Table, packed: bool = True) -> pa.Buffer:
    """A piece, from rows of `ROW_SCHEMA`: training rows first, those of either side by key.

    `packed`: less to write and to keep, for a tenth of the time that a piece takes from raw text.
    """
    train = rows.num_rows - int(np.count_nonzero(rows["validation"].to_numpy()))
    rows = rows.drop_columns(["validation"])
    sides = {"train": rows.slice(0, train), "validation": rows.slice(train)}
    sections = [(sides[side], bits, range(2**bits)) for side, bits in BITS.items()]
    sections += [(_without_text(sides[side]), 0, range(1)) for side in SIDES]
    return _write(sections, packed=packed)


def _without_text(rows: pa.Table) -> pa.Table:
    count = rows.num_rows
    nothing = {
        "text": pa.repeat("", count),
        "source": pa.repeat("", count),
        "id": pa.repeat("", count),
        "sentence_ends": pa.ListArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), count + 1), pa.array([], pa.uint32())
        ),
    }
    columns = [nothing.get(name, rows[name]) for name in PIECE_SCHEMA.names]
    return pa.table(columns, schema=PIECE_SCHEMA)


def write_ranges(rows: pa.Table, bits: int) -> pa.Buffer:
    """Rows of any schema, sorted by their uint64 column key: a batch for each of 2**bits ranges."""
    return _write([(rows, bits, range(2**bits))], rows.schema)


def write_run(rows: pa.Table, side: str, number: int) -> pa.Buffer:
    """A run, from the rows of one range of a side, sorted by key."""
    first = number << FINE_BITS
    return _write([(rows, BITS[side] + FINE_BITS, range(first, first + 2**FINE_BITS))])


def _write(
    sections: Iterable[tuple[pa.Table, int, range]],
    schema: pa.Schema = PIECE_SCHEMA,
    packed: bool = True,
) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    empty = pa.RecordBatch.from_pylist([], schema)
    with pa.ipc.new_file(sink, schema, options=_PACKED if packed else _PLAIN) as writer:
        for rows, bits, numbers in sections:
            edges = np.array([*numbers, numbers.stop])
            places = np.searchsorted(_range_of(rows["key"].to_numpy(), bits), edges).tolist()
            batch = rows.combine_chunks().to_batches()[0] if rows.num_rows else empty
            for start, end in pairwise(places):
                writer.write_batch(batch.slice(start, end - start))
    return sink.getvalue()


def _range_of(keys: Keys, bits: int) -> npt.NDArray[np.int64]:
    if not bits:
        return np.zeros(len(keys), np.int64)  # a shift by all 64 bits is not defined
    return (keys >> np.uint64(64 - bits)).astype(np.int64)


def open_batches(source: Any, columns: Sequence[str] | None = None) -> Any:
    """A reader whose `get_batch(i)` reads nothing but batch i, and of it only `columns`."""
    fields = columns and [PIECE_SCHEMA.get_field_index(name) for name in columns]
    # Threads of one's own: what else runs on the machine has its cores.
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return pa.ipc.open_file(source, options=options)


def between(batch: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    """The rows of a batch, sorted by key, with `low` <= key < `high`; copies nothing."""
    keys = batch["key"].to_numpy()
    start = int(np.searchsorted(keys, np.uint64(low)))
    end = int(np.searchsorted(keys, np.uint64(high))) if high < 2**64 else len(keys)
    return batch.slice(start, end - start)
