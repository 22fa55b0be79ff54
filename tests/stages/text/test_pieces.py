"""Files of the shuffle: each batch holds the rows of its range of keys, and nothing is lost."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.pieces import (
    BITS,
    FINE_BITS,
    PLAN_COLUMNS,
    between,
    first_batch,
    open_batches,
    plan_batch,
    ranges,
    write_piece,
    write_run,
)
from stages.text.sharding import ROW_SCHEMA

KEYS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**64 - 1, 2**57, 2**57 - 1, 2**61])


def rows_of(keys: list[tuple[int, bool]]) -> pa.Table:
    rows = [
        {
            "key": key,
            "validation": held_out,
            "repeat": 1,
            "size": 5,
            "document": i.to_bytes(16, "big"),
            "part": i,
            "text": f"text {i}",
            "sentence_ends": [2, 6],
            "source": "a.txt",
            "id": str(i),
        }
        for i, (key, held_out) in enumerate(sorted(keys, key=lambda row: row[::-1]))
    ]
    return pa.Table.from_pylist(rows, ROW_SCHEMA)


def train_only(rows: pa.Table, held_out: bool = False) -> pa.Table:
    return rows.filter(pc.equal(rows["validation"], held_out)).drop_columns(["validation"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=30))
def test_a_batch_holds_its_range_of_keys(keys: list[tuple[int, bool]]) -> None:
    rows = rows_of(keys)
    reader = open_batches(pa.BufferReader(write_piece(rows)))
    assert reader.num_record_batches == sum(2**bits for bits in BITS.values()) + len(BITS)
    for side, bits in BITS.items():
        found = [reader.get_batch(first_batch(side) + i) for i in range(2**bits)]
        for i, batch in enumerate(found):
            assert all(key >> (64 - bits) == i for key in batch["key"].to_pylist())
        mine = train_only(rows, side == "validation")
        assert pa.Table.from_batches(found).equals(mine)
        plan = pa.Table.from_batches([reader.get_batch(plan_batch(side))])
        planned = [*PLAN_COLUMNS, "document"]
        assert plan.select(planned).equals(mine.select(planned))
        assert set(plan["text"].to_pylist()) <= {""}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**57 - 1), max_size=30), st.integers(0, 127))
def test_a_run_holds_one_range_in_finer_ones(low_bits: list[int], number: int) -> None:
    start = number << 57
    rows = train_only(rows_of([(start + low, False) for low in low_bits]))
    reader = open_batches(pa.BufferReader(write_run(rows, "train", number)))
    assert reader.num_record_batches == 2**FINE_BITS
    found = [reader.get_batch(i) for i in range(2**FINE_BITS)]
    for i, batch in enumerate(found):
        assert all((key - start) >> (57 - FINE_BITS) == i for key in batch["key"].to_pylist())
    assert pa.Table.from_batches(found).equals(rows)


@given(KEYS, KEYS)
def test_ranges_cover_what_is_asked_for(low: int, high: int) -> None:
    low, high = min(low, high), max(low, high) + 1
    for bits in BITS.values():
        found = ranges(bits, low, high)
        width = 2 ** (64 - bits)
        assert found.start * width <= low < (found.start + 1) * width
        assert (found.stop - 1) * width < high <= found.stop * width


def test_rows_between_two_keys() -> None:
    keys = [0, 5, 5, 9, 2**64 - 1]
    batch = train_only(rows_of([(k, False) for k in keys])).to_batches()[0]
    for low, high in [(0, 5), (5, 9), (5, 10), (6, 9), (9, 2**64), (0, 2**64)]:
        kept = between(batch, low, high)["key"].to_pylist()
        assert kept == [k for k in keys if low <= k < high]


class Counting(io.BytesIO):
    """A file that knows how much of it was read."""

    got = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.got += len(data)
        return data


def test_planning_reads_no_text() -> None:
    rows = rows_of([(i << 57, False) for i in range(128)])
    texts = pa.array([np.random.default_rng(i).bytes(5_000).hex() for i in range(128)])
    place = rows.schema.get_field_index("text")
    rows = rows.set_column(place, ROW_SCHEMA.field("text"), texts)
    file = Counting(write_piece(rows).to_pybytes())
    reader = open_batches(pa.PythonFile(file, mode="r"), PLAN_COLUMNS)
    found = [reader.get_batch(i) for i in range(128)]
    assert sum(batch.num_rows for batch in found) == 128
    assert set(found[0].schema.names) == set(PLAN_COLUMNS)
    assert file.got < len(file.getvalue()) / 2
