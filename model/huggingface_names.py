"""Names of parameters here and in transformers' BERT, and tensors renamed both ways."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from model.config import BertConfig
from model.huggingface_files import CONFIG_FILE, CheckpointError

TOKEN_TABLE = "bert.embeddings.word_embeddings.weight"

_TABLES = {
    "bert.embeddings.token.weight": TOKEN_TABLE,
    "bert.embeddings.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
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
_MASKED_WORD_MODULES = {
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
}
_NEXT_SENTENCE_MODULES = {
    "pooler.dense": "bert.pooler.dense",
    "nsp.classifier": "cls.seq_relationship",
}

Names = dict[str, tuple[str, ...]]
"""Name here -> names there; three of them where query, key and value are fused."""


def module_names(modules: Mapping[str, str]) -> Names:
    """Names of the weight and the bias of modules, given by their names here and there."""
    return {
        f"{here}.{kind}": (f"{there}.{kind}",)
        for here, there in modules.items()
        for kind in ("weight", "bias")
    }


def encoder_names(config: BertConfig) -> Names:
    """Names of the parameters of `BertModel` where it is called `bert`."""
    modules = {"bert.embeddings.norm": "bert.embeddings.LayerNorm"}
    names: Names = {ours: (theirs,) for ours, theirs in _TABLES.items()}
    for index in range(config.num_layers):
        ours, theirs = f"bert.encoder.layers.{index}", f"bert.encoder.layer.{index}"
        modules |= {f"{ours}.{here}": f"{theirs}.{there}" for here, there in _LAYER_MODULES.items()}
        for kind in ("weight", "bias"):
            names[f"{ours}.attention.qkv.{kind}"] = tuple(
                f"{theirs}.attention.self.{part}.{kind}" for part in _QKV
            )
    return names | module_names(modules)


def pretraining_names(config: BertConfig) -> Names:
    """Names of the parameters of `BertForPreTraining`."""
    modules = _MASKED_WORD_MODULES | (_NEXT_SENTENCE_MODULES if config.nsp else {})
    heads: Names = {"mlm.bias": ("cls.predictions.bias",)} | module_names(modules)
    return encoder_names(config) | heads


def modern_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give every tensor the name that a current file of a BERT with heads has for it."""
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


def to_their_names(state_dict: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    """Rename and cut the tensors that `names` lists; contiguous copies on CPU."""
    tensors = {}
    for ours, theirs in names.items():
        tensor = state_dict[ours].detach().cpu()
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            # A copy: safetensors refuses tensors that share memory.
            tensors[name] = part.clone(memory_format=torch.contiguous_format)
    return tensors


def to_our_names(
    theirs: Mapping[str, Tensor], names: Names, shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Rename and join the tensors that `names` lists and `theirs` has, as float32.

    Args:
        theirs: under modern names.
        names: of a model.
        shapes: of its parameters, by their names here.

    Raises:
        CheckpointError: a part of the encoder is missing, or a shape is not as it should be.
    """
    state: dict[str, Tensor] = {}
    for name, sources in names.items():
        absent = [source for source in sources if source not in theirs]
        if absent and name.startswith("bert."):
            raise CheckpointError(
                f"{absent[0]} is not in the checkpoint: it is no BERT encoder of as many layers "
                f"as {CONFIG_FILE} says; check num_hidden_layers"
            )
        if absent:
            continue
        tensor = torch.cat([theirs[source].to(torch.float32) for source in sources])
        if tensor.shape != shapes[name]:
            raise CheckpointError(
                f"{' + '.join(sources)} has shape {tuple(tensor.shape)}, and {CONFIG_FILE} asks "
                f"for {tuple(shapes[name])}: the two files do not belong together"
            )
        state[name] = tensor
    return state
