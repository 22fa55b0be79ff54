"""The order of reading: every row once an epoch, any position at once, errors with places."""

from __future__ import annotations

import threading
import time
from collections import Counter
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from stages.training.bins import LengthBins
from stages.training.examples import Examples, Ragged, concatenate, offsets_of
from stages.training.loader import Loader, MixedSource
from stages.training.packing import step_batch
from stages.training.prefetch import prefetched
from stages.training.row_groups import (
    DataError,
    Limits,
    RowGroups,
    ShardFile,
    count_labels,
    decode,
    read_index,
)
from tests.oracle.plain_loader import plain_mix, plain_stream
from tests.stages.training.conftest import VOCAB_SIZE, make_rows

LOCAL = LocalFileSystem()
LIMITS = Limits(vocab_size=1 << 16, max_length=512)


def numbered(path: Path, numbers: range, row_group_rows: int) -> ShardFile:
    """A shard whose rows carry their number as their label."""
    ids = [[2, n, 3] + [5] * (n % 7) for n in numbers]
    table = pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.uint32())),
            "mlm_positions": pa.array([[1]] * len(ids), pa.list_(pa.uint16())),
            "mlm_labels": pa.array([[n] for n in numbers], pa.list_(pa.uint32())),
        }
    )
    pq.write_table(table, path, row_group_size=row_group_rows)
    return read_index(LOCAL, [str(path)])[0]


@pytest.fixture
def files(tmp_path: Path) -> tuple[ShardFile, ...]:
    """100 rows in row groups of 1 to 17 rows."""
    return (
        numbered(tmp_path / "a.parquet", range(0, 40), 17),
        numbered(tmp_path / "b.parquet", range(40, 41), 5),
        numbered(tmp_path / "c.parquet", range(41, 100), 11),
    )


def loader(files, batch_size: int, seed: int = 3) -> Loader:
    return Loader(LOCAL, (files,), seed, batch_size, LIMITS)


def rows_of(batch: Examples) -> list[int]:
    return batch.mlm_labels.tolist()


