"""Optimisers, and the rule which weights decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from stages.training.job import TrainConfig
from stages.training.lamb import Lamb

MUON_MOMENTUM = 0.95
"""Of Muon (Jordan et al. 2024); `beta1` and `beta2` are those of AdamW beside it."""


def decays(parameter: nn.Parameter) -> bool:
    """Whether weight decay acts on a parameter: on matrices, not on biases and LayerNorms.

    As the original optimiser, which leaves out names with LayerNorm and bias; embedding tables
    are matrices and decay.
    """
    return parameter.ndim >= 2


def make_optimiser(
    parameters: Iterable[nn.Parameter],
    config: TrainConfig,
    encoder: Iterable[nn.Parameter] = (),
    fused: bool = True,
) -> torch.optim.Optimizer:
    """An optimiser whose state has one layout, whatever it is made of.

    Args:
        parameters: float32 master weights, in the model's order.
        config: `optimizer`, `weight_decay`, `beta1`, `beta2` and `epsilon`; the loop sets the
            learning rate anew at each step.
        encoder: those of `parameters` that belong to the encoder's blocks. Muon takes their
            matrices, and leaves tables, heads, biases and norms to AdamW.
        fused: whether torch passes once over a parameter's memory for a step of AdamW on this
            device, instead of once an operation.

    Raises:
        ValueError: no such optimiser.
    """
    parameters = list(parameters)
    decayed = [p for p in parameters if decays(p)]
    plain = [p for p in parameters if not decays(p)]
    if config.optimizer == "adamw":
        return _adamw(decayed, plain, config, fused)
    if config.optimizer == "lamb":
        return Lamb(
            [
                {"params": decayed, "weight_decay": config.weight_decay},
                {"params": plain, "weight_decay": 0.0, "adapt": False},
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
        )
    if config.optimizer == "muon":
        in_encoder = {id(p) for p in encoder}
        matrices = [p for p in decayed if id(p) in in_encoder]
        if not matrices:
            raise ValueError("Muon needs matrices of an encoder, and was given none")
        others = [p for p in decayed if id(p) not in in_encoder]
        muon = torch.optim.Muon(
            matrices,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            momentum=MUON_MOMENTUM,
            # Steps as large as AdamW's, so that one learning rate serves both (Liu et al. 2025).
            adjust_lr_fn="match_rms_adamw",
        )
        return Together([muon, _adamw(others, plain, config, fused)])
    raise ValueError(f"unknown optimiser {config.optimizer!r}: adamw, lamb or muon")


def _adamw(
    decayed: list[nn.Parameter], plain: list[nn.Parameter], config: TrainConfig, fused: bool
) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=fused or None,
    )


class Together(torch.optim.Optimizer):
    """Several optimisers as one: groups one after another, one state, one state dict."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = tuple(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of each part."""
        assert closure is None
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Let the parts work on this optimiser's groups and state."""
        start = 0
        for part in self._parts:
            stop = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:stop]
            part.state = self.state
            start = stop
