"""Shares a global batch among ranks, cuts shares into micro-batches, lays examples end to end.

Legend: B examples, T tokens, M masked positions of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stages.training.examples import Examples, Ragged
from stages.training.shapes import FixedShape


@dataclass(frozen=True)
class Packed:
    """What an encoder reads, without padding.

    Attributes:
        input_ids: [T] int64.
        segment_ids: [T] int64, 0 or 1.
        position_ids: [T] int64, each example counts from 0.
        cu_seqlens: [B + 1] int32, example i is tokens [cu_seqlens[i], cu_seqlens[i + 1]).
        max_seqlen: tokens of the longest example; with a fixed shape, of the longest possible.
    """

    input_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int

    def to(self, device: torch.device) -> Self:
        """The same on `device`; asynchronous when the tensors are pinned."""
        if device.type == "cpu":
            return self
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """The same in page-locked memory, from where copies to a GPU are asynchronous."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {n: change(v) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class MicroBatch(Packed):
    """Tensors of one forward pass of pretraining.

    With a fixed shape, examples of nothing but padding follow the last one: B and T count them,
    `is_next` and M do not. Nothing reads what becomes of them, so they add to no loss and no
    gradient.

    Attributes:
        mlm_positions: [M] int64, into T.
        mlm_labels: [M] int64.
        is_next: [B] bool, of the examples proper, or None without NSP.
    """

    mlm_positions: Tensor
    mlm_labels: Tensor
    is_next: Tensor | None

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int, Tensor]:
        """The arguments of `BertForPreTraining.forward`."""
        return (
            self.input_ids,
            self.segment_ids,
            self.position_ids,
            self.cu_seqlens,
            self.max_seqlen,
            self.mlm_positions,
        )


@dataclass(frozen=True)
class StepBatch:
    """One rank's part of a step, and what all ranks must agree on.

    Attributes:
        micro_batches: of this rank; may be empty.
        tokens: T of the global batch.
        masked: M of the global batch.
        pairs: of the global batch; 0 without NSP.
        padded_tokens: tokens of this rank's share if each micro-batch were padded to its longest,
            and with a fixed shape all its examples, as attention on the padded path does.
        laid_tokens: tokens of this rank's share as they are laid end to end; more than
            `share_tokens` only by what fills up a fixed shape.
        share_tokens: tokens of this rank's share.
        squared_lengths: sum over the examples of the global batch of (tokens of the example)^2.
    """

    micro_batches: tuple[MicroBatch, ...]
    tokens: int
    masked: int
    pairs: int
    padded_tokens: int
    laid_tokens: int
    share_tokens: int
    squared_lengths: int

    def pinned(self) -> StepBatch:
        """The same with all micro-batches in page-locked memory."""
        return replace(self, micro_batches=tuple(m.pinned() for m in self.micro_batches))


def share(lengths: NDArray[np.int64], rank: int, world_size: int) -> NDArray[np.int64]:
    """The rows of a global batch that `rank` works on, longest first.

    Rows are dealt out by falling length, to and fro (0 1 2 2 1 0 0 1 2...): the shares differ by
    at most one row and by at most the longest row's tokens. A rank may get none.

    Args:
        lengths: [G] tokens of each row of the global batch.
        rank: 0..world_size - 1.
        world_size: number of ranks.

    Returns:
        Row numbers, int64.
    """
    order = np.argsort(-lengths, kind="stable")
    rows: NDArray[np.int64] = order[owners(len(order), world_size) == rank]
    return rows


def owners(rows: int, world_size: int) -> NDArray[np.int64]:
    """[rows] the rank that gets the longest row, the next to longest... of a global batch."""
    turn, seat = np.divmod(np.arange(rows), world_size)
    owner: NDArray[np.int64] = np.where(turn % 2 == 0, seat, world_size - 1 - seat)
    return owner


