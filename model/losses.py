"""Pretraining losses as sums, so that the caller divides by counts of the whole global batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from model.heads import IS_NEXT, NOT_NEXT


def mlm_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of -log P(original token) over the masked positions, in float32 (seed 3.4).

    Args:
        logits: [M, V].
        labels: int64 [M], the original tokens.

    Returns:
        Scalar in nats; 0 when there is no masked position.
    """
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def nsp_loss_sum(logits: Tensor, is_next: Tensor) -> Tensor:
    """Sum of -log P(true class) over the sequences, in float32.

    Args:
        logits: [B, 2], class 0 is IsNext.
        is_next: bool [B].

    Returns:
        Scalar in nats.
    """
    classes = is_next.long() * (IS_NEXT - NOT_NEXT) + NOT_NEXT
    return F.cross_entropy(logits.float(), classes, reduction="sum")
