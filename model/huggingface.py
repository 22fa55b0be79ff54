"""Weights and configuration in transformers' BERT layout, both ways and without loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"

_CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "pad_token_id": "pad_token_id",
}
"""Field of `BertConfig` -> key of config.json."""

_TABLES = {
    "bert.embeddings.token.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "mlm.bias": "cls.predictions.bias",
}
_MODULES = {
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
}
_NEXT_SENTENCE_MODULES = {
    "pooler.dense": "bert.pooler.dense",
    "nsp.classifier": "cls.seq_relationship",
}
_LAYER_MODULES = {
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_QKV = ("query", "key", "value")
"""Order of the three parts in the fused matrix."""

_DECODER_WEIGHT = "cls.predictions.decoder.weight"
_DECODER_BIAS = "cls.predictions.decoder.bias"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read as BERT; the message says why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """What `from_huggingface` made of a checkpoint.

    Attributes:
        state_dict: float32 tensors under the names of `BertForPreTraining`.
        config: `nsp` is True when the checkpoint has a pooler.
        missing: parameters of `BertForPreTraining(config)` that the checkpoint does not have:
            its heads, when it has none. Initialise them, then load with `strict=False`.
        ignored: tensors of the checkpoint that have no place here (a task's classifier...).
    """

    state_dict: dict[str, Tensor]
    config: BertConfig
    missing: tuple[str, ...]
    ignored: tuple[str, ...]


def _names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Name here -> names there; three of them where query, key and value are fused."""
    modules = dict(_MODULES)
    if config.nsp:
        modules |= _NEXT_SENTENCE_MODULES
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in _TABLES.items()}
    for index in range(config.num_layers):
        ours, theirs = f"bert.encoder.layers.{index}", f"bert.encoder.layer.{index}"
        modules |= {f"{ours}.{here}": f"{theirs}.{there}" for here, there in _LAYER_MODULES.items()}
        for kind in ("weight", "bias"):
            names[f"{ours}.attention.qkv.{kind}"] = tuple(
                f"{theirs}.attention.self.{part}.{kind}" for part in _QKV
            )
    for here, there in modules.items():
        for kind in ("weight", "bias"):
            names[f"{here}.{kind}"] = (f"{there}.{kind}",)
    return names


def config_to_huggingface(config: BertConfig) -> dict[str, Any]:
    """Return config.json's values for a model of this shape."""
    return {
        "architectures": ["BertForPreTraining" if config.nsp else "BertForMaskedLM"],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
        **{there: getattr(config, here) for here, there in _CONFIG_KEYS.items()},
    }


def config_from_huggingface(values: Mapping[str, Any], *, nsp: bool) -> BertConfig:
    """Read config.json's values; keys that it leaves out have transformers' defaults.

    Raises:
        CheckpointError: not a BERT, or one with parts that this model does not have.
    """
    for key, accepted in (
        ("model_type", ("bert",)),
        ("hidden_act", ("gelu", "gelu_python")),
        ("position_embedding_type", ("absolute",)),
        ("is_decoder", (False,)),
        ("add_cross_attention", (False,)),
    ):
        if values.get(key, accepted[0]) not in accepted:
            raise CheckpointError(
                f"{CONFIG_FILE} says {key}={values[key]!r}; this model reads only "
                f"{' or '.join(map(repr, accepted))}: use another checkpoint"
            )
    defaults = BertConfig(vocab_size=30_522, hidden_size=768, num_layers=12, num_heads=12)
    fields = {
        here: values.get(there, getattr(defaults, here)) for here, there in _CONFIG_KEYS.items()
    }
    if fields["pad_token_id"] is None:
        fields["pad_token_id"] = 0
    try:
        return BertConfig(nsp=nsp, **fields)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{CONFIG_FILE}: {error}") from error


