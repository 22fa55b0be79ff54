from __future__ import annotations

import hashlib
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.digest import TableDigest, canonical_json, json_digest, table_digest, tensors_digest

# A Midsummer Night's Dream, public domain.
LINES = [
    "Now, fair Hippolyta, our nuptial hour",
    "Draws on apace; four happy days bring in",
    "",
    "Another moon: but, O, methinks, how slow",
    None,
    "This old moon wanes! — she lingers my desires",
]


def sample() -> pa.Table:
    lengths = [[len(w) for w in line.split()] if line is not None else None for line in LINES]
    return pa.table(
        {
            "text": pa.array(LINES, pa.string()),
            "ids": pa.array(lengths, pa.list_(pa.uint16())),
            "is_next": pa.array([True, None, False, True, True, False]),
            "score": pa.array([0.5, -0.0, float("nan"), None, 1e300, 3.0]),
            "origin": pa.array(LINES, pa.string()).dictionary_encode(),
            "where": pa.array(
                [{"act": 1, "line": i} if i != 3 else None for i in range(6)],
                pa.struct([("act", pa.int8()), ("line", pa.int32())]),
            ),
            "key": pa.array([bytes([i]) * 4 if i else None for i in range(6)], pa.binary(4)),
        }
    )


def rows(table: pa.Table) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, table.num_rows), max_size=4).map(sorted)


@given(cuts=rows(sample()))
@settings(max_examples=50, deadline=None)
def test_batches_and_slices_leave_no_trace(cuts: list[int]) -> None:
    table = sample()
    digest = TableDigest(table.schema)
    for start, stop in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        digest.update(table.slice(start, stop - start))
    assert digest.hexdigest() == table_digest(table)


value = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))
column = st.lists(st.one_of(st.none(), st.lists(value, max_size=4)), max_size=8)


@given(a=column, b=column, cut=st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_equal_digest_means_equal_values(
    a: list[list[int | None] | None], b: list[list[int | None] | None], cut: int
) -> None:
    def table(values: list[list[int | None] | None]) -> pa.Table:
        return pa.table({"x": pa.array(values, pa.list_(pa.int32()))})

    assert (table_digest(table(a)) == table_digest(table(b))) == (a == b)
    chunked = pa.concat_tables([table(a[:cut]), table(a[cut:])])
    assert table_digest(chunked) == table_digest(table(a))
    assert table_digest(chunked) == table_digest(chunked.combine_chunks())


def test_physical_spellings_of_one_type_are_equal() -> None:
    lines = ["to be", None, "or not"]
    spellings = [
        pa.array(lines, pa.string()),
        pa.array(lines, pa.large_string()),
        pa.array(lines, pa.string()).dictionary_encode(),
        pa.array(lines, pa.string_view()),
    ]
    assert len({table_digest(pa.table({"t": s})) for s in spellings}) == 1
    ids = [[1, 2], None, []]
    lists = [pa.array(ids, pa.list_(pa.uint8())), pa.array(ids, pa.large_list(pa.uint8()))]
    assert len({table_digest(pa.table({"t": s})) for s in lists}) == 1


def test_what_lies_under_a_null_counts_as_nothing() -> None:
    mask = np.array([False, True])
    garbage = [pa.array(np.array([7, g], np.int32), mask=mask) for g in (0, 99)]
    assert garbage[0].buffers()[1].to_pybytes() != garbage[1].buffers()[1].to_pybytes()
    assert len({table_digest(pa.table({"x": g})) for g in garbage}) == 1

    offsets = pa.array([0, 2, 4], pa.int32())
    under_null = [
        pa.ListArray.from_arrays(offsets, pa.array([1, 2, g, g]), mask=pa.array(mask))
        for g in (3, 4)
    ]
    assert len({table_digest(pa.table({"x": g})) for g in under_null}) == 1


def test_a_bitmap_without_nulls_is_no_bitmap() -> None:
    values = pa.array([1, 2, 3], pa.int64())
    bitmap = pa.py_buffer(b"\x07")
    with_bitmap = pa.Array.from_buffers(pa.int64(), 3, [bitmap, values.buffers()[1]])
    assert with_bitmap.buffers()[0] is not None
    assert table_digest(pa.table({"x": with_bitmap})) == table_digest(pa.table({"x": values}))


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"y": pa.array([1, 2], pa.int32())}),
        pa.table({"x": pa.array([1, 2], pa.int64())}),
        pa.table({"x": pa.array([1, 2], pa.uint32())}),
        pa.table({"x": pa.array([2, 1], pa.int32())}),
        pa.table({"x": pa.array([1, None], pa.int32())}),
        pa.table({"x": pa.array([1, 2, 0], pa.int32())}),
        pa.table({"x": pa.array([[1], [2]], pa.list_(pa.int32()))}),
    ],
)
def test_names_types_and_values_count(other: pa.Table) -> None:
    assert table_digest(other) != table_digest(pa.table({"x": pa.array([1, 2], pa.int32())}))


def test_strings_do_not_run_into_each_other() -> None:
    a, b = (pa.table({"t": t}) for t in (["ab", "c"], ["a", "bc"]))
    assert table_digest(a) != table_digest(b)
    null, empty = (pa.table({"t": pa.array(t, pa.string())}) for t in ([None], [""]))
    assert table_digest(null) != table_digest(empty)


def test_metadata_stands_outside_and_changed_columns_are_refused() -> None:
    table = sample()
    assert table_digest(table.replace_schema_metadata({"vocab": "x"})) == table_digest(table)
    digest = TableDigest(table.schema)
    with pytest.raises(ValueError, match="changed within one digest"):
        digest.update(table.drop_columns(["key"]))


def test_survives_parquet_with_any_row_groups() -> None:
    table = sample()
    for rows_a_group, compression in ((1, "zstd"), (4, "none")):
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=rows_a_group, compression=compression)
        assert table_digest(pq.read_table(io.BytesIO(sink.getvalue()))) == table_digest(table)


def test_golden() -> None:
    """The definition itself: a change here makes every artifact anew, so it needs a new format."""
    table = pa.table({"ids": pa.array([[1, 2], None, [3]], pa.list_(pa.uint16()))})

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    child = ["uint16", 3, sha(np.array([1, 2, 3], "<u2").tobytes()), sha(b""), sha(b""), []]
    lengths, nulls = (np.array(x, "<i8").tobytes() for x in ([2, 0, 1], [1]))
    expected = {
        "rows": 3,
        "columns": [["ids", ["list", 3, sha(b""), sha(lengths), sha(nulls), [child]]]],
    }
    text = json.dumps(expected, sort_keys=True, separators=(",", ":"))
    assert table_digest(table) == sha(text.encode())


def test_tensors() -> None:
    weight = np.arange(6, dtype=np.float32)
    tensors = {"b": ("float32", (2, 3), weight.data), "a": ("float32", (6,), weight.data)}
    digest = tensors_digest(tensors)
    assert digest == tensors_digest(dict(reversed(tensors.items())))
    assert digest != tensors_digest({**tensors, "b": ("float32", (3, 2), weight.data)})
    assert digest != tensors_digest({**tensors, "b": ("float32", (2, 3), (weight + 1).data)})


def test_canonical_json() -> None:
    assert canonical_json({"b": (1, 2), "a": "ü"}) == '{"a":"ü","b":[1,2]}'.encode()
    assert json_digest({"x": 1}) != json_digest({"x": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))
    with pytest.raises(TypeError, match="set is not JSON"):
        canonical_json({"x": {1}})
