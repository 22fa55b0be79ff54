"""A global batch with very uneven ranks, its gradient, and a process that sums it over a group."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
import torch.distributed as dist
from pyarrow.fs import LocalFileSystem
from torch import Tensor

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.losses import mlm_loss_sum, nsp_loss_sum
from stages.training import distributed
from stages.training.examples import Examples, Ragged, offsets_of
from stages.training.job import Rounding, TrainConfig, TrainJob
from stages.training.loop import Pretraining
from stages.training.packing import pack, step_batch
from stages.training.passes import passes_of_step, with_fillers
from stages.training.sharding import gathered, shard
from stages.training.step import StepLosses, Stepper

BUDGET = 60
"""Tokens of a micro-batch: shares are of several, and of other numbers of them."""


def batch(masked: dict[int, int], rows: int = 8) -> Examples:
    """Rows of 39, 38, 37... tokens; row i has `masked[i]` masked positions, or none."""
    generator = np.random.default_rng(4)
    lengths = 39 - np.arange(rows)
    counts = np.array([masked.get(row, 0) for row in range(rows)])
    places = [
        np.sort(generator.choice(np.arange(1, n - 1), count, replace=False))
        for n, count in zip(lengths, counts, strict=True)
    ]
    return Examples(
        input_ids=Ragged(generator.integers(5, 64, lengths.sum()), offsets_of(lengths)),
        a_length=lengths // 3,
        is_next=np.arange(rows) % 3 == 0,
        mlm_positions=Ragged(np.concatenate(places).astype(np.int64), offsets_of(counts)),
        mlm_labels=generator.integers(5, 64, counts.sum()),
    )


CONFIG = BertConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=2, max_position_embeddings=40,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


def make_model(dtype: torch.dtype) -> BertForPreTraining:
    model = BertForPreTraining(CONFIG)
    init_weights(model, torch.Generator().manual_seed(2), std=0.1)
    return model.to(dtype).train()


def flat_gradient(model: BertForPreTraining) -> Tensor:
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return torch.cat([whole.flatten().clone() for _, whole in gathered(gradients)])


def plain_gradient(examples: Examples, dtype: torch.dtype) -> tuple[float, float, Tensor]:
    """MLM loss, pair loss and gradient as they are defined: one batch, one mean of each loss."""
    model = make_model(dtype)
    whole = pack(examples, nsp=True)
    output = model(*whole.inputs())
    assert output.nsp_logits is not None and whole.is_next is not None
    mlm = mlm_loss_sum(output.mlm_logits, whole.mlm_labels) / max(1, examples.masked)
    pair = nsp_loss_sum(output.nsp_logits, whole.is_next) / len(examples)
    (mlm + pair).backward()
    return mlm.item(), pair.item(), flat_gradient(model)


def gradient(
    examples: Examples, rank: int, world_size: int, dtype: torch.dtype, sharded: bool = False
) -> tuple[StepLosses, Tensor]:
    """What the trainer's own step gives on a rank: summed over ranks where there is a group.

    `sharded`: the model is cut among ranks, and its gradient brought together.
    """
    local = LocalFileSystem()
    job = TrainJob(
        model=CONFIG, train=TrainConfig(10, len(examples), 1e-3, precision="float32"),
        rounding=Rounding(micro_batch_tokens=BUDGET), seed=1, filesystem=local, copies=(),
        checkpoint_filesystem=local, checkpoint_folder="", fingerprint="", attempt="",
    )  # fmt: skip
    model = make_model(dtype)
    if sharded:
        shard(model, torch.device("cpu"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    stepper = Stepper(job, model, optimiser, Pretraining(), torch.device("cpu"), rank)
    part = step_batch(examples, rank, world_size, BUDGET, nsp=True)
    if sharded:
        passes = passes_of_step(examples.input_ids.lengths, world_size, BUDGET)
        part = with_fillers(part, passes, nsp=True)
    losses = stepper.gradients_of(0, part, lambda: False)
    return losses, flat_gradient(model)


def main(told: dict) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{told['rendezvous']}",
        rank=told["rank"],
        world_size=told["workers"],
    )
    examples = batch({int(row): count for row, count in told["masked"].items()}, told["rows"])
    for name in ("float32", "float64"):
        losses, whole = gradient(
            examples, distributed.rank(), told["workers"], getattr(torch, name)
        )
        torch.save(
            {"mlm": losses.parts[0], "pair": losses.parts[1], "gradient": whole}, told["out"] + name
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
