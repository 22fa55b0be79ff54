"""Models to predict with: a folder of ours or of transformers, its tokeniser, what it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from model.bert import BertForPreTraining
from model.config import BertConfig
from model.huggingface import from_huggingface
from model.huggingface_files import CheckpointError, read_files
from model.huggingface_tasks import task_from_huggingface, task_kind, task_labels
from model.pickles import is_pickle, pickle_message
from model.task_heads import BertForTask
from pipeline.artifact import MANIFEST
from pipeline.stage import UserError
from stages.given_weights import LAYOUTS, PICKLES
from stages.text.existing import check_case, read_existing
from stages.text.task_answers import MAX_ANSWER_LENGTH
from stages.text.task_spans import MAX_QUESTION_LENGTH
from stages.text.tasks.tags import detect_scheme
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

Objective = Literal["classification", "regression", "tagging", "answers", "fill_mask", "embed"]
"""What a model is for; the last two: any BERT with its masked word head, and one without."""

TASK_KEY = "clozeline"
"""Key in config.json under which our export says what transformers has no key for."""

OUR_SHAPE, OUR_WEIGHTS = "model.json", "weights.safetensors"
"""Of the data folder of a pretraining artifact."""

SENTENCES_FILE = "sentence_bert_config.json"
DEFAULT_LENGTH = 384
CLASSIFICATION_LENGTH = 128
DEFAULT_OVERLAP = 128
TABLE_ROUNDING = 128
"""Token tables are filled up to a multiple of at most this for speed."""


@dataclass(frozen=True)
class PredictionTask:
    """What a model is for, and how its input is cut.

    Attributes:
        objective: see `Objective`.
        labels: name of each class; one of regression, none of others.
        max_length: positions of a sequence, special tokens included.
        overlap: pieces that neighbouring windows of a long text share.
        max_question_length: pieces of a question; a longer one loses its end.
        max_answer_length: pieces of an answer.
        null_threshold: an answer whose null margin is above it is none; None: all are given.
        scheme: how tags mark entities ("plain": they mark none); None but for tagging.
        embedding_length: positions of a text whose vector is asked for.
        name: of the task, where its folder says one.
    """

    objective: Objective
    labels: tuple[str, ...]
    max_length: int
    overlap: int
    max_question_length: int
    max_answer_length: int
    null_threshold: float | None
    scheme: str | None
    embedding_length: int
    name: str | None = None


@dataclass(frozen=True)
class Loaded:
    """A model, its tokeniser and its task.

    Attributes:
        model: a `BertForTask` for the first four objectives.
    """

    model: BertForTask | BertForPreTraining
    tokenizer: Tokenizer
    task: PredictionTask


def load_model(folder: Path) -> Loaded:
    """Load a folder: transformers' layout, fine-tuned or not, or a pretraining artifact's data.

    The folder of a local artifact (with a manifest) stands for its data folder.

    Raises:
        UserError: no such folder, no weights, pickled ones, no vocabulary or one that does not
            fit, another kind of model.
    """
    folder = data_folder(folder)
    model: BertForTask | BertForPreTraining
    try:
        if (folder / OUR_SHAPE).is_file() and (folder / OUR_WEIGHTS).is_file():
            if is_pickle(folder / OUR_WEIGHTS):
                raise UserError(pickle_message(folder / OUR_WEIGHTS))
            model, fills, said = _ours(folder)
        else:
            _require_weights(folder)
            tensors, said = read_files(folder)
            if task_kind(said) is None:
                model, fills = _pretrained(tensors, said)
            else:
                model, fills = _fine_tuned(tensors, said), False
    except CheckpointError as error:
        raise UserError(str(error)) from None
    except SafetensorError as error:
        raise UserError(f"{folder / OUR_WEIGHTS} is damaged: {error}") from None
    tokenizer = read_tokenizer(folder, model.config.vocab_size)
    return Loaded(model, tokenizer, read_task(folder, model, fills, said))


def _require_weights(folder: Path) -> None:
    """Raise `UserError`, naming both layouts, where neither is whole and nothing is pickled."""
    layouts = LAYOUTS.values()
    if any(path.suffix in PICKLES for path in folder.iterdir()):
        return  # `read_files` says why they are not read
    if any(all((folder / name).is_file() for name in layout) for layout in layouts):
        return
    absent = next((w for shape, w in layouts if (folder / shape).is_file()), "config.json")
    wanted = " or ".join(" and ".join(layout) for layout in layouts)
    raise UserError(f"{folder / absent} is not there: the folder of a model holds {wanted}")


def data_folder(folder: Path) -> Path:
    """The folder itself, or where it is an artifact's, the one that holds its files.

    Raises:
        UserError: it is not there.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder, so there is no model in it")
    manifest = folder / MANIFEST
    if manifest.is_file():
        return folder / str(_json(manifest).get("generation", "data"))
    return folder


