"""Dropout whose random bits are cheap on CPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_STEPS = 1 << 16


def dropout(hidden: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each element with `probability` and scale the rest by 1 / (1 - probability).

    On CPU one draw of 64 bits serves four elements (`F.dropout` spends a double each, which
    costs as much as a small matrix product), so the probability is rounded to a multiple of
    2^-16 and the scale fits the rounded one. Elsewhere this is `F.dropout`. Bits come from
    torch's default generator, so `torch.manual_seed` fixes them, for any number of threads.

    Args:
        hidden: floating point tensor of any shape.
        probability: in [0, 1).
        training: False returns `hidden` as it is.
    """
    if not training or probability == 0.0:
        return hidden
    if hidden.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(hidden, probability, training=True)
    dropped = round(probability * _STEPS)
    return hidden * keep_mask(hidden.shape, dropped).to(hidden.dtype).mul_(
        _STEPS / (_STEPS - dropped)
    )


def keep_mask(shape: torch.Size, dropped: int) -> Tensor:
    """Return a bool mask on CPU, False with probability `dropped` / 2^16."""
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count].ge(dropped - _STEPS // 2).view(shape)