def test_an_epoch_holds_every_row_once_and_batches_run_on_into_the_next(files):
    reader = loader(files, batch_size=7)
    stream = [row for index in range(300 // 7) for row in rows_of(reader.batch(index))]
    for epoch in range(2):
        assert sorted(stream[epoch * 100 : (epoch + 1) * 100]) == list(range(100))
    assert stream[:100] != stream[100:200]


def test_rows_carry_all_their_columns(files):
    batch = loader(files, batch_size=30).batch(1)
    for place, row in enumerate(rows_of(batch)):
        assert batch.input_ids[place].tolist() == [2, row, 3] + [5] * (row % 7)
        assert batch.mlm_positions[place].tolist() == [1]
    assert batch.is_next is None
    assert batch.tokens == sum(3 + row % 7 for row in rows_of(batch)) and batch.masked == 30


def test_seeking_equals_reading_in_order(files):
    in_order = loader(files, batch_size=9)
    expected = [rows_of(in_order.batch(index)) for index in range(40)]
    for index in (39, 0, 12, 11, 25):
        assert rows_of(loader(files, batch_size=9).batch(index)) == expected[index]


def test_the_order_depends_on_the_seed_and_is_not_that_of_the_files(files):
    one, other = (rows_of(loader(files, 100, seed).batch(0)) for seed in (1, 2))
    assert one != other
    assert one != sorted(one)
    # Inside a row group too: no run of the sorted order is left standing.
    assert sum(b == a + 1 for a, b in pairwise(one)) < 15


def test_each_epoch_orders_the_rows_of_a_row_group_anew(tmp_path):
    one_group = (numbered(tmp_path / "one.parquet", range(50), 50),)
    reader = loader(one_group, batch_size=50)
    first, second = rows_of(reader.batch(0)), rows_of(reader.batch(1))
    assert sorted(first) == sorted(second) and first != second


def test_a_batch_may_be_larger_than_an_epoch(files):
    counts = Counter(rows_of(loader(files, batch_size=250).batch(0)))
    assert sorted(counts) == list(range(100))
    assert set(counts.values()) == {2, 3}


def test_positions_name_epoch_and_row(files):
    reader = loader(files, batch_size=30)
    assert [reader.position(i) for i in range(5)] == [(0, 0), (0, 30), (0, 60), (0, 90), (1, 20)]


def test_pass_k_reads_copy_k_alone(tmp_path):
    copies = (
        (numbered(tmp_path / "0.parquet", range(0, 20), 6),),
        (numbered(tmp_path / "1.parquet", range(100, 130), 6),),
    )
    reader = Loader(LOCAL, copies, 3, 10, LIMITS)
    stream = [row for index in range(10) for row in rows_of(reader.batch(index))]
    assert sorted(stream[:20]) == list(range(20)) == sorted(stream[50:70])
    assert sorted(stream[20:50]) == list(range(100, 130)) == sorted(stream[70:100])
    assert stream[:20] != stream[50:70]
    assert reader.position(5) == (2, 0)


def test_few_row_groups_are_kept(files):
    groups = RowGroups(LOCAL, files, LIMITS, keep=2)
    for number in range(len(groups)):
        groups.get(number)
    assert len(groups._kept) == 2
    assert groups.get(len(groups) - 1) is groups.get(len(groups) - 1)


def test_late_batches_come_as_fast_as_the_first(tmp_path):
    # The index alone is large; every row group of it is the same small file.
    numbered(tmp_path / "one.parquet", range(64), 64)
    many = (ShardFile(str(tmp_path / "one.parquet"), (64,)),) * 20_000
    reader = loader(many, batch_size=32)
    reader.batch(0)
    begin = time.perf_counter()
    reader.batch(39_000)
    assert time.perf_counter() - begin < 0.5


def test_paths_are_those_of_the_filesystem(tmp_path):
    file = numbered(tmp_path / "a.parquet", range(10), 5)
    below = SubTreeFileSystem(str(tmp_path), LOCAL)
    reader = Loader(below, ((ShardFile("a.parquet", file.row_groups),),), 3, 10, LIMITS)
    assert sorted(rows_of(reader.batch(0))) == list(range(10))


def test_no_rows_is_an_error():
    with pytest.raises(DataError, match="no rows"):
        Loader(LOCAL, ((),), 3, 10, LIMITS)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(50, 512), r"a\.parquet, row group 0: id 59, the vocabulary has 50"),
        (Limits(100, 8), r"row group 0, row 6: 9 tokens, the model's position table holds 8"),
        (Limits(100, 512, (("vocabulary", "x"),)), r"vocabulary is y, the run expects x"),
    ],
)
def test_limits(tmp_path, limits, message):
    file = numbered(tmp_path / "a.parquet", range(60), 60)
    table = pq.read_table(file.path).replace_schema_metadata({"vocabulary": "y"})
    pq.write_table(table, file.path)
    loader((file,), 10).batch(0)
    with pytest.raises(DataError, match=message):
        Loader(LOCAL, ((file,),), 3, 10, limits).batch(0)


def test_an_index_that_lies_is_an_error(files):
    wrong = (ShardFile(files[0].path, (16, 17, 7)),)
    with pytest.raises(DataError, match="17 rows, the index says 16"):
        loader(wrong, 40).batch(0)


def test_tables_that_do_not_fit():
    good = {
        "input_ids": pa.array([[2, 5, 3]], pa.list_(pa.uint16())),
        "mlm_positions": pa.array([[1]], pa.list_(pa.uint16())),
        "mlm_labels": pa.array([[7]], pa.list_(pa.uint16())),
    }
    assert decode(pa.table(good)).mlm_labels.tolist() == [7]
    for name, values, message in (
        ("mlm_labels", pa.array([[7, 8]], pa.list_(pa.uint16())), "row 0: mlm_positions and"),
        ("input_ids", pa.array([None], pa.list_(pa.uint16())), "input_ids holds nulls"),
        ("is_next", pa.array([True]), "is_next without a_length"),
    ):
        with pytest.raises(DataError, match=message):
            decode(pa.table({**good, name: values}))


def test_decoding_takes_chunks_and_slices():
    table = pa.table(
        {
            "input_ids": pa.array([[9], [2, 5, 3], [2, 6, 6, 3]], pa.list_(pa.uint16())),
            "mlm_positions": pa.array([[0], [1], [1, 2]], pa.list_(pa.uint16())),
            "mlm_labels": pa.array([[9], [7], [8, 9]], pa.list_(pa.uint16())),
            "a_length": pa.array([9, 1, 2], pa.uint16()),
            "is_next": pa.array([True, None, None]),
        }
    ).slice(1)
    examples = decode(pa.concat_tables([table, table]))
    assert examples.input_ids.lengths.tolist() == [3, 4, 3, 4]
    assert examples.mlm_labels.tolist() == [7, 8, 9, 7, 8, 9]
    assert examples.is_next is None


