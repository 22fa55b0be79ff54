"""LAMB, for batches of tens of thousands of examples (You et al. 2020, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.training.distributed import sum_over_ranks
from stages.training.sharding import is_shard, local


class Lamb(torch.optim.Optimizer):
    """AdamW whose step is, for each parameter, as long as the parameter itself times the rate.

    With m and v the moments of Adam, corrected for their start at zero, and w the weights:

        u = m / (sqrt(v) + epsilon) + weight_decay w
        w = w - rate (|w| / |u|) u

    The ratio is 1 where one of the norms is 0. As in the paper's own runs, groups with
    `adapt: False` (biases and norms) take u as it is: their weights begin at 0 or 1 and are no
    measure of a step. Queries, keys and values are one parameter here, and share a ratio. Norms are
    of whole parameters, also where each rank has a part of them.

    Args:
        params: groups; each may set `weight_decay` and `adapt`.
        lr: the rate.
        betas: decay of both moments.
        eps: epsilon.
        weight_decay: decoupled.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": True,
        }  # fmt: skip
        super().__init__(params, defaults)

    # Whole lists at a time: on a GPU one kernel for many parameters. Nothing waits for the device.
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change the weights once; parameters without a gradient stay."""
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            weights = [local(p) for p in parameters]
            gradients = [local(p.grad) for p in parameters]
            states = [self._state_of(p) for p in parameters]
            first = [local(state["exp_avg"]) for state in states]
            second = [local(state["exp_avg_sq"]) for state in states]
            for state in states:
                state["step"] += 1
            step = int(states[0]["step"])
            beta1, beta2 = group["betas"]

            torch._foreach_lerp_(first, gradients, 1.0 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
            below = torch._foreach_div(second, 1.0 - beta2**step)
            torch._foreach_sqrt_(below)
            torch._foreach_add_(below, group["eps"])
            updates = torch._foreach_div(first, 1.0 - beta1**step)
            torch._foreach_div_(updates, below)
            if group["weight_decay"]:
                torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            if group["adapt"]:
                of_weights, of_updates = torch._foreach_norm(weights), torch._foreach_norm(updates)
                if is_shard(parameters[0]):
                    of_weights, of_updates = _of_whole_parameters(of_weights, of_updates)
                ratios = _ratios(of_weights, of_updates)
                for update, ratio in zip(updates, ratios, strict=True):
                    update.mul_(ratio)
            torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; step counts stay on CPU, where reading them waits for nothing."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["step"] = state["step"].cpu()

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _ratios(weights: Iterable[Tensor], updates: Iterable[Tensor]) -> list[Tensor]:
    return [
        torch.where((weight > 0) & (update > 0), weight / update, torch.ones_like(weight))
        for weight, update in zip(weights, updates, strict=True)
    ]


def _of_whole_parameters(
    weights: Sequence[Tensor], updates: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Norms of whole parameters from the norms of this rank's parts, in one sum over ranks."""
    squares = torch.stack([*weights, *updates]).square()
    sum_over_ranks(squares)
    norms = squares.sqrt().unbind()
    return norms[: len(weights)], norms[len(weights) :]
