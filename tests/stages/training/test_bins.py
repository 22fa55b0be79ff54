"""Length bins: one bin a batch, every row once an epoch, any position at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from stages.training.bins import BinnedOrder, BinnedRows, LengthBins
from stages.training.examples import Examples
from stages.training.loader import Loader
from stages.training.packing import step_batch
from stages.training.row_groups import DataError, Limits, RowGroups, ShardFile, read_index

LOCAL = LocalFileSystem()
LIMITS = Limits(vocab_size=1 << 16, max_length=512)
BINS = LengthBins(4, 64)


def shard(path: Path, numbers: range, row_group_rows: int) -> ShardFile:
    """Row n has its number as label; nine of ten rows are of 49 to 64 tokens, the rest shorter."""
    generator = np.random.default_rng(numbers.start)
    ids = []
    for n in numbers:
        low, high = (49, 65) if generator.random() < 0.9 else (3, 49)
        ids.append([2, n, *[5] * int(generator.integers(low, high) - 2)])
    table = pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.uint16())),
            "mlm_positions": pa.array([[1]] * len(ids), pa.list_(pa.uint16())),
            "mlm_labels": pa.array([[n] for n in numbers], pa.list_(pa.uint16())),
        }
    )
    pq.write_table(table, path, row_group_size=row_group_rows)
    return read_index(LOCAL, [str(path)])[0]


@pytest.fixture
def files(tmp_path: Path) -> tuple[ShardFile, ...]:
    """1,000 rows in row groups of 1 to 64."""
    return (
        shard(tmp_path / "a.parquet", range(0, 601), 64),
        shard(tmp_path / "b.parquet", range(601, 602), 64),
        shard(tmp_path / "c.parquet", range(602, 1000), 50),
    )


def loader(files, batch_size: int, seed: int = 3, copies: int = 1) -> Loader:
    return Loader(LOCAL, (files,) * copies, seed, batch_size, LIMITS, BINS)


def rows_of(batch: Examples) -> list[int]:
    return batch.mlm_labels.tolist()


def bins_of(batch: Examples) -> set[int]:
    return set(BINS.of(batch.input_ids.lengths).tolist())


def test_bins_are_of_equal_width():
    lengths = np.array([1, 16, 17, 32, 33, 48, 49, 64, 65, 400])
    assert BINS.of(lengths).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]
    assert LengthBins(3, 128).of(np.array([43, 44, 86, 87, 128])).tolist() == [0, 1, 1, 2, 2]


counts = st.integers(1, 6).flatmap(
    lambda bins: st.lists(
        st.lists(st.integers(0, 9), min_size=bins, max_size=bins), min_size=1, max_size=7
    ).filter(lambda rows: any(map(sum, rows)))
)


@given(counts, st.integers(1, 12), st.data())
@settings(deadline=None)
def test_an_epoch_is_every_row_once_and_its_batches_are_of_one_bin(rows, batch_size, data):
    head = data.draw(st.integers(0, batch_size - 1))
    most = data.draw(st.integers(1, batch_size))
    table = np.array(rows, dtype=np.int64)
    total = int(table.sum())
    order = BinnedOrder(table, batch_size, head, seed=5, epoch=2)
    stream: list[tuple[int, int, int]] = []
    while len(stream) < total:
        group, bin_, found = order.find(len(stream), most)
        assert 0 < found.stop - found.start <= most and found.stop <= table[group, bin_]
        stream += [(group, bin_, place) for place in range(found.start, found.stop)]

    wanted = [
        (g, b, p) for g, r in enumerate(rows) for b, count in enumerate(r) for p in range(count)
    ]
    assert sorted(stream) == wanted
    # A bin's queue is read from its beginning to its end: the last row of a part is read last.
    for key in {(group, bin_) for group, bin_, _ in stream}:
        places = [place for *part, place in stream if tuple(part) == key]
        assert places == sorted(places)
    for row, (group, bin_, place) in enumerate(stream):
        assert order.find(row, 1) == (group, bin_, slice(place, place + 1))
        if place == table[group, bin_] - 1:
            assert order.last_row(group, bin_) == row

    # What no bin could fill comes last, from short to long; before it each batch is of one bin.
    head = min(head, total)
    whole = total - order.mixed_rows
    assert whole % batch_size == 0
    for at in range(head, head + whole, batch_size):
        assert len({bin_ for _, bin_, _ in stream[at : at + batch_size]}) == 1
    rest = Counter(bin_ for _, bin_, _ in stream[head + whole :])
    assert all(count < batch_size for count in rest.values())
    assert [b for _, b, _ in stream[head + whole :]] == sorted(rest.elements())


@pytest.mark.parametrize(("batch_size", "copies"), [(1, 1), (16, 1), (7, 2), (1500, 1)])
def test_every_row_once_an_epoch(files, batch_size, copies):
    reader = loader(files, batch_size, copies=copies)
    stream = [r for i in range(-(-3000 // batch_size)) for r in rows_of(reader.batch(i))]
    epochs = [stream[at : at + 1000] for at in (0, 1000, 2000)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(1000))
    assert epochs[0] != epochs[1] != epochs[2]
    assert reader.position(1) == divmod(batch_size, 1000)


def test_batches_are_of_one_bin_and_the_others_are_counted(files):
    reader = loader(files, 16)
    batches = [reader.batch(i) for i in range(1000 // 16)]
    mixed = [len(b) for b in batches if len(bins_of(b)) > 1]
    assert {bin_ for b in batches if len(b) for bin_ in bins_of(b)} == {0, 1, 2, 3}
    assert sum(mixed) <= reader.mixed_rows(0) <= 4 * 16
    assert loader(files, 16).mixed_rows(1) <= 5 * 16
    plain = Loader(LOCAL, (files,), 3, 16, LIMITS)
    assert plain.mixed_rows(0) == plain.rows(0) == 1000
    assert sum(len(bins_of(plain.batch(i))) > 1 for i in range(62)) > 40


def test_all_ranks_work_on_the_same_bin(files):
    batch = next(b for i in range(60) if bins_of(b := loader(files, 16).batch(i)) == {1})
    for workers in (1, 2, 3):
        shares = [step_batch(batch, rank, workers, 1 << 20, nsp=False) for rank in range(workers)]
        found = {n for s in shares for m in s.micro_batches for n in m.cu_seqlens.diff().tolist()}
        assert found <= set(range(17, 33)) and sum(s.share_tokens for s in shares) == batch.tokens


def test_seeking_equals_reading_in_order(files):
    in_order = loader(files, 16)
    expected = [rows_of(in_order.batch(index)) for index in range(140)]
    jumping = loader(files, 16)
    for index in (139, 0, 61, 62, 63, 20, 19, 100):
        assert rows_of(loader(files, 16).batch(index)) == expected[index]
        assert rows_of(jumping.batch(index)) == expected[index]
    # Goes on where it jumped to, past what it left behind.
    assert [rows_of(jumping.batch(index)) for index in range(101, 140)] == expected[101:]


def test_the_order_depends_on_the_seed(files):
    one, same, other = (
        [rows_of(loader(files, 16, seed).batch(i)) for i in range(9)] for seed in (3, 3, 4)
    )
    assert one == same != other
    flat = [row for batch in one for row in batch]
    assert flat != sorted(flat)


def test_each_epoch_orders_row_groups_and_bins_anew():
    table = np.full((12, 3), 8)
    orders = [BinnedOrder(table, 4, 0, *key) for key in ((3, 0), (3, 1), (4, 0), (3, 0))]
    found = [[order.find(row, 1)[:2] for row in range(0, 288, 4)] for order in orders]
    for which in (0, 1):
        sequences = [[place[which] for place in places] for places in found]
        assert sequences[0] == sequences[3]
        assert sequences[0] != sequences[1] and sequences[0] != sequences[2]


class Counting(RowGroups):
    """Counts what is decoded."""

    decoded = 0

    def _decode(self, file: ShardFile, row_group: int) -> Examples:
        self.decoded += 1
        return super()._decode(file, row_group)


def test_reading_on_decodes_a_row_group_once_and_keeps_little(files):
    groups = Counting(LOCAL, files, LIMITS, keep=1)
    rows = BinnedRows(groups, BINS, 16, seed=3)
    row, most_kept = 0, 0
    while row < 1000:
        row += len(rows.read(0, 0, row, 16))
        most_kept = max(most_kept, sum(map(len, rows._kept.values())))
    assert groups.decoded == len(groups)
    assert not rows._kept
    # A queue is below G; a row group that has just come adds its rows.
    assert most_kept <= 4 * 15 + 2 * 64

    # After a jump nothing is kept that has been read before.
    for row in range(0, 1000, 16):
        rows = BinnedRows(groups, BINS, 16, seed=3)
        rows.read(0, 0, row, 16)
        assert all(rows.order(0, 0).last_row(*key) >= row for key in rows._kept)


def test_lengths_are_checked_against_the_index(files):
    wrong = (ShardFile(files[0].path, (64, 63)),)
    with pytest.raises(DataError, match="64 rows, the index says 63"):
        Loader(LOCAL, (wrong,), 3, 16, LIMITS, BINS).batch(0)


def test_padding_of_batches_that_are_padded_to_their_longest(files):
    """Global batches in one piece: with bins a batch is padded by less than a bin's width."""
    shares = []
    for reader in (loader(files, 16), Loader(LOCAL, (files,), 3, 16, LIMITS)):
        batches = [reader.batch(i) for i in range(62)]
        padded = sum(len(b) * int(b.input_ids.lengths.max()) for b in batches)
        shares.append(1 - sum(b.tokens for b in batches) / padded)
    binned, plain = shares
    assert binned < 0.16 and plain > binned + 0.02, shares
