"""Weights and configuration in transformers' BERT layout, both ways and without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.huggingface_files import CONFIG_FILE, CheckpointError, read_files, write_files
from model.huggingface_names import (
    modern_names,
    pretraining_names,
    to_our_names,
    to_their_names,
)

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "config_from_huggingface",
    "config_to_huggingface",
    "from_huggingface",
    "load_folder",
    "read_folder",
    "to_huggingface",
    "write_folder",
]

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

_DECODER_WEIGHT = "cls.predictions.decoder.weight"
_DECODER_BIAS = "cls.predictions.decoder.bias"


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
    names = pretraining_names(config)
    if state_dict.keys() != names.keys():
        missing = sorted(names.keys() - state_dict.keys())
        surplus = sorted(state_dict.keys() - names.keys())
        raise CheckpointError(
            f"these are not the weights of a BertForPreTraining of this config: "
            f"missing {missing or 'none'}, left over {surplus or 'none'}; "
            "pass model.state_dict() of the unwrapped model"
        )
    return to_their_names(state_dict, names), config_to_huggingface(config)


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
    theirs = modern_names(tensors)
    _untie(theirs)
    nsp = "bert.pooler.dense.weight" in theirs or "cls.seq_relationship.weight" in theirs
    ours = config_from_huggingface(config, nsp=nsp)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in BertForPreTraining(ours).named_parameters()}
    names = pretraining_names(ours)
    state = to_our_names(theirs, names, shapes)
    missing = sorted(names.keys() - state.keys())
    used = {source for name in state for source in names[name]}
    return Checkpoint(state, ours, tuple(missing), tuple(sorted(theirs.keys() - used)))


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
    write_files(path, tensors, config | dict(extra_config or {}))


def read_folder(path: Path) -> Checkpoint:
    """Read a BERT that transformers or `write_folder` wrote: config.json and model.safetensors.

    Raises:
        CheckpointError: as of `read_files` and `from_huggingface`.
    """
    return from_huggingface(*read_files(path))


def load_folder(
    path: Path, generator: torch.Generator | None = None
) -> tuple[BertForPreTraining, Checkpoint]:
    """Build the model of a folder; heads that it lacks are initialised from `generator`."""
    checkpoint = read_folder(path)
    model = BertForPreTraining(checkpoint.config)
    init_weights(model, generator)
    model.load_state_dict(checkpoint.state_dict, strict=False)
    return model, checkpoint
