"""Pretraining losses as sums, so that the caller divides by counts of the whole global batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.heads import IS_NEXT, NOT_NEXT


def mlm_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of -log P(original token) over the masked positions (seed 3.4).

    Args:
        logits: [M, V].
        labels: int64 [M], the original tokens.

    Returns:
        Scalar in nats, float32 (float64 for float64 logits); 0 without a masked position.
    """
    return F.cross_entropy(exact(logits), labels, reduction="sum")


def nsp_loss_sum(logits: Tensor, is_next: Tensor) -> Tensor:
    """Sum of -log P(true class) over the sequences.

    Args:
        logits: [B or more, 2], class 0 is IsNext. Rows after the first B are of sequences that
            fill a batch up to its shape, and do not count.
        is_next: bool [B].

    Returns:
        Scalar in nats, float32 (float64 for float64 logits).
    """
    classes = is_next.long() * (IS_NEXT - NOT_NEXT) + NOT_NEXT
    return F.cross_entropy(exact(logits[: len(classes)]), classes, reduction="sum")


def exact(logits: Tensor) -> Tensor:
    """Logits in the type that losses are computed in: float32, or float64 where they are it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def vocabulary_loss_sum(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """`mlm_loss_sum(vocabulary_logits(hidden, weight, bias), labels)` without keeping [M, V].

    The projection, the softmax and their gradients are computed for a slice of the positions at
    a time, in one buffer: fresh [M, V] tensors are most of the memory of a small model's step,
    and on CPUs most of its time. Under autocast the products run in autocast's type, the softmax
    in float32 and the sums over slices in float32. Backward can run once.

    Args:
        hidden: [M, d].
        weight: [V, d].
        bias: [V].
        labels: int64 [M].

    Returns:
        Scalar in nats, float32 (float64 for float64 weights).
    """
    kind = hidden.device.type
    product_dtype = (
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    )
    with torch.autocast(kind, enabled=False):
        loss: Tensor = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, labels, product_dtype, torch.is_grad_enabled()
        )
    return loss


_BUFFER_BYTES = {"cpu": (96 << 20, 1 << 20)}
"""Sizes of the buffer of logits in the products' type, and of each of two in float32: a part of the
first, which on CPUs stays in a core's cache through all that is done with it."""
_BUFFER_BYTES_ELSEWHERE = (256 << 20, 256 << 20)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        product_dtype: torch.dtype,
        with_gradients: bool,
    ) -> Tensor:
        positions, entries = hidden.shape[0], weight.shape[0]
        exact = torch.promote_types(weight.dtype, torch.float32)
        vectors, matrix = hidden.to(product_dtype), weight.to(product_dtype)
        slice_bytes, part_bytes = _BUFFER_BYTES.get(hidden.device.type, _BUFFER_BYTES_ELSEWHERE)
        rows = max(1, min(positions, slice_bytes // (entries * product_dtype.itemsize)))
        part_rows = min(rows, max(1, part_bytes // (entries * exact.itemsize)))
        # Logits of a slice, whose places their gradients take; and an exact part of both.
        buffer = torch.empty(rows, entries, dtype=product_dtype, device=hidden.device)
        exact_buffers = torch.empty(2, part_rows, entries, dtype=exact, device=hidden.device)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if with_gradients else None
        d_weight: Tensor | None = None
        d_bias = torch.zeros_like(bias, dtype=exact) if with_gradients else None
        for start in range(0, positions, rows):
            vectors_here = vectors[start : start + rows]
            logits = buffer[: len(vectors_here)]
            torch.mm(vectors_here, matrix.t(), out=logits)
            for first in range(0, len(logits), part_rows):
                part = logits[first : first + part_rows]
                label = labels[start + first : start + first + len(part), None]
                values, shares = (pair[: len(part)] for pair in exact_buffers)
                values.copy_(part).add_(bias)
                torch.softmax(values, 1, out=shares)
                of_label, largest = values.gather(1, label), values.amax(1, keepdim=True)
                # The largest share is 1 / sum(exp(value - largest)), never less than 1 / V.
                loss += (largest - shares.amax(1, keepdim=True).log() - of_label).sum()
                if d_bias is None:
                    continue
                # The gradient of the logits: softmax minus one-hot.
                shares.scatter_add_(1, label, -torch.ones_like(of_label))
                d_bias += shares.sum(0)
                part.copy_(shares)
            if d_hidden is None:
                continue
            d_hidden[start : start + rows] = logits @ matrix
            product = logits.t() @ vectors_here
            d_weight = product.to(exact) if d_weight is None else d_weight.add_(product)
        if with_gradients and d_weight is None:
            d_weight = torch.zeros_like(weight, dtype=exact)
        if d_hidden is not None and d_weight is not None and d_bias is not None:
            ctx.save_for_backward(d_hidden, d_weight, d_bias)
            ctx.weight_dtype = weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        # In place, for the token table's gradient is large: hence backward runs once.
        d_weight = d_weight.mul_(grads[0]).to(ctx.weight_dtype)
        d_bias = (d_bias * grads[0]).to(ctx.weight_dtype)
        return (d_hidden * grads[0]).to(d_hidden.dtype), d_weight, d_bias, None, None, None
