"""Scores of a task's model for many features, in their order, whatever the batches were."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stages.training import distributed
from stages.training.device import Precision, autocast
from stages.training.examples import offsets_of
from stages.training.packing import cut, share
from stages.training.task_examples import TaskExamples
from stages.training.task_packing import pack_task


@torch.no_grad()
def task_outputs(
    model: nn.Module,
    examples: TaskExamples,
    columns: int,
    budget: int,
    precision: Precision,
    together: bool = True,
) -> NDArray[np.float32]:
    """Score features without dropout.

    Args:
        model: of the examples' kind; its mode is put back afterwards.
        examples: N of them with T tokens.
        columns: K scores of a feature or a token.
        budget: tokens of a micro-batch.
        precision: of matrix products.
        together: all ranks share the work and have all scores afterwards; False: this rank alone.

    Returns:
        float32 [N, K] ("sequence") or [T, K] ("token", "span"), in the order of `examples`.
    """
    rank, world_size = (distributed.rank(), distributed.world_size()) if together else (0, 1)
    device = next(model.parameters()).device
    per_token = examples.kind != "sequence"
    scores = torch.zeros((examples.tokens if per_token else len(examples), columns))
    scores = scores.to(device)
    lengths, offsets = examples.input_ids.lengths, examples.input_ids.offsets
    mine = share(lengths, rank, world_size)
    was_training = model.training
    model.eval()
    for run in cut(lengths[mine], budget):
        rows = mine[run]
        micro = pack_task(examples.take(rows)).to(device)
        with autocast(device.type, precision):
            found: Tensor = model(*micro.inputs())
        scores[torch.from_numpy(_places(rows, lengths, offsets, per_token)).to(device)] = (
            found.float()
        )
    model.train(was_training)
    if together:
        # Each place was filled by one rank; the others have zeros there.
        distributed.sum_over_ranks(scores)
    return scores.cpu().numpy()


def _places(
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    offsets: NDArray[np.int64],
    per_token: bool,
) -> NDArray[np.int64]:
    """Where the scores of `rows`, laid end to end, belong."""
    if not per_token:
        return rows
    own = lengths[rows]
    starts = offsets_of(own)
    places: NDArray[np.int64] = np.repeat(offsets[rows] - starts[:-1], own) + np.arange(starts[-1])
    return places
