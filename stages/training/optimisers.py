"""Optimisers, and the rule which weights decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def decays(parameter: nn.Parameter) -> bool:
    """Whether weight decay acts on a parameter: on matrices, not on biases and LayerNorms.

    As the original optimiser, which leaves out names with LayerNorm and bias; embedding tables
    are matrices and decay.
    """
    return parameter.ndim >= 2


def make_optimiser(
    parameters: Iterable[nn.Parameter],
    *,
    name: str,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> torch.optim.Optimizer:
    """An optimiser with two groups: parameters that decay and those that do not.

    Args:
        parameters: float32 master weights, in the model's order.
        name: "adamw".
        learning_rate: of the first step; the loop sets it anew at each step.
        weight_decay: decoupled, times the learning rate.
        betas: decay of the two moments.
        epsilon: added to the root of the second moment (original BERT: 1e-6).

    Raises:
        ValueError: no such optimiser.
    """
    parameters = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if decays(p)], "weight_decay": weight_decay},
        {"params": [p for p in parameters if not decays(p)], "weight_decay": 0.0},
    ]
    if name == "adamw":
        fused = all(p.device.type in ("cpu", "cuda", "mps") for p in parameters)
        return torch.optim.AdamW(
            groups, lr=learning_rate, betas=betas, eps=epsilon, fused=fused
        )
    raise ValueError(f"unknown optimiser {name!r}: adamw")
