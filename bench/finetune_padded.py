"""Transformers' `AutoModelFor...` in the loop that its users write, on features that are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.task_heads import TaskKind
from stages.training.budget import course
from stages.training.job import TrainConfig
from stages.training.task_examples import TaskExamples
from stages.training.task_packing import TaskOrder

AUTO: dict[TaskKind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
}
IGNORED = -100


def open_model(folder: Path, kind: TaskKind, **more: Any) -> nn.Module:
    """A folder of transformers' layout as its users open it, ready to learn."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model: nn.Module = getattr(transformers, AUTO[kind]).from_pretrained(folder, **more)
    return model.train()


def padded(examples: TaskExamples) -> dict[str, Tensor]:
    """A batch [B, S] under the names of transformers, padded to its longest row."""
    lengths = examples.input_ids.lengths
    shape = len(examples), int(lengths.max())
    is_token = np.arange(shape[1]) < lengths[:, None]
    ids = np.zeros(shape, np.int64)
    ids[is_token] = examples.input_ids.values
    segments = (np.arange(shape[1]) > np.asarray(examples.a_length)[:, None] + 1) & is_token
    arrays: dict[str, NDArray[Any]] = {
        "input_ids": ids,
        "token_type_ids": segments.astype(np.int64),
        "attention_mask": is_token.astype(np.int64),
    }
    if examples.kind == "token":
        labels = np.full(shape, IGNORED, np.int64)
        labels[is_token] = examples.labels
        arrays["labels"] = labels
    elif examples.kind == "span":
        arrays["start_positions"], arrays["end_positions"] = examples.labels.T.copy()
    else:
        arrays["labels"] = examples.labels
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def batch_loss(model: nn.Module, examples: TaskExamples) -> Tensor:
    """Their loss of a batch, from their own forward with labels, as its mean over the batch.

    Their loss of a span is half of the sum of both, and its softmax runs over padding, too: such
    rows go in groups of equal length, which need none.
    """
    if examples.kind != "span":
        loss: Tensor = model(**padded(examples)).loss
        return loss
    lengths = examples.input_ids.lengths
    groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    parts = [model(**padded(examples.take(rows))).loss * len(rows) for rows in groups]
    return 2.0 * torch.stack(parts).sum() / len(examples)


def their_losses(
    model: nn.Module, examples: TaskExamples, train: TrainConfig, seed: int, steps: int
) -> Iterator[float]:
    """The losses of the first steps on the same rows in the same order as `finetune`.

    PyTorch's AdamW, no decay of biases and LayerNorms (as their Trainer), the rate by LambdaLR.
    """
    assert train.global_batch_size is not None and train.steps is not None
    plain = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if n.endswith(plain) == is_plain],
            "weight_decay": 0.0 if is_plain else train.weight_decay,
        }
        for is_plain in (False, True)
    ]
    optimiser = torch.optim.AdamW(
        groups,
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
    )
    all_steps, warmup = train.steps, course(train, train.steps).warmup_steps

    def times(step: int) -> float:
        return min((step + 1) / max(1, warmup), (all_steps - step) / (all_steps - warmup))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, times)
    order = TaskOrder(len(examples), train.global_batch_size, seed)
    for step in range(steps):
        loss = batch_loss(model, examples.take(order.rows(step)))
        loss.backward()  # type: ignore[no-untyped-call]
        if train.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        yield loss.item()
