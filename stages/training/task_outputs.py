"""Scores of a task's model for many features, by all ranks together."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from model.task_heads import BertForTask
from stages.training import distributed
from stages.training.device import Precision
from stages.training.packing import share
from stages.training.scoring import Forward, Sequences
from stages.training.task_examples import TaskExamples


def task_outputs(
    model: BertForTask,
    examples: TaskExamples,
    budget: int,
    precision: Precision,
    together: bool = True,
) -> NDArray[np.float32]:
    """Score features without dropout.

    Args:
        model: of the examples' kind; its mode is put back afterwards.
        examples: N of them with T tokens.
        budget: tokens of a micro-batch.
        precision: of matrix products.
        together: all ranks share the work and have all scores afterwards; False: this rank alone.

    Returns:
        float32 [N, K] ("sequence") or [T, K] ("token", "span"), in the order of `examples`.
    """
    device = next(model.parameters()).device
    was_training = model.training
    forward = Forward(model, str(device), precision, budget)
    world_size = distributed.world_size() if together else 1
    lengths = examples.input_ids.lengths
    rows = np.arange(len(examples))
    if world_size > 1:
        rows = np.sort(share(lengths, distributed.rank(), world_size))
    mine = Sequences(examples.input_ids.take(rows), examples.a_length[rows])
    found = forward.task_scores(mine)
    model.train(was_training)
    if world_size == 1:
        return found
    own = np.zeros(len(examples), np.bool_)
    own[rows] = True
    places = own if model.kind == "sequence" else np.repeat(own, lengths)
    scores = np.zeros((len(places), model.classes), np.float32)
    scores[places] = found
    whole = torch.from_numpy(scores).to(device)
    # Each place was filled by one rank; the others have zeros there.
    distributed.sum_over_ranks(whole)
    return whole.cpu().numpy()
