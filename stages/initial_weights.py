"""Given weights (`train.init_from`) as a run of ours starts from them."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model.config import BertConfig
from model.huggingface import CheckpointError, read_folder
from pipeline.stage import StageError
from stages.given_weights import LAYOUTS, check_tokens, find_weights
from stages.training.start import drawn_weights

HEADS = ("mlm.", "pooler.", "nsp.")
"""Beginnings of the names of what a given model may lack, and a run may do without."""


def initial_weights(
    given: str, base: Path, config: BertConfig, tokens: tuple[str, ...], seed: int
) -> tuple[dict[str, Tensor], list[str]]:
    """All weights of a model of `config`, from a folder and, for heads it lacks, from the seed.

    Args:
        given: `train.init_from`.
        base: what a relative path is from.
        config: the run's model.
        tokens: the run's vocabulary.
        seed: of the run.

    Returns:
        Float32 tensors by name, on CPU, and lines that say what was not taken over.

    Raises:
        StageError: the weights do not fit.
        UserError: the folder is not as it was when the run was planned.
    """
    found = find_weights(given, base)
    check_tokens(found, tokens, given)
    try:
        if found.layout == "transformers":
            there = read_folder(found.folder).state_dict
        else:
            there = load_file(found.weights)
    except (CheckpointError, SafetensorError, OSError) as error:
        raise StageError(f"train.init_from={given}: {error}") from None
    weights = drawn_weights(config, seed)
    missing = sorted(weights.keys() - there.keys())
    beyond = sorted(there.keys() - weights.keys())
    wrong = [name for name in (*missing, *beyond) if not name.startswith(HEADS)]
    wrong += [n for n in weights.keys() & there.keys() if weights[n].shape != there[n].shape]
    if wrong:
        shapes = {
            "the run": weights[wrong[0]].shape if wrong[0] in weights else None,
            "the folder": there[wrong[0]].shape if wrong[0] in there else None,
        }
        said = ", ".join(
            f"{whose} has {'none' if shape is None else tuple(shape)}"
            for whose, shape in shapes.items()
        )
        raise StageError(
            f"train.init_from={given} does not fit the model: {wrong[0]}: {said}. Check the group "
            f"model against {LAYOUTS[found.layout][0]}"
        )
    notices = []
    if missing:
        notices.append(f"{given} has no {', '.join(missing)}: drawn from the seed")
    if beyond:
        notices.append(f"{given} has {', '.join(beyond)} beyond this objective: left out")
    return {name: there.get(name, drawn).float() for name, drawn in weights.items()}, notices
