"""All gradients of a model in one buffer: zeroed, summed over ranks and measured in one call each.

Averaging gradients over ranks, or a bucketed reduction whose buckets change after the first step,
would make the number of workers or a resume part of the mathematics. Here each rank's gradients
are parts of one sum over the global batch, and they are summed once a step. Ranks with fewer
micro-batches, or with none, add zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from stages.training.distributed import sum_over_ranks

# Of float32, so that each gradient begins at a multiple of 64 bytes, as vector units like it.
_ALIGNMENT = 16


class FlatGradients:
    """Gradients of `parameters`, and a few figures that travel with them.

    Args:
        parameters: of one type, on one device. Their `grad` becomes a view of the buffer, into
            which backward passes add; nobody may set it to None.
        figures: how many scalars are summed over ranks along with the gradients.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], figures: int) -> None:
        parameters = list(parameters)
        sizes = [-(-p.numel() // _ALIGNMENT) * _ALIGNMENT for p in parameters]
        total = sum(sizes)
        first = parameters[0]
        self._buffer = torch.zeros(total + figures, dtype=first.dtype, device=first.device)
        self.gradients = self._buffer[:total]
        self.figures = self._buffer[total:]
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            view = self._buffer[start : start + parameter.numel()]
            parameter.grad = view.view_as(parameter)
            start += size

    def zero(self) -> None:
        """Set gradients and figures to zero."""
        self._buffer.zero_()

    def sum_over_ranks(self) -> None:
        """Add up gradients and figures over all ranks, in one operation."""
        sum_over_ranks(self._buffer)

    def norm(self) -> Tensor:
        """Scalar: the global norm of the gradients."""
        norm: Tensor = torch.linalg.vector_norm(self.gradients)
        return norm

    def clip(self, norm: float, largest: float) -> None:
        """Scale the gradients of global norm `norm` down to `largest`, if they are above it."""
        if norm > largest:
            self.gradients.mul_(largest / norm)