def cut(lengths: NDArray[np.int64], budget: int, shape: FixedShape | None = None) -> list[slice]:
    """Cuts consecutive rows into runs of at most `budget` tokens, greedily.

    A row longer than the budget is a run of its own. No rows, no runs.

    Args:
        lengths: of the rows.
        budget: tokens of a run.
        shape: each run must fit it too; its budget stands in for the other.

    Raises:
        ValueError: a row that is longer than the shape has room for.
    """
    if shape is not None:
        budget = shape.budget
        if len(lengths) and lengths.max() > shape.longest:
            raise ValueError(
                f"a row of {int(lengths.max())} tokens is longer than {shape.longest}, the longest "
                "that the fixed shape of micro-batches was made for"
            )
    ends = np.cumsum(lengths)
    runs = []
    start, before = 0, 0
    while start < len(lengths):
        stop = int(np.searchsorted(ends, before + budget, side="right"))
        stop = max(stop, start + 1)
        if shape is not None:
            # With each row more, the examples that are left must hold the tokens that are left.
            left = shape.tokens - (ends[start:stop] - before)
            used = np.arange(1, stop - start + 1) - (-left // shape.longest)
            stop = start + max(1, int(np.searchsorted(used, shape.examples, side="right")))
        runs.append(slice(start, stop))
        start, before = stop, int(ends[stop - 1])
    return runs


def lay_out(input_ids: Ragged, a_length: NDArray[Any] | None) -> Packed:
    """Lay at least one example end to end.

    Args:
        input_ids: special tokens included.
        a_length: [B] tokens of A; None: all of an example is segment 0.
    """
    lengths = input_ids.lengths
    positions = np.arange(input_ids.offsets[-1]) - np.repeat(input_ids.offsets[:-1], lengths)
    if a_length is None:
        segments = np.zeros(len(positions), dtype=np.int64)
    else:
        # [CLS] A [SEP] is positions 0..a_length + 1.
        segments = (positions > np.repeat(a_length + 1, lengths)).astype(np.int64)
    return Packed(
        torch.from_numpy(input_ids.values.astype(np.int64)),
        torch.from_numpy(segments),
        torch.from_numpy(positions),
        torch.from_numpy(input_ids.offsets.astype(np.int32)),
        int(lengths.max()),
    )


def pack(examples: Examples, nsp: bool, shape: FixedShape | None = None) -> MicroBatch:
    """Lays at least one example end to end.

    Args:
        examples: the rows of a micro-batch.
        nsp: whether `is_next` is learned. Segments follow the data either way.
        shape: filled up to; the rows are a run that `cut` made for it.

    Raises:
        ValueError: `nsp` and the examples hold no `is_next`.
    """
    if nsp and examples.is_next is None:
        raise ValueError(
            "next sentence prediction is on, but the rows hold no is_next: prepare pairs, "
            "or set objective.nsp=false"
        )
    a_length = None if examples.is_next is None else examples.a_length
    laid = lay_out(examples.input_ids, a_length)
    starts = examples.input_ids.offsets[:-1]
    counts = examples.mlm_positions.lengths
    flat = examples.mlm_positions.values.astype(np.int64) + np.repeat(starts, counts)
    micro = MicroBatch(
        **vars(laid),
        mlm_positions=torch.from_numpy(flat),
        mlm_labels=torch.from_numpy(examples.mlm_labels.astype(np.int64)),
        is_next=torch.from_numpy(examples.is_next.copy())
        if nsp and examples.is_next is not None
        else None,
    )
    return micro if shape is None else _filled(micro, shape)


def _filled(micro: MicroBatch, shape: FixedShape) -> MicroBatch:
    """Adds examples of padding, as even in length as they can be, up to the shape."""
    ends = micro.cu_seqlens.numpy()
    missing, places = shape.tokens - int(ends[-1]), shape.examples - (len(ends) - 1)
    lengths = missing // places + (np.arange(places) < missing % places)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(missing) - np.repeat(starts, lengths)
    nothing = torch.zeros(missing, dtype=torch.int64)
    more = torch.from_numpy((ends[-1] + np.cumsum(lengths)).astype(np.int32))
    return replace(
        micro,
        input_ids=torch.cat([micro.input_ids, nothing]),
        segment_ids=torch.cat([micro.segment_ids, nothing]),
        position_ids=torch.cat([micro.position_ids, torch.from_numpy(positions)]),
        cu_seqlens=torch.cat([micro.cu_seqlens, more]),
        max_seqlen=shape.longest,
    )


def micro_batches(
    examples: Examples, budget: int, nsp: bool, shape: FixedShape | None = None
) -> tuple[MicroBatch, ...]:
    """Cuts examples, in their order, by a token budget or for a shape and packs each run."""
    runs = cut(examples.input_ids.lengths, budget, shape)
    if len(runs) == 1:
        return (pack(examples, nsp, shape),)
    rows = np.arange(len(examples))
    return tuple(pack(examples.take(rows[run]), nsp, shape) for run in runs)


def step_batch(
    examples: Examples,
    rank: int,
    world_size: int,
    budget: int,
    nsp: bool,
    shape: FixedShape | None = None,
) -> StepBatch:
    """One rank's part of a global batch.

    Args:
        examples: the global batch.
        rank: 0..world_size - 1.
        world_size: number of ranks.
        budget: tokens of a micro-batch.
        nsp: whether `is_next` is learned.
        shape: of all micro-batches; None: as their examples give it.
    """
    mine = examples.take(share(examples.input_ids.lengths, rank, world_size))
    packed = micro_batches(mine, budget, nsp, shape)
    return StepBatch(
        micro_batches=packed,
        tokens=examples.tokens,
        masked=examples.masked,
        pairs=len(examples) if nsp else 0,
        padded_tokens=sum((len(m.cu_seqlens) - 1) * m.max_seqlen for m in packed),
        laid_tokens=sum(len(m.input_ids) for m in packed),
        share_tokens=mine.tokens,
        squared_lengths=int((examples.input_ids.lengths**2).sum()),
    )
