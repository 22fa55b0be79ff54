"""Optimisers, and the rule which weights decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from stages.training.job import TrainConfig


def decays(parameter: nn.Parameter) -> bool:
    """Whether weight decay acts on a parameter: on matrices, not on biases and LayerNorms.

    As the original optimiser, which leaves out names with LayerNorm and bias; embedding tables
    are matrices and decay.
    """
    return parameter.ndim >= 2


def make_optimiser(
    parameters: Iterable[nn.Parameter], config: TrainConfig
) -> torch.optim.Optimizer:
    """An optimiser with two groups: parameters that decay and those that do not.

    Args:
        parameters: float32 master weights, in the model's order.
        config: `optimizer`, `weight_decay`, `beta1`, `beta2` and `epsilon`; the loop sets the
            learning rate anew at each step.

    Raises:
        ValueError: no such optimiser.
    """
    parameters = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if decays(p)], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if not decays(p)], "weight_decay": 0.0},
    ]
    if config.optimizer == "adamw":
        # One pass over memory for each parameter, instead of one for each operation.
        return torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
    raise ValueError(f"unknown optimiser {config.optimizer!r}: adamw")
