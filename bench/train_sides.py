"""The two sides of the comparison: one optimiser step each, on the same rows and weights.

Ours is the step of `stages.training.loop`, of the same parts. Theirs is the loop that users of
transformers write, or that its Trainer runs: rows padded to the full length, labels of -100 where
nothing is masked, gradients clipped, PyTorch's fused AdamW, autocast to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.train_settings import Switches
from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.huggingface import config_to_huggingface, to_huggingface
from model.losses import mlm_loss_sum, nsp_loss_sum
from stages.training.device import Precision, autocast, keep_freed_memory
from stages.training.examples import Examples
from stages.training.gradients import FlatGradients
from stages.training.job import TrainConfig
from stages.training.optimisers import make_optimiser
from stages.training.packing import MicroBatch, StepBatch, step_batch
from stages.training.prefetch import prefetched
from stages.training.randomness import seed_dropout

LEARNING_RATE = 1e-4
SEED = 12345
IGNORED = -100
"""What transformers leaves out of the loss."""


class Side(Protocol):
    """Trains on the same batches as the other."""

    def steps(self, numbers: range) -> list[Tensor]:
        """Make the optimiser steps `numbers`; returns their losses, where they were computed."""
        ...

    def close(self) -> None:
        """Give back what the device holds."""
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
    """Unpadded, with what `switches` say."""

    def __init__(
        self,
        config: BertConfig,
        examples: Examples,
        rows: int,
        device: torch.device,
        switches: Switches,
        budget: int,
    ) -> None:
        self._examples, self._rows, self._device = examples, rows, device
        self._budget = budget
        self._switches, self._nsp = switches, config.nsp
        if device.type == "cpu":
            keep_freed_memory()
        model = BertForPreTraining(config, attention=switches.attention)
        model.load_state_dict(weights(config).state_dict())
        self._model = model.to(device).train()
        if switches.checkpointing:
            for layer in self._model.bert.encoder.layers:
                _recompute(layer)
        train = TrainConfig(
            steps=1,
            global_batch_size=rows,
            learning_rate=LEARNING_RATE,
            precision=switches.precision,
        )
        self._clip_norm = train.clip_norm
        parameters = list(self._model.parameters())
        self._optimiser = make_optimiser(parameters, train)
        if not switches.fused:
            self._optimiser = _plain_adamw(parameters, train)
        if switches.compile:
            self._model.compile()
        self._gradients = FlatGradients(parameters, figures=3)

    def steps(self, numbers: range) -> list[Tensor]:
        """As `pretrain` does them: batches are packed in the background."""
        with prefetched(self._prepare, numbers, 4) as batches:
            return [self._step(step, next(batches)) for step in numbers]

    def close(self) -> None:
        """Drop model, gradients and optimiser."""
        del self._model, self._optimiser, self._gradients

    def _prepare(self, step: int) -> StepBatch:
        examples = rows_of(self._examples, step, self._rows)
        batch = step_batch(examples, 0, 1, self._budget, self._nsp)
        return batch.pinned() if self._device.type == "cuda" else batch

    def _step(self, step: int, batch: StepBatch) -> Tensor:
        gradients = self._gradients
        seed_dropout(SEED, step, 0)
        gradients.zero()
        for micro in batch.micro_batches:
            micro = micro.to(self._device)
            mlm, nsp = self._losses(micro)
            loss = mlm / max(1, batch.masked)
            gradients.figures[0] += loss.detach()
            if nsp is not None:
                nsp = nsp / batch.pairs
                gradients.figures[1] += nsp.detach()
                loss = loss + nsp
            loss.backward()  # type: ignore[no-untyped-call]
        mlm_loss, nsp_loss, _, norm = torch.cat(
            [gradients.figures, gradients.norm()[None]]
        ).tolist()
        if self._clip_norm is not None:
            gradients.clip(norm, self._clip_norm)
        self._optimiser.step()
        return torch.tensor(mlm_loss + nsp_loss)

    def _losses(self, micro: MicroBatch) -> tuple[Tensor, Tensor | None]:
        with autocast(self._device.type, self._switches.precision):
            if self._switches.gathered:
                output = self._model(*micro.inputs(), micro.mlm_labels)
                mlm = output.mlm_loss_sum
            else:
                everywhere = torch.arange(len(micro.input_ids), device=self._device)
                output = self._model(*micro.inputs()[:-1], everywhere)
                labels = torch.full_like(micro.input_ids, IGNORED)
                labels[micro.mlm_positions] = micro.mlm_labels
                mlm = mlm_loss_sum(output.mlm_logits, labels)
        if output.nsp_logits is None or micro.is_next is None:
            return mlm, None
        return mlm, nsp_loss_sum(output.nsp_logits, micro.is_next)


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
        train = TrainConfig(steps=1, global_batch_size=rows, learning_rate=LEARNING_RATE)
        self._clip_norm = train.clip_norm
        self._optimiser = make_optimiser(self._parameters, train)

    def steps(self, numbers: range) -> list[Tensor]:
        """Each: copy, forward, backward, clip, update."""
        return [self._step(step) for step in numbers]

    def close(self) -> None:
        """Drop model and optimiser."""
        del self._model, self._optimiser, self._parameters

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


def _recompute(layer: nn.Module) -> None:
    forward: Callable[..., Tensor] = layer.forward

    def recomputed(*arguments: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False)

    layer.forward = recomputed


def _plain_adamw(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """What `make_optimiser` makes, one operation after another."""
    fused = make_optimiser(parameters, config)
    groups = [{k: v for k, v in g.items() if k != "fused"} for g in fused.param_groups]
    return torch.optim.AdamW(groups, fused=False, foreach=False)
