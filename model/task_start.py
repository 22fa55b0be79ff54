"""Where fine-tuning begins: the encoder of a pretrained model, and a head drawn anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.attention import AttentionChoice
from model.bert import init_weights
from model.config import BertConfig
from model.task_heads import BertForTask, TaskKind


@dataclass(frozen=True)
class TaskStart:
    """What is taken from a model for a task.

    Attributes:
        state_dict: float32 tensors under the names of `BertForTask`: the whole encoder, and what
            fits of the head.
        config: the encoder's.
        drawn: parameters of the task's model that are not in `state_dict`, in the model's order.
        left: tensors of the source that the task has no use for, by their names there.
    """

    state_dict: dict[str, Tensor]
    config: BertConfig
    drawn: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def taken(self) -> tuple[str, ...]:
        """Parameters of the task's model that have the source's values."""
        return tuple(self.state_dict)


def parameter_shapes(config: BertConfig, kind: TaskKind, classes: int) -> dict[str, torch.Size]:
    """Names and shapes of the parameters of a `BertForTask`, in its order; allocates nothing."""
    with torch.device("meta"):
        model = BertForTask(config, kind, classes)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def start_from_pretraining(
    state_dict: Mapping[str, Tensor], config: BertConfig, kind: TaskKind
) -> TaskStart:
    """Take the encoder, and for a "sequence" the pooler, of a `BertForPreTraining`.

    Raises:
        ValueError: a part of the encoder is missing or has another shape.
    """
    # The classifier is never there, so that its number of rows does not matter.
    shapes = parameter_shapes(config, kind, 2)
    sources = {name: name.removeprefix("head.") for name in shapes}
    state, drawn = {}, []
    for name, source in sources.items():
        tensor = state_dict.get(source)
        if tensor is not None and tensor.shape == shapes[name]:
            state[name] = tensor.detach().to(torch.float32)
        elif name.startswith("bert."):
            found = "it is missing" if tensor is None else f"it has shape {tuple(tensor.shape)}"
            raise ValueError(
                f"these weights do not belong to the model's configuration: {name} should have "
                f"shape {tuple(shapes[name])}, and {found}"
            )
        else:
            drawn.append(name)
    used = {sources[name] for name in state}
    left = tuple(sorted(state_dict.keys() - used))
    return TaskStart(state, replace(config, nsp=False), tuple(drawn), left)


def build_task(
    start: TaskStart,
    kind: TaskKind,
    classes: int = 2,
    generator: torch.Generator | None = None,
    head_dropout: float | None = None,
    attention: AttentionChoice = "auto",
    checkpointing: bool = False,
) -> BertForTask:
    """Build a task's model from what was taken, its head drawn as pretraining draws weights.

    One generator gives the same classifier whether the pooler was taken or not.

    Args:
        start: made for this `kind`. Its `config` may be replaced by one of other dropout.
        kind, classes, head_dropout, attention, checkpointing: as of `BertForTask`.
        generator: source of the draws, on CPU; None takes torch's default one.

    Raises:
        ValueError: `start` was made for another task.
    """
    model = BertForTask(start.config, kind, classes, head_dropout, attention, checkpointing)
    init_weights(model.head, generator, std=start.config.initializer_range)
    names = [name for name, _ in model.named_parameters()]
    if set(names) != {*start.state_dict, *start.drawn}:
        raise ValueError(f"what was taken is not for a task of the kind {kind!r}: take it anew")
    model.load_state_dict(start.state_dict, strict=False)
    return model
