"""The two files of a model folder of transformers: config.json and model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.pickles import is_pickle, pickle_message

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read as BERT; the message says why and what to do."""


def write_files(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write both files, making the folder.

    Args:
        path: folder; files of these two names in it are replaced.
        tensors: contiguous, on CPU, none sharing memory with another.
        config: values for JSON.
    """
    path.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), path / WEIGHTS_FILE, metadata={"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True)
    (path / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def read_files(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read both files: tensors by name, on CPU, and the values of config.json.

    Raises:
        CheckpointError: a file is not there or cannot be read. Pickled weights (.bin, .pt, .ckpt)
            are refused: reading them can run code.
    """
    config_file, weights_file = path / CONFIG_FILE, path / WEIGHTS_FILE
    if not path.is_dir() or not config_file.is_file():
        raise CheckpointError(
            f"{config_file} is not there: give a folder with {CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    if not weights_file.is_file():
        pickles = sorted(p.name for p in path.iterdir() if p.suffix in {".bin", ".pt", ".ckpt"})
        if pickles:
            raise CheckpointError(
                f"{path} holds {pickles[0]} and no {WEIGHTS_FILE}. Pickled weights are not read, "
                "because loading them can run code: load the model with transformers and save it "
                "again with save_pretrained, which writes safetensors"
            )
        raise CheckpointError(f"{weights_file} is not there: give a folder that holds it")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{config_file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{config_file} must hold a JSON object")
    try:
        if is_pickle(weights_file):
            raise CheckpointError(pickle_message(weights_file))
        return load_file(weights_file), config
    except SafetensorError as error:
        raise CheckpointError(f"{weights_file} is damaged: {error}; fetch it again") from error
