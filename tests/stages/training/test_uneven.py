"""Ranks with very different numbers of masked positions give the gradient that one worker gives."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stages.training.packing import share, step_batch

HERE = Path(__file__).parent
_SPEC = importlib.util.spec_from_file_location("uneven", HERE / "uneven.py")
uneven = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(uneven)

# Rows are dealt to two ranks as 0 1 1 0 0 1 1 0: all masked positions but one are rank 0's, in its
# first micro-batch; or rank 1 has none.
ONE_SIDED = {0: 30, 7: 1}
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}


def masked_of_ranks(examples, world_size):
    rows = [share(examples.input_ids.lengths, rank, world_size) for rank in range(world_size)]
    return [int(examples.mlm_positions.lengths[mine].sum()) for mine in rows]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("masked", "world_size", "of_ranks"),
    [
        (ONE_SIDED, 2, [31, 0]),
        ({0: 30, 3: 12, 1: 1}, 2, [42, 1]),
        ({0: 30, 1: 1}, 4, [30, 1, 0, 0]),
        # More ranks than rows: two hold no example at all.
        ({0: 30, 5: 2}, 10, [30, 0, 0, 0, 0, 2, 0, 0, 0, 0]),
        ({}, 2, [0, 0]),
    ],
)
def test_the_sum_over_ranks_is_one_worker_s_gradient(dtype, masked, world_size, of_ranks):
    examples = uneven.batch(masked)
    assert masked_of_ranks(examples, world_size) == of_ranks
    mlm, pair, whole = uneven.plain_gradient(examples, dtype)
    parts = [uneven.gradient(examples, rank, world_size, dtype) for rank in range(world_size)]
    bound = BOUNDS[dtype]
    assert whole.dtype == dtype and whole.norm() > 0
    assert (sum(g for _, g in parts) - whole).norm() <= bound * whole.norm()
    assert sum(part.parts[0] for part, _ in parts) == pytest.approx(mlm, rel=bound)
    assert sum(part.parts[1] for part, _ in parts) == pytest.approx(pair, rel=bound)


def test_a_mean_of_means_is_far_outside_the_bound():
    """As DDP averages, where each rank divides by its own counts: these batches tell it apart."""
    examples = uneven.batch({0: 30, 3: 12, 1: 1})
    _, _, whole = uneven.plain_gradient(examples, torch.float64)
    alone = []
    for rank in (0, 1):
        mine = examples.take(share(examples.input_ids.lengths, rank, 2))
        alone.append(uneven.plain_gradient(mine, torch.float64)[2])
    assert (sum(alone) / 2 - whole).norm() > 0.1 * whole.norm()


def test_micro_batches_weigh_as_ranks_do():
    examples = uneven.batch(ONE_SIDED)
    parts = step_batch(examples, 0, 2, uneven.BUDGET, nsp=True).micro_batches
    assert [len(part.mlm_labels) for part in parts] != [0] * len(parts)
    assert len(parts) > 1 and len({len(part.mlm_labels) for part in parts}) > 1


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tmp_path):
    """One of them holds no masked position; the sum is that of the group."""
    environment = {
        **os.environ, "PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    told = {
        "rendezvous": str(tmp_path / "rendezvous"), "workers": 2, "masked": ONE_SIDED, "rows": 8,
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [
                sys.executable, str(HERE / "uneven.py"),
                json.dumps({**told, "rank": rank, "out": str(tmp_path / f"{rank}-")}),
            ],
            env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert [process.wait(timeout=100) for process in processes] == [0, 0]
    for dtype, bound in BOUNDS.items():
        mlm, pair, whole = uneven.plain_gradient(uneven.batch(ONE_SIDED), dtype)
        for rank in range(2):
            name = str(dtype).removeprefix("torch.")
            seen = torch.load(tmp_path / f"{rank}-{name}", weights_only=True)
            assert (seen["gradient"] - whole).norm() <= bound * whole.norm()
            assert seen["mlm"] == pytest.approx(mlm, rel=bound)
            assert seen["pair"] == pytest.approx(pair, rel=bound)
