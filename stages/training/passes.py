"""Equal numbers of passes on all ranks: those with fewer micro-batches make passes of nothing.

With parameters cut among ranks each pass gathers them from all, so that all have to make it. The
numbers follow from the lengths of the rows, which every rank knows: none has to ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from stages.training.packing import MicroBatch, StepBatch, cut, owners


def filler(nsp: bool) -> MicroBatch:
    """One token, no masked position and no pair: adds zeros to losses and gradients."""
    none = torch.zeros(0, dtype=torch.int64)
    one = torch.zeros(1, dtype=torch.int64)
    return MicroBatch(
        input_ids=one,
        segment_ids=one,
        position_ids=one,
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        max_seqlen=1,
        mlm_positions=none,
        mlm_labels=none,
        is_next=torch.zeros(0, dtype=torch.bool) if nsp else None,
    )


def with_fillers(batch: StepBatch, passes: int, nsp: bool) -> StepBatch:
    """The same with as many passes of nothing behind its micro-batches as `passes` has more."""
    missing = passes - len(batch.micro_batches)
    return replace(batch, micro_batches=batch.micro_batches + (filler(nsp),) * missing)


def most_passes(shares: Iterable[NDArray[np.int64]], budget: int) -> int:
    """Micro-batches of the rank that has the most.

    Args:
        shares: tokens of the rows of each rank, longest first.
        budget: tokens of a micro-batch.
    """
    return max(len(cut(lengths, budget)) for lengths in shares)


def passes_of_step(lengths: NDArray[np.int64], world_size: int, budget: int) -> int:
    """Micro-batches of the rank that has the most of a global batch, as `step_batch` cuts it.

    Args:
        lengths: tokens of each row of the global batch.
        world_size: number of ranks.
        budget: tokens of a micro-batch.
    """
    falling = -np.sort(-lengths)
    owner = owners(len(lengths), world_size)
    return most_passes((falling[owner == rank] for rank in range(world_size)), budget)
