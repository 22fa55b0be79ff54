"""Weights that a run starts from (`train.init_from`): found, checked and listed for `plan`.

Nothing is loaded here: `initial_weights` reads what this module found.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.pickles import is_pickle, pickle_message
from pipeline.artifact import MANIFEST
from pipeline.stage import RawInput, UserError
from pipeline.writer import unfinished_node
from stages.config import Config, ModelConfig
from stages.text.existing import read_existing
from stages.vocabulary_source import vocabulary_source

LAYOUTS = {
    "transformers": ("config.json", "model.safetensors"),
    "clozeline": ("model.json", "weights.safetensors"),
}
"""Whose folder: the file of the shape, the file of the weights."""

PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})

_SHAPE = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
}
"""Key of the group `model` -> key of transformers' config.json, for what weights depend on."""


@dataclass(frozen=True)
class GivenWeights:
    """A folder with a model.

    Attributes:
        folder: that holds the files.
        layout: whose.
        shape: what its file of the shape says.
        tokens: its vocabulary, by id.
    """

    folder: Path
    layout: Literal["transformers", "clozeline"]
    shape: Mapping[str, Any]
    tokens: tuple[str, ...]

    @property
    def weights(self) -> Path:
        """The safetensors file."""
        return self.folder / LAYOUTS[self.layout][1]


def find_weights(given: str, base: Path, key: str = "train.init_from") -> GivenWeights:
    """The model that `key` of the config names: a folder as transformers or the stage export writes
    it, or the data folder of a pretrain artifact.

    Raises:
        UserError: no such folder, one whose training is not finished, no safetensors in it, or no
            vocabulary beside them.
    """
    where = f"{key}={given}"
    folder = base / Path(given).expanduser()
    if "://" in given:
        raise UserError(f"{where}: copy the folder to this machine and name the copy")
    if not folder.is_dir():
        raise UserError(f"{where}: there is no such folder")
    unfinished = unfinished_node(folder)
    if unfinished is not None:
        raise UserError(f"{where}: {unfinished} is not finished there; clozeline run makes it")
    if (folder / MANIFEST).is_file():
        generation = _json(folder / MANIFEST, where).get("generation", "data")
        raise UserError(f"{where}: the files of an artifact lie in {folder / generation}: name it")
    for layout in ("transformers", "clozeline"):
        shape, weights = (folder / name for name in LAYOUTS[layout])
        if shape.is_file() and weights.is_file():
            if is_pickle(weights):
                raise UserError(f"{where}: {pickle_message(weights)}")
            tokens = _tokens(folder, where)
            return GivenWeights(folder, layout, _json(shape, where), tokens)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise UserError(
            f"{where}: {pickles[0]} is pickled, and reading it can run code, so it is not read. "
            "Load the model with transformers once and save it again with save_pretrained, which "
            "writes model.safetensors"
        )
    wanted = " or ".join(" and ".join(files) for files in LAYOUTS.values())
    raise UserError(f"{where}: the folder does not hold {wanted}")


def list_weights(config: Config, base: Path) -> RawInput:
    """What is fingerprinted of given weights: their content, not where they lie.

    Raises:
        UserError: they are not there, or of another shape or vocabulary than the run's.
    """
    given = config.train.init_from
    assert given is not None
    found = find_weights(given, base)
    check_shape(found, config.model, given)
    tokens = vocabulary_source(config.vocab, base).tokens
    if tokens is not None:
        check_tokens(found, tokens, given)
    size, digest = content_digest(found.weights)
    entry = {"name": "weights", "layout": found.layout, "sha256": digest}
    return RawInput([entry], f"{found.weights.name}, {size / 1e6:,.1f} MB")


def check_shape(found: GivenWeights, model: ModelConfig, given: str) -> None:
    """Raise `UserError` when the group `model` is of another shape than the folder's model."""
    theirs = found.layout == "transformers"
    wanted = model.model_dump() | {
        "intermediate_size": model.intermediate_size or 4 * model.hidden_size
    }
    differ = []
    for ours, key in _SHAPE.items():
        there = found.shape.get(key if theirs else ours)
        if there is not None and there != wanted[ours]:
            differ.append(f"model.{ours}={there}")
    if differ:
        raise UserError(
            f"train.init_from={given} holds a model of another shape than the group model asks "
            f"for: set {' '.join(differ)}"
        )


def check_tokens(found: GivenWeights, tokens: tuple[str, ...], given: str) -> None:
    """Raise `UserError` when the run's vocabulary is another than the folder's, entry by entry."""
    if found.tokens == tokens:
        return
    pairs = zip(found.tokens, tokens, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    what = (
        f"entry {first} is {found.tokens[first]!r} there and {tokens[first]!r} here"
        if first is not None
        else f"it has {len(found.tokens):,} entries, this run {len(tokens):,}"
    )
    raise UserError(
        f"train.init_from={given} has another vocabulary than this run ({what}), and its "
        f"embeddings would stand for the wrong pieces: set vocab.from={given}"
    )


def content_digest(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 (hex) of a file; read once a process as long as it stays as it is.

    The whole of it: a second for a gigabyte or two. The weights can then be copied, touched or
    moved to another machine without a training of days made anew, and one changed row is seen.
    """
    status = path.stat()
    return status.st_size, _sha256(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _sha256(path: Path, _: int, __: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tokens(folder: Path, where: str) -> tuple[str, ...]:
    try:
        return read_existing(folder).tokens
    except (ValueError, OSError) as error:
        raise UserError(
            f"{where}: a model is of use only with its own vocabulary. {error}: put its vocab.txt "
            "beside the weights"
        ) from None


def _json(path: Path, where: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{where}: {path} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: {path} holds no JSON object")
    return content
