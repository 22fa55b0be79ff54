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
    if config.optimizer in ("adamw", "lamb"):
        return scaled_optimiser([(1.0, parameters)], config, fused)
    if config.optimizer == "muon":
        in_encoder = {id(p) for p in encoder}
        decayed = [p for p in parameters if decays(p)]
        plain = [p for p in parameters if not decays(p)]
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
        return Together([muon, _adamw(_halves([(1.0, others + plain)], config), config, fused)])
    raise ValueError(f"unknown optimiser {config.optimizer!r}: adamw, lamb or muon")


def scaled_optimiser(
    scaled: Sequence[tuple[float, Sequence[nn.Parameter]]],
    config: TrainConfig,
    fused: bool = True,
) -> torch.optim.Optimizer:
    """AdamW or LAMB over parameters that learn at different rates.

    Args:
        scaled: groups, each with its learning rate as a multiple of the run's, which stands as
            `scale` in the optimiser's groups.
        config, fused: as of `make_optimiser`.

    Raises:
        ValueError: another optimiser.
    """
    groups = _halves(scaled, config)
    if config.optimizer == "adamw":
        return _adamw(groups, config, fused)
    if config.optimizer == "lamb":
        for group in groups:
            group["adapt"] = group["decays"]
        return Lamb(
            groups,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
        )
    raise ValueError(f"the optimiser {config.optimizer!r} has one learning rate: adamw or lamb")


def _halves(
    scaled: Sequence[tuple[float, Sequence[nn.Parameter]]], config: TrainConfig
) -> list[dict[str, Any]]:
    """What decays and what does not of each group."""
    groups = []
    for scale, parameters in scaled:
        for decayed in (True, False):
            chosen = [p for p in parameters if decays(p) == decayed]
            decay = config.weight_decay if decayed else 0.0
            if chosen:
                groups.append(
                    {"params": chosen, "weight_decay": decay, "scale": scale, "decays": decayed}
                )
    return groups


def _adamw(groups: list[dict[str, Any]], config: TrainConfig, fused: bool) -> torch.optim.Optimizer:
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
