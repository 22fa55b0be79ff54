"""Gradients of a model, zeroed, summed over ranks, measured and clipped together.

Whole ones lie in one buffer; those of a model that is cut among ranks are where FSDP puts them.

Averaging gradients over ranks, or a bucketed reduction whose buckets change after the first step,
would make the number of workers or a resume part of the mathematics. Here each rank's gradients
are parts of one sum over the global batch, and they are summed once a step. Ranks with fewer
micro-batches, or with none, add zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from stages.training.distributed import sum_over_ranks
from stages.training.sharding import is_sharded, local, sum_gradients

# Of float32, so that each gradient begins at a multiple of 64 bytes, as vector units like it.
_ALIGNMENT = 16


class Gradients(Protocol):
    """Gradients of a model on this rank.

    Attributes:
        figures: scalars that are summed over ranks along with the gradients.
    """

    figures: Tensor

    def zero(self) -> None:
        """Set gradients and figures to zero."""
        ...

    def before_pass(self, last: bool) -> None:
        """A forward and backward pass follows; `last`: of this step."""
        ...

    def sum_over_ranks(self) -> None:
        """Add up gradients and figures over all ranks."""
        ...

    def norm(self) -> Tensor:
        """Scalar: the global norm of the gradients, after `sum_over_ranks`."""
        ...

    def clip(self, norm: float, largest: float) -> None:
        """Scale the gradients of global norm `norm` down to `largest`, if they are above it."""
        ...


def gradients_of(model: nn.Module, figures: int) -> Gradients:
    """The gradients of what learns in a model, cut among ranks or whole, with so many figures."""
    if is_sharded(model):
        return ShardedGradients(model, figures)
    return FlatGradients([p for p in model.parameters() if p.requires_grad], figures)


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

    def before_pass(self, last: bool) -> None:
        """Nothing: passes know nothing of other ranks."""

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


class ShardedGradients:
    """Gradients of a model that `sharding.shard` cut: each rank has those of its own rows.

    FSDP sums them over ranks in the last backward pass of a step; until then a rank adds up its own
    passes in whole gradients, so that each step sums once, as with `FlatGradients`.

    Args:
        model: cut among ranks; its parameters' `grad` belong to this object.
        figures: how many scalars are summed over ranks along with the gradients.
    """

    def __init__(self, model: nn.Module, figures: int) -> None:
        self._model = model
        self._parameters = list(model.parameters())
        first = self._parameters[0]
        # The last is the squared norm.
        self._sums = torch.zeros(figures + 1, dtype=first.dtype, device=first.device)
        self.figures = self._sums[:-1]

    def zero(self) -> None:
        """Drop the gradients, and set figures to zero."""
        for parameter in self._parameters:
            parameter.grad = None
        self._sums.zero_()

    def before_pass(self, last: bool) -> None:
        """Let FSDP sum the gradients of all passes in the last one."""
        sum_gradients(self._model, now=last)

    def sum_over_ranks(self) -> None:
        """Add up figures and squared norms over all ranks; FSDP has summed the gradients."""
        norms = torch.stack(torch._foreach_norm(self._parts()))
        self._sums[-1] = norms.square().sum()
        sum_over_ranks(self._sums)

    def norm(self) -> Tensor:
        """Scalar: the global norm of the gradients, after `sum_over_ranks`."""
        return self._sums[-1].sqrt()

    def clip(self, norm: float, largest: float) -> None:
        """Scale the gradients of global norm `norm` down to `largest`, if they are above it."""
        if norm > largest:
            torch._foreach_mul_(self._parts(), largest / norm)

    def _parts(self) -> list[Tensor]:
        return [local(p.grad) for p in self._parameters if p.grad is not None]
