"""Weights of a model and state of its optimiser as named tensors, and the folder that holds them.

Parameters go by their name in the model, each once: a tied projection has no name of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import torch
from pyarrow.fs import FileSystem
from torch import Tensor, nn

from model.config import BertConfig
from stages.training.checkpoint import WEIGHTS
from stages.training.tensor_files import write_tensors

MODEL_CONFIG = "model.json"


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name; views, not copies. Of a sharded model, this rank's parts."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy `weights` into a model's parameters.

    Raises:
        ValueError: names or shapes are not the model's; the message starts with `source`.
    """
    parameters = dict(model.named_parameters())
    missing = sorted(parameters.keys() - weights.keys())
    extra = sorted(weights.keys() - parameters.keys())
    if missing or extra:
        raise ValueError(
            f"{source} does not fit the model: without {', '.join(missing) or 'nothing'}; "
            f"beyond it {', '.join(extra) or 'nothing'}"
        )
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise ValueError(
                f"{source} does not fit the model: {name} is {tuple(weights[name].shape)}, "
                f"the model has {tuple(parameter.shape)}"
            )
        parameter.copy_(weights[name])


def moments_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors as "exp_avg/encoder.0.weight"; views, not copies."""
    return {
        f"{key}/{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def set_moments(
    model: nn.Module, optimiser: torch.optim.Optimizer, moments: Mapping[str, Tensor]
) -> None:
    """Give an optimiser the tensors that `moments_of` took from one of the same model."""
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for path, value in moments.items():
        key, _, name = path.partition("/")
        # A copy: loaded tensors lie unaligned inside the file's bytes.
        by_parameter.setdefault(name, {})[key] = value.clone()
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[p] for group in optimiser.param_groups for p in group["params"]]
    state = {i: by_parameter[name] for i, name in enumerate(order) if name in by_parameter}
    optimiser.load_state_dict(
        {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
    )


def write_model(
    model: nn.Module, config: BertConfig, filesystem: FileSystem, folder: str
) -> tuple[str, str]:
    """Write `weights.safetensors` and `model.json` (the config) into an existing folder.

    Returns:
        Their paths.
    """
    weights_path, config_path = f"{folder}/{WEIGHTS}", f"{folder}/{MODEL_CONFIG}"
    with filesystem.open_output_stream(weights_path) as stream:
        write_tensors(stream, weights_of(model))
    with filesystem.open_output_stream(config_path) as stream:
        stream.write((json.dumps(asdict(config), indent=1) + "\n").encode())
    return weights_path, config_path


def read_model_config(filesystem: FileSystem, folder: str) -> BertConfig:
    """The config that `write_model` wrote."""
    with filesystem.open_input_file(f"{folder}/{MODEL_CONFIG}") as source:
        return BertConfig(**json.loads(source.read()))
