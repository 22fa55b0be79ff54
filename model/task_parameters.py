"""Which parameters fine-tuning leaves as they are, and how far it moves the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from model.task_heads import BertForTask

_LAYER = re.compile(r"bert\.encoder\.layers\.(\d+)\.")


def depth_of(name: str, num_layers: int) -> int:
    """Where a parameter stands: 0 for the embeddings, i + 1 for layer i, num_layers + 1 above.

    Args:
        name: in a model that has the encoder under `bert`.
        num_layers: of the encoder.
    """
    layer = _LAYER.match(name)
    if layer:
        return int(layer[1]) + 1
    return 0 if name.startswith("bert.embeddings.") else num_layers + 1


def frozen_names(
    names: Iterable[str],
    num_layers: int,
    *,
    embeddings: bool = False,
    first_layers: int = 0,
    encoder: bool = False,
) -> tuple[str, ...]:
    """Choose the parameters that are not to learn.

    Args:
        names: of the model's parameters.
        num_layers: of the encoder.
        embeddings: choose the tables and their norm.
        first_layers: choose as many layers from the bottom.
        encoder: choose embeddings and all layers, so that the head alone learns, the pooler of a
            "sequence" included.

    Returns:
        The chosen ones of `names`, in their order.

    Raises:
        ValueError: `first_layers` is not between 0 and `num_layers`.
    """
    if not 0 <= first_layers <= num_layers:
        raise ValueError(
            f"first_layers={first_layers} cannot be frozen in an encoder of {num_layers} layers: "
            f"give 0 to {num_layers}"
        )
    depths = set(range(1, first_layers + 1))
    if embeddings:
        depths.add(0)
    if encoder:
        depths = set(range(num_layers + 1))
    return tuple(name for name in names if depth_of(name, num_layers) in depths)


def freeze(
    model: BertForTask, *, embeddings: bool = False, first_layers: int = 0, encoder: bool = False
) -> tuple[str, ...]:
    """Let parameters of a model learn no more; all others do. Their dropout goes on.

    Arguments and errors as of `frozen_names`, whose result is returned.
    """
    frozen = frozen_names(
        (name for name, _ in model.named_parameters()),
        model.config.num_layers,
        embeddings=embeddings,
        first_layers=first_layers,
        encoder=encoder,
    )
    chosen = set(frozen)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in chosen)
    return frozen


@dataclass(frozen=True)
class LayerGroup:
    """Parameters that share a learning rate.

    Attributes:
        depth: of `depth_of`.
        scale: the group's learning rate as a multiple of the run's.
        names: in the model's order.
    """

    depth: int
    scale: float
    names: tuple[str, ...]


def layer_groups(
    names: Iterable[str], num_layers: int, decay: float = 1.0
) -> tuple[LayerGroup, ...]:
    """Group parameters by depth; each depth learns `decay` times as fast as the one above it.

    The head has the run's own learning rate, the last layer `decay` times it, the embeddings
    decay^(num_layers + 1) times (Howard and Ruder 2018, discriminative fine-tuning).

    Args:
        names: of the parameters that learn, in the model's order.
        num_layers: of the encoder.
        decay: in (0, 1]; 1 gives all the same rate.

    Returns:
        From the bottom up, without empty groups; together they hold each of `names` once.

    Raises:
        ValueError: `decay` is out of its range.
    """
    if not 0.0 < decay <= 1.0:
        raise ValueError(f"decay={decay!r} must lie in (0, 1]: 1 switches it off")
    by_depth: dict[int, list[str]] = {}
    for name in names:
        by_depth.setdefault(depth_of(name, num_layers), []).append(name)
    return tuple(
        LayerGroup(depth, decay ** (num_layers + 1 - depth), tuple(by_depth[depth]))
        for depth in sorted(by_depth)
    )
