"""Attention in bfloat16 on CPUs, as batched matrix products.

There `scaled_dot_product_attention` computes bfloat16 in float32 whenever there is dropout, and its
backward pass is slow without. At a few hundred tokens a sequence the products of oneDNN and one
buffer of probabilities take a third of the time, dropout included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_STEPS = 1 << 15


def attend(qkv: Tensor, key_mask: Tensor | None, dropout: float) -> Tensor:
    """Attention of padded sequences, with dropout on the probabilities.

    Scores and probabilities are rounded to bfloat16; products and the softmax sum in float32.
    The probability of dropout is rounded to a multiple of 2^-15, and the scale of what is kept
    fits the rounded one. Bits come from torch's default generator, and are the same for any number
    of threads.

    Args:
        qkv: bfloat16 [B, S, 3, H, D] on CPU, queries, keys and values.
        key_mask: bool, [B, 1, 1, S], True where a token stands, at least once in each sequence;
            None: everywhere.
        dropout: in [0, 1).

    Returns:
        bfloat16 [B, S, H, D].
    """
    context: Tensor = _Attention.apply(qkv, key_mask, round(dropout * _STEPS))  # type: ignore[no-untyped-call]
    return context


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, key_mask: Tensor | None, dropped: int) -> Tensor:
        batch, length, _, heads, size = qkv.shape
        # A copy always: it is scaled in place.
        parts = qkv.permute(2, 0, 3, 1, 4).clone(memory_format=torch.contiguous_format)
        parts = parts.view(3, batch * heads, length, size)
        query, key, value = parts.unbind(0)
        query.mul_(size**-0.5)
        if key_mask is None:
            scores = torch.bmm(query, key.transpose(1, 2))
        else:
            bias = torch.zeros(key_mask.shape, dtype=qkv.dtype).masked_fill_(~key_mask, -torch.inf)
            bias = bias.expand(batch, heads, 1, length).reshape(batch * heads, 1, length)
            scores = torch.baddbmm(bias, query, key.transpose(1, 2))
        probabilities = torch.softmax(scores, -1)
        kept, used = None, probabilities
        if dropped:
            value.mul_(_STEPS / (_STEPS - dropped))
            kept = _keep_bits(probabilities.shape, dropped)
            used = _and(probabilities, kept, out=scores)
        context = torch.bmm(used, value)
        # What dropout left of the probabilities is cheaper to make again than to keep.
        ctx.save_for_backward(parts, probabilities, kept)
        ctx.dropped = dropped
        return context.view(batch, heads, length, size).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        parts, probabilities, kept = ctx.saved_tensors
        query, key, value = parts.unbind(0)
        batch, length, heads, size = grads[0].shape
        grad = grads[0].transpose(1, 2).reshape(batch * heads, length, size)
        d_parts = torch.empty_like(parts)
        d_query, d_key, d_value = d_parts.unbind(0)

        used = probabilities if kept is None else _and(probabilities, kept)
        torch.bmm(used.transpose(1, 2), grad, out=d_value)
        d_used = torch.bmm(grad, value.transpose(1, 2), out=None if kept is None else used)
        if kept is not None:
            d_value.mul_(_STEPS / (_STEPS - ctx.dropped))
            d_used = _and(d_used, kept, out=d_used)
        d_scores = torch._softmax_backward_data(d_used, probabilities, -1, d_used.dtype)
        torch.bmm(d_scores, key, out=d_query).mul_(size**-0.5)
        torch.bmm(d_scores.transpose(1, 2), query, out=d_key)
        shape = (3, batch, heads, length, size)
        return d_parts.view(shape).permute(1, 3, 0, 2, 4).contiguous(), None, None


def _keep_bits(shape: torch.Size, dropped: int) -> Tensor:
    """int16 of all ones, or of all zeros with probability `dropped` / 2^15: masks for `_and`."""
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    # Of 15 bits, so that the difference stays in the type; its sign fills the word.
    return bits.bitwise_or_(-_STEPS).add_(_STEPS - dropped).bitwise_right_shift_(15).bitwise_not_()


def _and(values: Tensor, bits: Tensor, out: Tensor | None = None) -> Tensor:
    """bfloat16 `values`, or 0 where `bits` are: a product with 0 or 1 in a third of the time."""
    result = torch.empty_like(values) if out is None else out
    torch.bitwise_and(values.view(torch.int16), bits, out=result.view(torch.int16))
    return result
