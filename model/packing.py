"""Sequences laid end to end ([T, ...] with `cu_seqlens`) and padded ([B, S, ...]), both ways.

In the packed form sequence i owns rows `cu_seqlens[i]` to `cu_seqlens[i + 1]` (exclusive) of
every [T, ...] tensor, and `cu_seqlens[-1] == T`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedBatch:
    """A batch without padding: the arguments of `BertModel.forward`.

    Attributes:
        input_ids, segment_ids, position_ids: int64 [T].
        cu_seqlens: int32 [B + 1], where each sequence begins.
        max_seqlen: length S of the padded batch.
        rows: int64 [T], index of each token in the flattened padded batch [B * S].
    """

    input_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    rows: Tensor

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """Return the positional arguments of `BertModel.forward`."""
        return (
            self.input_ids,
            self.segment_ids,
            self.position_ids,
            self.cu_seqlens,
            self.max_seqlen,
        )


def pack(input_ids: Tensor, segment_ids: Tensor, attention_mask: Tensor) -> PackedBatch:
    """Drop the padding of a batch.

    Args:
        input_ids, segment_ids: integer [B, S].
        attention_mask: [B, S], nonzero where a token counts. A token's position is its column,
            so that padding on the left gives what padded models give.

    Raises:
        ValueError: a row without any token, or shapes that differ.
    """
    if not input_ids.shape == segment_ids.shape == attention_mask.shape or input_ids.dim() != 2:
        raise ValueError(
            "input_ids, segment_ids and attention_mask must have one shape [B, S], not "
            f"{tuple(input_ids.shape)}, {tuple(segment_ids.shape)}, {tuple(attention_mask.shape)}"
        )
    width = input_ids.shape[1]
    keep = attention_mask.ne(0)
    lengths = keep.sum(1)
    if bool(lengths.eq(0).any()):
        row = int(lengths.eq(0).nonzero()[0])
        raise ValueError(f"row {row} of the batch holds no token: leave it out")
    rows = keep.flatten().nonzero().flatten()
    ends = lengths.cumsum(0).to(torch.int32)
    return PackedBatch(
        input_ids=input_ids.flatten()[rows],
        segment_ids=segment_ids.flatten()[rows],
        position_ids=rows % width,
        cu_seqlens=torch.cat([ends.new_zeros(1), ends]),
        max_seqlen=width,
        rows=rows,
    )


def unpack(packed: Tensor, batch: PackedBatch) -> Tensor:
    """Put [T, ...] back into [B, S, ...], zeros where there was padding."""
    sequences = batch.cu_seqlens.numel() - 1
    padded = packed.new_zeros((sequences * batch.max_seqlen, *packed.shape[1:]))
    padded = padded.index_copy(0, batch.rows, packed)
    return padded.view(sequences, batch.max_seqlen, *packed.shape[1:])


@dataclass(frozen=True)
class PaddedLayout:
    """Where packed tokens stand in a padded batch; made once a forward pass, used by each layer.

    Attributes:
        batch_size: B.
        length: S.
        rows: int64 [T], row of each token in [B * S]; None when every sequence fills all S
            columns, so that [T] already is [B * S].
        key_mask: bool [B, 1, 1, S], True where a token stands; None likewise.
    """

    batch_size: int
    length: int
    rows: Tensor | None
    key_mask: Tensor | None


def padded_layout(cu_seqlens: Tensor, max_seqlen: int, tokens: int) -> PaddedLayout:
    """Lay `tokens` packed tokens out in [B, max_seqlen] without waiting for the device.

    Args:
        cu_seqlens: int32 [B + 1].
        max_seqlen: no sequence is longer.
        tokens: T, equal to `cu_seqlens[-1]`.
    """
    batch_size = cu_seqlens.numel() - 1
    if tokens == batch_size * max_seqlen:
        return PaddedLayout(batch_size, max_seqlen, None, None)
    device = cu_seqlens.device
    starts = cu_seqlens[:-1].to(torch.int64)
    lengths = cu_seqlens[1:].to(torch.int64) - starts
    first_row = torch.arange(batch_size, device=device) * max_seqlen
    shift = torch.repeat_interleave(first_row - starts, lengths, output_size=tokens)
    rows = torch.arange(tokens, device=device) + shift
    key_mask = torch.arange(max_seqlen, device=device) < lengths[:, None]
    return PaddedLayout(batch_size, max_seqlen, rows, key_mask[:, None, None, :])


class _Pad(torch.autograd.Function):
    # index_copy's own backward also clears rows in a copy of the gradient for the zeros.
    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(rows)
        return packed.new_zeros((size, packed.shape[1])).index_copy_(0, rows, packed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return grads[0].index_select(0, rows), None, None


class _Unpad(torch.autograd.Function):
    # index_select's own backward adds into zeros, atomically on CUDA; the rows here are distinct.
    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.size = padded.shape[0]
        return padded.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        grad = grads[0]
        return grad.new_zeros((ctx.size, grad.shape[1])).index_copy_(0, rows, grad), None


def pad(packed: Tensor, layout: PaddedLayout) -> Tensor:
    """Scatter [T, n] into [B * S, n], zeros elsewhere; no copy when nothing is padded."""
    if layout.rows is None:
        return packed
    padded: Tensor = _Pad.apply(packed, layout.rows, layout.batch_size * layout.length)  # type: ignore[no-untyped-call]
    return padded


def unpad(padded: Tensor, layout: PaddedLayout) -> Tensor:
    """Gather [B * S, n] into [T, n]; no copy when nothing is padded."""
    if layout.rows is None:
        return padded
    packed: Tensor = _Unpad.apply(padded, layout.rows)  # type: ignore[no-untyped-call]
    return packed