def to_huggingface(
    state_dict: Mapping[str, Tensor], config: BertConfig
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Convert weights of `BertForPreTraining` to transformers' names.

    The decoder's weight and bias are tied there too and are not repeated. Without `config.nsp`
    the result is a `BertForMaskedLM`.

    Returns:
        Contiguous CPU tensors by name, and the values of config.json.

    Raises:
        CheckpointError: a tensor is missing, or one is left over.
    """
    names = _names(config)
    if state_dict.keys() != names.keys():
        missing = sorted(names.keys() - state_dict.keys())
        surplus = sorted(state_dict.keys() - names.keys())
        raise CheckpointError(
            f"these are not the weights of a BertForPreTraining of this config: "
            f"missing {missing or 'none'}, left over {surplus or 'none'}; "
            "pass model.state_dict() of the unwrapped model"
        )
    tensors = {}
    for ours, theirs in names.items():
        tensor = state_dict[ours].detach().cpu()
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            # A copy: safetensors refuses tensors that share memory.
            tensors[name] = part.clone(memory_format=torch.contiguous_format)
    return tensors, config_to_huggingface(config)


def _modern_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give every tensor the name that a current `BertForPreTraining` file has for it."""
    bare = not any(name.startswith("bert.") for name in tensors)
    renamed = {}
    for name, tensor in tensors.items():
        new = name
        if bare and name.startswith(("embeddings.", "encoder.", "pooler.")):
            new = f"bert.{name}"
        if new.endswith(".gamma"):
            new = f"{new.removesuffix('gamma')}weight"
        elif new.endswith(".beta"):
            new = f"{new.removesuffix('beta')}bias"
        renamed[new] = tensor
    # A buffer in older files, no weight.
    renamed.pop("bert.embeddings.position_ids", None)
    return renamed


def _untie(tensors: dict[str, Tensor]) -> None:
    """Drop the decoder's copies of the token table and the bias, when that is what they are."""
    for copy, original in (
        (_DECODER_WEIGHT, "bert.embeddings.word_embeddings.weight"),
        (_DECODER_BIAS, "cls.predictions.bias"),
    ):
        if copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if original in tensors and not torch.equal(tensor, tensors[original]):
            raise CheckpointError(
                f"{copy} differs from {original}: this model ties them, so the checkpoint "
                "cannot be kept as it is; use one with tie_word_embeddings"
            )
        tensors.setdefault(original, tensor)


def from_huggingface(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Checkpoint:
    """Convert transformers' BERT weights to the names of `BertForPreTraining`.

    Accepts names with and without the prefix `bert.`, any heads or none, gamma and beta for
    LayerNorm, an `embeddings.position_ids` buffer, and the tied decoder written or left out.

    Raises:
        CheckpointError: a part of the encoder is missing, a shape does not fit the config, or the
            checkpoint needs what this model does not have.
    """
    theirs = _modern_names(tensors)
    _untie(theirs)
    nsp = "bert.pooler.dense.weight" in theirs or "cls.seq_relationship.weight" in theirs
    ours = config_from_huggingface(config, nsp=nsp)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in BertForPreTraining(ours).named_parameters()}
    state: dict[str, Tensor] = {}
    missing = []
    used: set[str] = set()
    for name, sources in _names(ours).items():
        absent = [source for source in sources if source not in theirs]
        if absent and name.startswith("bert."):
            raise CheckpointError(
                f"{absent[0]} is not in the checkpoint: it is no BERT encoder of "
                f"{ours.num_layers} layers; check num_hidden_layers in {CONFIG_FILE}"
            )
        if absent:
            missing.append(name)
            continue
        tensor = torch.cat([theirs[source].to(torch.float32) for source in sources])
        if tensor.shape != shapes[name]:
            raise CheckpointError(
                f"{' + '.join(sources)} has shape {tuple(tensor.shape)}, and {CONFIG_FILE} asks "
                f"for {tuple(shapes[name])}: the two files do not belong together"
            )
        state[name] = tensor
        used.update(sources)
    ignored = sorted(theirs.keys() - used)
    return Checkpoint(state, ours, tuple(sorted(missing)), tuple(ignored))


def write_folder(
    path: Path, model: BertForPreTraining, extra_config: Mapping[str, Any] | None = None
) -> None:
    """Write model.safetensors and config.json as transformers does, making the folder.

    Args:
        path: folder; files of these two names in it are replaced.
        model: unwrapped (no DDP, no compile wrapper), on any device.
        extra_config: more keys for config.json, e.g. where the model comes from.
    """
    tensors, config = to_huggingface(model.state_dict(), model.config)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / WEIGHTS_FILE, metadata={"format": "pt"})
    text = json.dumps(config | dict(extra_config or {}), indent=2, sort_keys=True)
    (path / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def read_folder(path: Path) -> Checkpoint:
    """Read a BERT that transformers or `write_folder` wrote: config.json and model.safetensors.

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
        tensors = load_file(weights_file)
    except SafetensorError as error:
        raise CheckpointError(f"{weights_file} is damaged: {error}; fetch it again") from error
    return from_huggingface(tensors, config)


def load_folder(
    path: Path, generator: torch.Generator | None = None
) -> tuple[BertForPreTraining, Checkpoint]:
    """Build the model of a folder; heads that it lacks are initialised from `generator`."""
    checkpoint = read_folder(path)
    model = BertForPreTraining(checkpoint.config)
    init_weights(model, generator)
    model.load_state_dict(checkpoint.state_dict, strict=False)
    return model, checkpoint
