"""Masks drawn while reading: a function of seed, epoch and row, whatever is read beside it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from stages.text.masking import MaskOptions, mask_rows
from stages.text.random import Stream
from stages.training.bins import LengthBins
from stages.training.drawn_masks import DrawnMasks
from stages.training.examples import Examples
from stages.training.loader import Loader, MixedSource
from stages.training.row_groups import DataError, Limits, ShardFile, count_labels, read_index

LOCAL = LocalFileSystem()
LIMITS = Limits(vocab_size=200, max_length=64)
FIRST, ROWS, MASK = 100, 60, 4
"""Row n is [CLS], FIRST + n, words..., [SEP]; entries from 50 to 69 are pieces with ##."""


def options(strategy: str, **more) -> MaskOptions:
    ordinary = np.arange(200) >= 5
    pieces = (np.arange(200) >= 50) & (np.arange(200) < 70)
    # What names a row is never masked.
    never = np.arange(200) >= FIRST
    return MaskOptions(
        cls_id=2, sep_id=3, mask_id=MASK, ordinary=ordinary & ~never, continuation=pieces,
        max_predictions=9, strategy=strategy, never=never, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def originals() -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [
        [2, FIRST + n, *draw.integers(5, 70, draw.integers(3, 40)).tolist(), 3] for n in range(ROWS)
    ]


@pytest.fixture(scope="module")
def pairs(originals, tmp_path_factory) -> tuple[ShardFile, ...]:
    """Two files in row groups of 7."""
    folder = tmp_path_factory.mktemp("pairs")
    paths = []
    for number, rows in enumerate((originals[:25], originals[25:])):
        table = pa.table(
            {
                "input_ids": pa.array(rows, pa.list_(pa.uint16())),
                "a_length": pa.array([1] * len(rows), pa.uint16()),
                "is_next": pa.array([n % 2 == 0 for n in range(len(rows))]),
            }
        )
        paths.append(str(folder / f"{number}.parquet"))
        pq.write_table(table, paths[-1], row_group_size=7)
    return read_index(LOCAL, paths)


def rows_of(batch: Examples) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """By row: ids, positions and labels."""
    found = {}
    for place in range(len(batch)):
        first, last = batch.mlm_positions.offsets[place : place + 2]
        labels = batch.mlm_labels[first:last].tolist()
        ids = batch.input_ids[place].tolist()
        found[ids[1] - FIRST] = (ids, batch.mlm_positions[place].tolist(), labels)
    return found


def loader(pairs, masks: DrawnMasks, batch_size: int, **more) -> Loader:
    return Loader(LOCAL, (pairs,), 3, batch_size, LIMITS, masks=masks, **more)


@pytest.mark.parametrize("strategy", ["per_token", "whole_word", "span"])
def test_a_row_has_the_masks_that_the_kernel_gives_it_alone(pairs, originals, strategy):
    masks = DrawnMasks(options(strategy), seed=11)
    for epoch in (0, 2):
        rows = rows_of(loader(pairs, masks, ROWS).batch(epoch))
        assert sorted(rows) == list(range(ROWS))
        for row, (ids, positions, labels) in rows.items():
            own = np.array(originals[row], dtype=np.uint16)
            stream = Stream(11, "mask", "loading", 0, epoch)
            alone = mask_rows(own, np.array([0, len(own)]), masks.options, stream, np.array([row]))
            assert ids == alone.ids.tolist()
            assert positions == alone.positions.tolist() and labels == alone.labels.tolist()
            assert labels == own[positions].tolist() and labels


@pytest.fixture(scope="module")
def expected(pairs) -> dict[tuple[int, int], tuple[list[int], list[int], list[int]]]:
    """By epoch and row, read epoch by epoch."""
    reader = loader(pairs, DrawnMasks(options("per_token"), seed=11), ROWS)
    return {
        (epoch, row): seen
        for epoch in range(1 + 90 * 21 // ROWS)
        for row, seen in rows_of(reader.batch(epoch)).items()
    }


@given(st.integers(1, 90), st.integers(0, 20), st.booleans())
@settings(deadline=None, max_examples=25)
def test_neither_batches_nor_bins_nor_seeking_change_a_mask(
    pairs, expected, batch_size, index, binned
):
    masks = DrawnMasks(options("per_token"), seed=11)
    reader = loader(pairs, masks, batch_size, bins=LengthBins(3, 64) if binned else None)
    epoch, place = reader.position(index)
    batch = reader.batch(index).take(np.arange(min(batch_size, ROWS - place)))
    for row, seen in rows_of(batch).items():
        assert seen == expected[epoch, row]


def test_epochs_seeds_and_sources_draw_other_masks(pairs):
    def seen(epoch: int, seed: int = 11, source: int = 0) -> dict:
        masks = DrawnMasks(options("per_token"), seed, source)
        return rows_of(loader(pairs, masks, ROWS).batch(epoch))

    plain = seen(0)
    assert seen(0) == plain
    for other in (seen(1), seen(0, seed=12)):
        assert sum(other[row][1] != plain[row][1] for row in plain) > ROWS / 2
    # In a mix the same files have masks of their own.
    mix = [MixedSource(LOCAL, (pairs,), 0.5)]
    mixed = loader(pairs, DrawnMasks(options("per_token"), 11), 2 * ROWS, mix=mix).batch(0)
    first, second = (rows_of(mixed.take(np.arange(n, n + ROWS))) for n in (0, ROWS))
    assert first == plain
    assert sum(second[row][1] != plain[row][1] for row in plain) > ROWS / 2


def test_labels_and_segments_stay(pairs):
    batch = loader(pairs, DrawnMasks(options("per_token"), 11), ROWS).batch(0)
    assert batch.is_next is not None and set(batch.a_length.tolist()) == {1}
    for place, row in enumerate(rows_of(batch)):
        number = row if row < 25 else row - 25
        assert batch.is_next[place] == (number % 2 == 0)


def test_masked_rows_are_not_masked_again_nor_pairs_taken_for_masked(pairs, tmp_path):
    with pytest.raises(DataError, match="no column mlm_positions"):
        Loader(LOCAL, (pairs,), 3, 5, LIMITS).batch(0)
    table = pq.read_table(pairs[0].path)
    none = pa.array([[]] * table.num_rows, pa.list_(pa.uint16()))
    path = str(tmp_path / "masked.parquet")
    pq.write_table(table.append_column("mlm_positions", none), path)
    with pytest.raises(DataError, match="drawn on pairs"):
        loader(read_index(LOCAL, [path]), DrawnMasks(options("per_token"), 11), 5).batch(0)


def test_labels_of_drawn_masks_are_counted_up_to_a_limit(pairs, originals):
    masks = DrawnMasks(options("per_token"), 11)
    whole = count_labels(LOCAL, pairs, LIMITS, masks)
    batch = loader(pairs, masks, ROWS).batch(0)
    assert whole.tolist() == np.bincount(batch.mlm_labels, minlength=200).tolist()
    some = count_labels(LOCAL, pairs, LIMITS, masks, most_tokens=len(originals[0]) + 1)
    assert 0 < some.sum() < whole.sum() and (some <= whole).all()