def test_label_counts(files):
    counts = count_labels(LOCAL, files, Limits(128, 512))
    assert counts.tolist() == [1] * 100 + [0] * 28


lists = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8)


@given(lists, st.data())
@settings(deadline=None)
def test_taking_ragged_rows(values, data):
    flat = np.array([v for row in values for v in row], dtype=np.uint16)
    ragged = Ragged(flat, offsets_of(np.array([len(row) for row in values])))
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=12))
    taken = ragged.take(np.array(chosen, dtype=np.int64))
    assert [taken[i].tolist() for i in range(len(taken))] == [values[c] for c in chosen]
    assert taken.values.dtype == np.uint16


def test_parts_with_and_without_labels_do_not_join(files):
    part = loader(files, 3).batch(0)
    other = Examples(
        part.input_ids, part.a_length, np.array([True] * 3), part.mlm_positions, part.mlm_labels
    )
    with pytest.raises(ValueError, match="two datasets"):
        concatenate([part, other])


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_prefetching_keeps_order_and_raises_where_it_happened(ahead):
    def make(step: int) -> int:
        if step == 7:
            raise DataError("row 7")
        return step * step

    seen = []
    with pytest.raises(DataError, match="row 7"), prefetched(make, range(3, 20), ahead) as results:
        seen.extend(results)
    with prefetched(make, range(3, 20), ahead) as results:
        assert [next(results) for _ in range(4)] == [9, 16, 25, 36]
    assert seen == [9, 16, 25, 36]


def test_prefetching_is_bounded_and_its_thread_ends():
    made = []
    before = threading.active_count()
    with prefetched(lambda step: made.append(step), range(1000), 3) as results:
        next(results)
        time.sleep(0.2)
        assert len(made) <= 6
    assert threading.active_count() == before


SIZES = (3, 1, 5, 2, 4)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[ShardFile]:
    """Files of 1 to 3 row groups; row n of file f has the label 1000 f + n."""
    folder = tmp_path_factory.mktemp("small")
    return [
        numbered(folder / f"{f}.parquet", range(1000 * f, 1000 * f + 7 + f), size)
        for f, size in enumerate(SIZES)
    ]


def numbers_of(files: tuple[ShardFile, ...], small: list[ShardFile]) -> list[list[int]]:
    """Labels of each row group of some of the small files."""
    found = []
    for file in files:
        start = 1000 * small.index(file)
        for size in file.row_groups:
            found.append(list(range(start, start + size)))
            start += size
    return found


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_batches_are_those_of_the_plain_twin(small, data):
    chosen = st.lists(st.sampled_from(small), min_size=1, max_size=4, unique_by=lambda f: f.path)
    copies = tuple(map(tuple, data.draw(st.lists(chosen, min_size=1, max_size=3))))
    seed, size = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 60))
    labels = [numbers_of(files, small) for files in copies]
    stream = plain_stream([[len(group) for group in groups] for groups in labels], seed)
    rows = [labels[copy][group][row] for _, copy, group, row in islice(stream, 6 * size)]
    reader = Loader(LOCAL, copies, seed, size, LIMITS)
    for index in data.draw(st.permutations(range(6))):
        expected = rows[index * size : (index + 1) * size]
        assert rows_of(reader.batch(index)) == expected


