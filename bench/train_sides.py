"""The two sides of the comparison: one optimiser step each, on the same rows and weights.

Ours is the step of a run: `stages.training.step` on batches of `stages.training.packing`. Theirs is
the loop that users of transformers write, or that its Trainer runs: rows padded to the full length,
labels of -100 where nothing is masked, gradients clipped, PyTorch's fused AdamW, autocast to
bfloat16.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from pyarrow.fs import LocalFileSystem
from torch import Tensor, nn

from bench.train_settings import Switches
from model.bert import BertForPreTraining, PretrainingOutput, init_weights
from model.config import BertConfig
from model.huggingface import config_to_huggingface, to_huggingface
from model.losses import mlm_loss_sum
from stages.training.device import Precision, apply, autocast, place, this_machine
from stages.training.examples import Examples
from stages.training.job import Rounding, TrainConfig, TrainJob
from stages.training.loop import Pretraining
from stages.training.optimisers import make_optimiser
from stages.training.packing import StepBatch, step_batch
from stages.training.prefetch import prefetched
from stages.training.shapes import fixed_shape
from stages.training.step import Stepper

LEARNING_RATE = 1e-4
SEED = 12345
IGNORED = -100
"""What transformers leaves out of the loss."""


class Side(Protocol):
    """Trains on the same batches as the other."""

    def steps(self, numbers: range) -> list[Tensor]:
        """Make the optimiser steps `numbers`; returns their losses, where they were computed."""
        ...


def rows_of(examples: Examples, step: int, rows: int) -> Examples:
    """The rows of a step: the next ones, from the start again when all were seen."""
    return examples.take((np.arange(rows) + step * rows) % len(examples))


def weights(config: BertConfig) -> BertForPreTraining:
    """A model on CPU, drawn from the seed."""
    model = BertForPreTraining(config)
    init_weights(model, torch.Generator().manual_seed(SEED))
    return model


class Ours:
    """Unpadded, with what `switches` say: `pretrain` without its loader, logs and checkpoints."""

    def __init__(
        self,
        config: BertConfig,
        examples: Examples,
        rows: int,
        length: int,
        device: torch.device,
        switches: Switches,
    ) -> None:
        self._examples, self._rows, self._nsp = examples, rows, config.nsp
        self._budget = rows * length
        job = TrainJob(
            model=config,
            train=_train_config(rows, switches.precision),
            rounding=Rounding(self._budget),
            seed=SEED,
            filesystem=LocalFileSystem(),
            copies=(),
            checkpoint_filesystem=LocalFileSystem(),
            checkpoint_folder="",
            fingerprint="",
            attempt="",
        )
        placement = place(str(device), switches.precision, this_machine())
        self._pinned = placement.pinned_copies
        apply(placement)
        kind = BertForPreTraining if switches.gathered else _AllToTheHead
        model = kind(config, switches.attention, switches.checkpointing)
        model.load_state_dict(weights(config).state_dict())
        model = model.to(device).train()
        self._shape = None
        if switches.compile:
            model.compile_encoder()
            mean = float(examples.input_ids.lengths.mean())
            self._shape = fixed_shape(self._budget, length, mean)
        fused = switches.fused and placement.fused_optimiser
        optimiser = make_optimiser(
            model.parameters(), job.train, model.bert.encoder.parameters(), fused
        )
        self._stepper = Stepper(job, model, optimiser, Pretraining(), device, rank=0)

    def steps(self, numbers: range) -> list[Tensor]:
        """Batches are packed in the background, as in a run."""
        with prefetched(self._prepare, numbers, 4) as batches:
            return [self._step(step, next(batches)) for step in numbers]

    def _prepare(self, step: int) -> StepBatch:
        examples = rows_of(self._examples, step, self._rows)
        batch = step_batch(examples, 0, 1, self._budget, self._nsp, self._shape)
        return batch.pinned() if self._pinned else batch

    def _step(self, step: int, batch: StepBatch) -> Tensor:
        losses = self._stepper.gradients_of(step, batch, lambda: 0.0)
        self._stepper.change_weights(LEARNING_RATE, losses.grad_norm)
        return torch.tensor(losses.loss)


class _AllToTheHead(BertForPreTraining):
    """The loss of the masked positions, with the logits of all positions in memory."""

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        mlm_positions: Tensor,
        mlm_labels: Tensor | None = None,
    ) -> PretrainingOutput:
        """As of the class that it inherits from, with labels."""
        assert mlm_labels is not None
        everywhere = torch.arange(len(input_ids), device=input_ids.device)
        output = super().forward(
            input_ids, segment_ids, position_ids, cu_seqlens, max_seqlen, everywhere
        )
        wanted = torch.full_like(everywhere, IGNORED).index_copy_(0, mlm_positions, mlm_labels)
        return output._replace(mlm_loss_sum=mlm_loss_sum(output.mlm_logits, wanted))


class Theirs:
    """transformers' `BertForPreTraining` with its defaults, which are SDPA and no compilation."""

    def __init__(
        self,
        config: BertConfig,
        examples: Examples,
        rows: int,
        length: int,
        device: torch.device,
        precision: Precision,
    ) -> None:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        self._device, self._precision, self._rows = device, precision, rows
        self._data = pad(examples, length, config.pad_token_id)
        values = config_to_huggingface(config)
        there = transformers.BertConfig(**{k: v for k, v in values.items() if k != "dtype"})
        there._attn_implementation = "sdpa"
        model = transformers.BertForPreTraining(there)
        converted, _ = to_huggingface(weights(config).state_dict(), config)
        missing, extra = model.load_state_dict(converted, strict=False)
        if extra or any("decoder" not in name for name in missing):
            raise ValueError(f"weights do not fit transformers' model: {missing}, {extra}")
        model.tie_weights()
        self._model: Any = model.to(device).train()
        self._parameters = list(self._model.parameters())
        train = _train_config(rows, precision)
        self._clip_norm = train.clip_norm
        self._optimiser = make_optimiser(self._parameters, train)

    def steps(self, numbers: range) -> list[Tensor]:
        """Each: copy, forward, backward, clip, update."""
        return [self._step(step) for step in numbers]

    def _step(self, step: int) -> Tensor:
        torch.manual_seed(SEED + step)
        count = len(self._data["input_ids"])
        rows = torch.arange(self._rows).add_(step * self._rows).remainder_(count)
        batch = {name: value[rows] for name, value in self._data.items()}
        if self._device.type == "cuda":
            # As a DataLoader with pin_memory and Accelerate's copies do.
            batch = {
                k: v.pin_memory().to(self._device, non_blocking=True) for k, v in batch.items()
            }
        with autocast(self._device.type, self._precision):
            loss: Tensor = self._model(**batch).loss
        loss.backward()  # type: ignore[no-untyped-call]
        assert self._clip_norm is not None
        nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimiser.step()
        self._optimiser.zero_grad()
        return loss.detach()


def pad(examples: Examples, length: int, pad_token_id: int) -> dict[str, Tensor]:
    """All rows as transformers takes them, [rows, length] int64 each; labels of pairs [rows]."""
    lengths = examples.input_ids.lengths
    columns = np.arange(length)
    kept = columns < lengths[:, None]
    ids = np.full(kept.shape, pad_token_id, dtype=np.int64)
    ids[kept] = examples.input_ids.values
    labels = np.full(kept.shape, IGNORED, dtype=np.int64)
    owners = np.repeat(np.arange(len(examples)), examples.mlm_positions.lengths)
    labels[owners, examples.mlm_positions.values.astype(np.int64)] = examples.mlm_labels
    arrays = {"input_ids": ids, "attention_mask": kept.astype(np.int64), "labels": labels}
    if examples.is_next is not None:
        second = (columns > examples.a_length[:, None] + 1) & kept
        arrays["token_type_ids"] = second.astype(np.int64)
        arrays["next_sentence_label"] = (~examples.is_next).astype(np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _train_config(rows: int, precision: Precision) -> TrainConfig:
    return TrainConfig(
        steps=1, global_batch_size=rows, learning_rate=LEARNING_RATE, precision=precision
    )
