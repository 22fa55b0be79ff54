"""Sharing, cutting and packing: every row exactly once, budgets kept, tensors as the model asks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.examples import Examples, Ragged, offsets_of
from stages.training.packing import cut, pack, share, step_batch

lengths_of_rows = st.lists(st.integers(3, 60), min_size=1, max_size=40).map(np.array)


def examples_of(lengths: np.ndarray, seed: int = 0) -> Examples:
    """Rows whose first id is their number; each has 1 to 3 masked positions."""
    generator = np.random.default_rng(seed)
    ids = [np.r_[row, generator.integers(0, 99, n - 1)] for row, n in enumerate(lengths)]
    counts = generator.integers(1, 3, len(lengths))
    positions = [np.sort(generator.choice(n, c, False)) for n, c in zip(lengths, counts)]  # noqa: B905
    flat = np.concatenate(positions).astype(np.uint16)
    return Examples(
        input_ids=Ragged(np.concatenate(ids).astype(np.uint16), offsets_of(lengths)),
        a_length=generator.integers(1, np.maximum(2, lengths - 2)),
        is_next=generator.random(len(lengths)) < 0.5,
        mlm_positions=Ragged(flat, offsets_of(counts)),
        mlm_labels=generator.integers(0, 99, len(flat)).astype(np.uint16),
    )


@given(lengths_of_rows, st.integers(1, 9))
@settings(deadline=None)
def test_ranks_share_every_row_once_and_evenly(lengths, world_size):
    shares = [share(lengths, rank, world_size) for rank in range(world_size)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    tokens = [int(lengths[rows].sum()) for rows in shares]
    assert max(tokens) - min(tokens) <= lengths.max()
    counts = [len(rows) for rows in shares]
    assert max(counts) - min(counts) <= 1


@given(lengths_of_rows, st.integers(1, 150))
@settings(deadline=None)
def test_runs_hold_every_row_once_and_keep_the_budget(lengths, budget):
    runs = cut(lengths, budget)
    rows = np.arange(len(lengths))
    assert np.concatenate([rows[run] for run in runs]).tolist() == rows.tolist()
    for run in runs:
        assert lengths[run].sum() <= budget or len(rows[run]) == 1
    for left, right in pairwise(runs):
        assert lengths[left].sum() + lengths[right][0] > budget, "cut too early"


def test_dealing_to_and_fro_evens_out():
    lengths = np.array([1, 8, 2, 7, 3, 6, 4, 5])
    assert [lengths[share(lengths, rank, 2)].tolist() for rank in (0, 1)] == [
        [8, 5, 4, 1],
        [7, 6, 3, 2],
    ]


def test_no_rows_no_runs():
    assert cut(np.array([], dtype=np.int64), 10) == []


@given(lengths_of_rows, st.integers(1, 5), st.integers(20, 200))
@settings(deadline=None)
def test_a_step_holds_every_row_once_over_ranks_and_micro_batches(lengths, world_size, budget):
    examples = examples_of(lengths)
    parts = [step_batch(examples, rank, world_size, budget, True) for rank in range(world_size)]
    seen, masked, padded = [], 0, 0
    for part in parts:
        assert (part.tokens, part.masked, part.pairs) == (
            lengths.sum(), len(examples.mlm_labels), len(lengths),
        )  # fmt: skip
        for micro in part.micro_batches:
            starts = micro.cu_seqlens[:-1].long()
            numbers = micro.input_ids[starts].tolist()
            seen += numbers
            masked += len(micro.mlm_labels)
            padded += micro.max_seqlen * len(numbers)
            sizes = micro.cu_seqlens.diff().tolist()
            assert sizes == lengths[numbers].tolist()
            assert micro.max_seqlen == max(sizes)
            assert len(micro.input_ids) <= budget or len(sizes) == 1
    assert sorted(seen) == list(range(len(lengths)))
    assert masked == len(examples.mlm_labels)
    assert padded == sum(part.padded_tokens for part in parts)
    assert lengths.sum() == sum(part.share_tokens for part in parts)
    assert all(part.laid_tokens == part.share_tokens for part in parts)


def test_packed_tensors():
    """[CLS] A A [SEP] B [SEP] and [CLS] A [SEP] B B [SEP]."""
    examples = Examples(
        input_ids=Ragged(
            np.array([2, 10, 11, 3, 12, 3, 2, 4, 3, 14, 15, 3], "u2"), np.array([0, 6, 12])
        ),
        a_length=np.array([2, 1]),
        is_next=np.array([True, False]),
        mlm_positions=Ragged(np.array([2, 4, 1], "u2"), np.array([0, 2, 3])),
        mlm_labels=np.array([21, 22, 23], "u2"),
    )  # fmt: skip
    micro = pack(examples, nsp=True)
    assert micro.input_ids.tolist() == [2, 10, 11, 3, 12, 3, 2, 4, 3, 14, 15, 3]
    assert micro.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    assert micro.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert micro.cu_seqlens.tolist() == [0, 6, 12] and micro.cu_seqlens.dtype == torch.int32
    assert micro.max_seqlen == 6
    assert micro.mlm_positions.tolist() == [2, 4, 7]
    assert micro.mlm_labels.tolist() == [21, 22, 23]
    assert micro.is_next is not None and micro.is_next.tolist() == [True, False]
    for tensor in (micro.input_ids, micro.segment_ids, micro.position_ids, micro.mlm_positions):
        assert tensor.dtype == torch.int64


def test_without_pairs_all_is_segment_0():
    pairs = examples_of(np.array([7, 9]))
    text = Examples(
        pairs.input_ids, np.zeros(2, np.int64), None, pairs.mlm_positions, pairs.mlm_labels
    )
    micro = pack(text, nsp=False)
    assert micro.segment_ids.sum() == 0 and micro.is_next is None
    with pytest.raises(ValueError, match="objective"):
        pack(text, nsp=True)
    # Pairs keep their segments when only the objective is off.
    assert pack(pairs, nsp=False).segment_ids.sum() > 0
    assert pack(pairs, nsp=False).is_next is None