@given(st.data())
@settings(deadline=None, max_examples=15)
def test_a_mix_holds_its_sources_in_exact_proportion_and_each_as_if_alone(small, data):
    parts = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    size = data.draw(st.integers(1, 40))
    whole = sum(parts)
    mix = [MixedSource(LOCAL, ((small[s],),), Fraction(p, whole)) for s, p in enumerate(parts)][1:]

    def make() -> Loader:
        return Loader(LOCAL, ((small[0],),), 3, size, LIMITS, mix=mix)

    reader = make()
    batches = [rows_of(reader.batch(index)) for index in range(2 * whole)]
    index = data.draw(st.integers(0, 2 * whole - 1))
    assert rows_of(make().batch(index)) == batches[index]
    stream = [row for batch in batches for row in batch]
    for source, part in enumerate(parts):
        own = [row for row in stream if row // 1000 == source]
        assert len(own) == 2 * part * size
        rows = small[source].rows
        for start in range(0, len(own) - rows + 1, rows):
            assert sorted(own[start : start + rows]) == list(
                range(1000 * source, 1000 * source + rows)
            )
    expected = plain_mix(parts, size)
    assert [row // 1000 for row in batches[0]] == sorted(expected)
    # The first source is read in the order that it has alone.
    alone = [row for i in range(2 * whole) for row in rows_of(loader((small[0],), size).batch(i))]
    own = [row for row in stream if row < 1000]
    assert own == alone[: len(own)]


def test_sources_of_one_size_have_orders_of_their_own(tmp_path):
    files = [numbered(tmp_path / f"{n}.parquet", range(n, n + 50), 50) for n in (0, 1000)]
    mix = [MixedSource(LOCAL, ((files[1],),), 0.5)]
    batch = rows_of(Loader(LOCAL, ((files[0],),), 3, 100, LIMITS, mix=mix).batch(0))
    assert sorted(batch[:50]) == list(range(50)) and batch[:50] != [r - 1000 for r in batch[50:]]


def test_with_bins_each_batch_of_a_mix_is_of_one_source(small):
    mix = [MixedSource(LOCAL, ((small[4],),), 0.25)]
    reader = Loader(LOCAL, ((small[0],),), 3, 4, LIMITS, LengthBins(2, 16), mix=mix)
    sources = [{row // 1000 for row in rows_of(reader.batch(index))} for index in range(40)]
    assert sorted(map(min, sources)) == [0] * 30 + [4] * 10
    assert all(len(found) == 1 for found in sources)


def test_weights_that_leave_nothing(small):
    mix = [MixedSource(LOCAL, ((small[n],),), 0.5) for n in (1, 2)]
    with pytest.raises(ValueError, match="must leave a share"):
        Loader(LOCAL, ((small[0],),), 3, 4, LIMITS, mix=mix)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_any_number_of_workers_shares_out_the_same_global_batches(files, workers):
    for index in (0, 3, 8):
        expected = sorted(rows_of(loader(files, 20).batch(index)))
        shares = [
            step_batch(loader(files, 20).batch(index), rank, workers, 30, nsp=False)
            for rank in range(workers)
        ]
        found = [n for s in shares for micro in s.micro_batches for n in micro.mlm_labels.tolist()]
        assert sorted(found) == expected
        assert {s.masked for s in shares} == {20}


def test_a_pass_over_many_copies_holds_the_row_groups_of_one(tmp_path):
    copies = tuple((numbered(tmp_path / f"{n}.parquet", range(12), 2),) for n in range(4))
    reader = Loader(LOCAL, copies, 3, 12, LIMITS)
    for index in range(9):
        reader.batch(index)
        kept = [len(groups._kept) for groups in reader._streams[0]._copies]
        assert sum(map(bool, kept)) == 1 and max(kept) <= 3


def test_documents_come_along_where_they_are_asked_for(tmp_path):
    file = numbered(tmp_path / "a.parquet", range(30), 8)
    table = pq.read_table(file.path)
    hashes = pa.array([bytes([n] * 16) for n in range(30)], pa.binary(16))
    pq.write_table(table.append_column("document", hashes), file.path, row_group_size=8)
    batch = Loader(LOCAL, ((file,),), 3, 20, LIMITS, documents=True).batch(0)
    assert batch.documents is not None
    assert [document[0] for document in batch.documents] == rows_of(batch)
    assert loader((file,), 20).batch(0).documents is None


def test_a_turned_bit_is_never_read_as_another_id(tmp_path):
    """Where the compression does not notice, the page's checksum does."""
    table = pa.table(make_rows(200, seed=1))
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
    (file,) = read_index(LOCAL, [str(path)])
    limits = Limits(VOCAB_SIZE, 64)
    whole = RowGroups(LOCAL, [file], limits).get(0)
    good, noticed = path.read_bytes(), 0
    ends = int.from_bytes(good[-8:-4], "little") + 8
    for place in range(4, len(good) - ends, 37):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        try:
            found = RowGroups(LOCAL, [file], limits).get(0)
        except DataError as error:
            assert "damaged" in str(error) or "row" in str(error)
            noticed += 1
            continue
        assert np.array_equal(found.input_ids.values, whole.input_ids.values), place
        assert np.array_equal(found.mlm_labels, whole.mlm_labels), place
    assert noticed > 30