def read_tokenizer(folder: Path, table: int) -> Tokenizer:
    """The tokeniser of a model's folder; `[MASK]` in a text is brackets and letters to it.

    Args:
        folder: holds tokenizer.json or vocab.txt.
        table: rows of the model's token table.

    Raises:
        UserError: there is none, or it does not fit the table.
    """
    try:
        found = read_existing(folder)
    except (ValueError, OSError) as error:
        raise UserError(
            f"{folder}: a model is of use only with its own vocabulary. {error}: put its vocab.txt "
            "beside the weights"
        ) from None
    if not len(found.tokens) <= table < len(found.tokens) + TABLE_ROUNDING:
        raise UserError(
            f"{folder}: its vocabulary does not fit: {found.files[0]} has {len(found.tokens):,} "
            f"entries, and the model's token table {table:,} rows. Put the vocabulary that the "
            "model was trained with beside the weights"
        )
    # transformers lower-cases where the files say nothing; a cased vocabulary shows that it is one.
    otherwise = Normalisation()
    if check_case(found.tokens, otherwise):
        otherwise = Normalisation(lowercase=False, strip_accents=False)
    return Tokenizer(found.tokens, found.normalisation(otherwise), found.max_word_characters or 100)


def _ours(folder: Path) -> tuple[BertForPreTraining, bool, Mapping[str, Any]]:
    try:
        model = BertForPreTraining(BertConfig(**_json(folder / OUR_SHAPE)))
        model.load_state_dict(load_file(folder / OUR_WEIGHTS))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{folder}: {OUR_WEIGHTS} does not fit {OUR_SHAPE}: {str(error).splitlines()[0]}"
        ) from None
    return model, True, {}


def _pretrained(
    tensors: Mapping[str, torch.Tensor], said: Mapping[str, Any]
) -> tuple[BertForPreTraining, bool]:
    found = from_huggingface(tensors, said)
    model = BertForPreTraining(found.config)
    # Heads that are not there are never asked.
    model.load_state_dict(found.state_dict, strict=False)
    return model, not any(name.startswith("mlm.") for name in found.missing)


def _fine_tuned(tensors: Mapping[str, torch.Tensor], said: Mapping[str, Any]) -> BertForTask:
    found = task_from_huggingface(tensors, said)
    model = BertForTask(found.config, found.kind, found.classes, found.head_dropout)
    model.load_state_dict(found.state_dict)
    return model


def read_task(
    folder: Path,
    model: BertForTask | BertForPreTraining,
    fills: bool,
    said: Mapping[str, Any],
) -> PredictionTask:
    """The task of a model, from what config.json says; defaults where it says nothing.

    Args:
        folder: of the model.
        model: built from it.
        fills: whether it has a masked word head.
        said: the values of config.json.

    Raises:
        UserError: values that the model or the task cannot have.
    """
    own = said.get(TASK_KEY) or {}
    if not isinstance(own, Mapping):
        raise UserError(f"{folder}/config.json: {TASK_KEY} must hold an object")
    positions = model.config.max_position_embeddings
    objective = _objective(model, fills)
    labels = task_labels(said) if isinstance(model, BertForTask) and model.kind != "span" else ()
    length = CLASSIFICATION_LENGTH if objective in ("classification", "regression") else None
    if not isinstance(model, BertForTask):
        length = positions
    max_length = _number(folder, own, "max_length", min(length or DEFAULT_LENGTH, positions))
    # Half of what is left for a context, if a question of the usual length leaves too little.
    question = min(MAX_QUESTION_LENGTH, max(0, (max_length - 3) // 2))
    question = _number(folder, own, "max_question_length", question, 0)
    room = max_length - 2 if objective != "answers" else max_length - 3 - question
    overlap = _number(folder, own, "overlap", min(DEFAULT_OVERLAP, max(0, room // 2)), 0)
    if not 4 <= max_length <= positions:
        raise UserError(
            f"{folder}/config.json: {TASK_KEY}.max_length={max_length} must be at least 4 and at "
            f"most the {positions} positions of the model"
        )
    if overlap >= room and objective in ("tagging", "answers"):
        raise UserError(
            f"{folder}/config.json: {TASK_KEY}.overlap={overlap} must be below the {max(0, room)} "
            "pieces of a window"
        )
    threshold = own.get("null_threshold")
    if threshold is not None and not isinstance(threshold, int | float):
        raise UserError(f"{folder}/config.json: {TASK_KEY}.null_threshold must be a number")
    scheme = own.get("scheme") or detect_scheme([labels])
    return PredictionTask(
        objective=objective,
        labels=labels,
        max_length=max_length,
        overlap=overlap,
        max_question_length=question,
        max_answer_length=_number(folder, own, "max_answer_length", MAX_ANSWER_LENGTH),
        null_threshold=None if threshold is None else float(threshold),
        scheme=str(scheme) if objective == "tagging" else None,
        embedding_length=min(positions, _sentence_length(folder) or positions),
        name=str(own["task"]) if own.get("task") else None,
    )


def _objective(model: BertForTask | BertForPreTraining, fills: bool) -> Objective:
    if not isinstance(model, BertForTask):
        return "fill_mask" if fills else "embed"
    if model.kind == "sequence":
        return "regression" if model.classes == 1 else "classification"
    return "tagging" if model.kind == "token" else "answers"


def _sentence_length(folder: Path) -> int | None:
    """The longest text that sentence-transformers reads with this model, where it is told."""
    file = folder / SENTENCES_FILE
    length = _json(file).get("max_seq_length") if file.is_file() else None
    return length if isinstance(length, int) and length >= 4 else None


def _number(
    folder: Path, values: Mapping[str, Any], key: str, otherwise: int, least: int = 1
) -> int:
    value = values.get(key)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(
            f"{folder}/config.json: {TASK_KEY}.{key}={value!r} must be a whole number of "
            f"{least} or more"
        )
    return value


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no JSON object")
    return content
