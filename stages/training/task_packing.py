"""Global batches of a task, shared out among ranks and laid end to end.

An epoch is a keyed permutation of the rows; its last batch may be smaller. A batch is found in
O(1) but for the permutation, so that resuming skips nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.task_heads import TaskKind
from model.task_losses import class_loss_sum, span_loss_sum, squared_error_sum
from stages.training.packing import Packed, cut, lay_out, share
from stages.training.randomness import permutation
from stages.training.task_examples import TaskExamples


@dataclass(frozen=True)
class TaskMicroBatch(Packed):
    """Tensors of one forward pass of a task.

    Attributes:
        labels: as `TaskExamples.labels`.
    """

    labels: Tensor

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """The arguments of `BertForTask.forward`."""
        return (
            self.input_ids,
            self.segment_ids,
            self.position_ids,
            self.cu_seqlens,
            self.max_seqlen,
        )


@dataclass(frozen=True)
class TaskStepBatch:
    """One rank's part of a step, and what all ranks must agree on; as `packing.StepBatch`.

    Attributes:
        micro_batches: of this rank; may be empty.
        counted: labels of the global batch.
    """

    micro_batches: tuple[TaskMicroBatch, ...]
    counted: int
    tokens: int
    pairs: int
    padded_tokens: int
    share_tokens: int
    squared_lengths: int
    masked: int = 0

    @property
    def laid_tokens(self) -> int:
        """Nothing fills up."""
        return self.share_tokens

    def pinned(self) -> TaskStepBatch:
        """The same with all micro-batches in page-locked memory."""
        return replace(self, micro_batches=tuple(m.pinned() for m in self.micro_batches))


def pack_task(examples: TaskExamples) -> TaskMicroBatch:
    """Lay at least one feature end to end."""
    laid = lay_out(examples.input_ids, examples.a_length)
    return TaskMicroBatch(
        **vars(laid), labels=torch.from_numpy(np.ascontiguousarray(examples.labels))
    )


def task_micro_batches(examples: TaskExamples, budget: int) -> tuple[TaskMicroBatch, ...]:
    """Cut features, in their order, by a token budget and pack each run."""
    rows = np.arange(len(examples))
    runs = cut(examples.input_ids.lengths, budget)
    return tuple(pack_task(examples.take(rows[run])) for run in runs)


def task_step_batch(
    examples: TaskExamples, rank: int, world_size: int, budget: int
) -> TaskStepBatch:
    """One rank's part of a global batch."""
    mine = examples.take(share(examples.input_ids.lengths, rank, world_size))
    packed = task_micro_batches(mine, budget)
    return TaskStepBatch(
        micro_batches=packed,
        counted=examples.counted,
        tokens=examples.tokens,
        pairs=len(examples) if examples.kind == "sequence" else 0,
        padded_tokens=sum((len(m.cu_seqlens) - 1) * m.max_seqlen for m in packed),
        share_tokens=mine.tokens,
        squared_lengths=int((examples.input_ids.lengths**2).sum()),
    )


class TaskOrder:
    """Which rows each step takes.

    Args:
        rows: N of them.
        batch_size: of a global batch; the last of an epoch may be smaller.
        seed: of the order.
    """

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self.steps_per_epoch = -(-rows // batch_size)
        self._epoch = -1
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, row in the epoch's order) where the batch of a step begins."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        return epoch, batch * self._batch_size

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of a step, counted from 0."""
        epoch, first = self.position(step)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(self._rows, self._seed, "order", epoch)
        return self._order[first : first + self._batch_size]


class TaskObjective:
    """The loss of a task (seed 5.2), as `step.Objective`: a sum over the labels that count, divided
    by their number in the global batch, whatever rank or micro-batch holds them.

    Args:
        kind: of the task.
        classes: 1 is regression.
    """

    losses: tuple[str, ...] = ("loss",)

    def __init__(self, kind: TaskKind, classes: int) -> None:
        self._kind = kind
        self._regression = kind == "sequence" and classes == 1

    def forward(self, model: nn.Module, micro: TaskMicroBatch) -> Tensor:
        """The head's scores."""
        scores: Tensor = model(*micro.inputs())
        return scores

    def parts(
        self, output: Tensor, micro: TaskMicroBatch, batch: TaskStepBatch
    ) -> Sequence[Tensor]:
        """Nats (squared units of regression) a label of the global batch."""
        if self._regression:
            total = squared_error_sum(output, micro.labels)
        elif self._kind == "span":
            starts, ends = micro.labels.unbind(1)
            total = span_loss_sum(output, micro.cu_seqlens, micro.max_seqlen, starts, ends)
        else:
            total = class_loss_sum(output, micro.labels)
        return (total / max(1, batch.counted),)
