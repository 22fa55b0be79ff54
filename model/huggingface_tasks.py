"""Models of tasks in the layout of transformers' AutoModelFor..., both ways and without loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import BertConfig
from model.huggingface import config_from_huggingface, config_to_huggingface
from model.huggingface_files import CONFIG_FILE, CheckpointError, read_files, write_files
from model.huggingface_names import (
    TOKEN_TABLE,
    Names,
    encoder_names,
    modern_names,
    module_names,
    to_our_names,
    to_their_names,
)
from model.task_heads import BertForTask, TaskKind
from model.task_start import TaskStart, parameter_shapes

ARCHITECTURES: dict[TaskKind, str] = {
    "sequence": "BertForSequenceClassification",
    "token": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}
_HEAD_MODULES: dict[TaskKind, dict[str, str]] = {
    "sequence": {"head.pooler.dense": "bert.pooler.dense", "head.classifier": "classifier"},
    "token": {"head.classifier": "classifier"},
    "span": {"head.scorer": "qa_outputs"},
}


def _task_names(config: BertConfig, kind: TaskKind) -> Names:
    return encoder_names(config) | module_names(_HEAD_MODULES[kind])


def _check_labels(labels: Sequence[str], model: BertForTask) -> None:
    wanted = 0 if model.kind == "span" else model.classes
    if len(labels) != wanted or len(set(labels)) != len(labels):
        raise ValueError(
            f"a model of the kind {model.kind!r} with {model.classes} classes has {wanted} "
            f"different labels, not {list(labels)}"
        )


def task_config_to_huggingface(model: BertForTask, labels: Sequence[str]) -> dict[str, Any]:
    """Return config.json's values for a task's model.

    Args:
        model: of any device.
        labels: name of each class, in order; one name for regression, none for a "span".

    Raises:
        ValueError: the labels are not as many as the classes, or one is there twice.
    """
    _check_labels(labels, model)
    values = config_to_huggingface(model.config) | {"architectures": [ARCHITECTURES[model.kind]]}
    if model.kind == "span":
        return values
    values |= {
        "classifier_dropout": model.head_dropout,
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if model.kind == "sequence":
        single = "regression" if model.classes == 1 else "single_label_classification"
        values["problem_type"] = single
    return values


def task_tensors_to_huggingface(model: BertForTask) -> dict[str, Tensor]:
    """Return a task's weights under transformers' names.

    Args:
        model: unwrapped (no DDP, no compile wrapper), on any device.
    """
    return to_their_names(model.state_dict(), _task_names(model.config, model.kind))


def write_task_folder(
    path: Path,
    model: BertForTask,
    labels: Sequence[str] = (),
    extra_config: Mapping[str, Any] | None = None,
) -> None:
    """Write model.safetensors and config.json, so that the AutoModelFor... of the task opens them.

    Args:
        path: folder, made where it is not there; files of these two names in it are replaced.
        model: unwrapped (no DDP, no compile wrapper), on any device.
        labels: as of `task_config_to_huggingface`.
        extra_config: more keys for config.json.

    Raises:
        ValueError: as of `task_config_to_huggingface`.
    """
    values = task_config_to_huggingface(model, labels) | dict(extra_config or {})
    write_files(path, task_tensors_to_huggingface(model), values)


@dataclass(frozen=True)
class TaskCheckpoint:
    """A fine-tuned model, read.

    Attributes:
        state_dict: float32 tensors under the names of `BertForTask`, all of them.
        config: the encoder's.
        kind: of the task.
        labels: name of each class; one for regression, none for a "span".
        head_dropout: of the head.
        left: tensors that have no place here.
    """

    state_dict: dict[str, Tensor]
    config: BertConfig
    kind: TaskKind
    labels: tuple[str, ...]
    head_dropout: float
    left: tuple[str, ...]

    @property
    def classes(self) -> int:
        """As of `BertForTask`."""
        return 2 if self.kind == "span" else len(self.labels)


def task_kind(values: Mapping[str, Any]) -> TaskKind | None:
    """The kind of task that config.json's values are of; None for other models."""
    named = values.get("architectures") or []
    return next((kind for kind, name in ARCHITECTURES.items() if name in named), None)


def task_labels(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the classes in config.json's values, in their order.

    Raises:
        CheckpointError: `id2label` does not number them from 0 up.
    """
    named = values.get("id2label")
    if named is None:
        # As transformers names them; it leaves out what says no more than this.
        return tuple(f"LABEL_{index}" for index in range(values.get("num_labels") or 2))
    by_id = {str(index): str(label) for index, label in named.items()}
    wanted = [str(index) for index in range(len(by_id))]
    if by_id.keys() != set(wanted):
        raise CheckpointError(
            f"{CONFIG_FILE}: id2label must number {len(by_id)} labels from 0 up, and its keys are "
            f"{', '.join(by_id)}"
        )
    return tuple(by_id[index] for index in wanted)


def task_from_huggingface(
    tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> TaskCheckpoint:
    """Convert the weights of a fine-tuned model of transformers, all of which must be there.

    Raises:
        CheckpointError: it is no BERT for one of the three kinds of task, or does not fit its
            config.json.
    """
    kind = task_kind(values)
    if kind is None:
        raise CheckpointError(
            f"{CONFIG_FILE} says architectures={values.get('architectures')!r}, which is no "
            f"fine-tuned model: give one of {', '.join(ARCHITECTURES.values())}"
        )
    labels = () if kind == "span" else task_labels(values)
    problem = values.get("problem_type")
    if kind == "sequence" and problem not in (
        None,
        "regression" if len(labels) == 1 else "single_label_classification",
    ):
        raise CheckpointError(
            f"{CONFIG_FILE} says problem_type={problem!r} with {len(labels)} labels: this model "
            "has one class a text of several, or regression with one label"
        )
    config = config_from_huggingface(values, nsp=False)
    dropout = values.get("classifier_dropout")
    head_dropout = config.hidden_dropout if dropout is None or kind == "span" else float(dropout)
    theirs = modern_names(tensors)
    names = _task_names(config, kind)
    state = to_our_names(theirs, names, _shapes(config, kind, len(labels)))
    missing = [names[name][0] for name in names if name not in state]
    if missing:
        raise CheckpointError(
            f"{missing[0]} is not in the checkpoint: it is no whole {ARCHITECTURES[kind]}, which "
            f"{CONFIG_FILE} says it is"
        )
    left = _left(theirs, names, state)
    return TaskCheckpoint(state, config, kind, labels, head_dropout, left)


def load_task_folder(path: Path) -> tuple[BertForTask, TaskCheckpoint]:
    """Build the fine-tuned model that lies in a folder of transformers' layout.

    Raises:
        CheckpointError: as of `read_files` and `task_from_huggingface`.
    """
    found = task_from_huggingface(*read_files(path))
    model = BertForTask(found.config, found.kind, found.classes, found.head_dropout)
    model.load_state_dict(found.state_dict)
    return model, found


def start_from_huggingface(
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
    kind: TaskKind,
    labels: Sequence[str] = (),
) -> TaskStart:
    """Take from any BERT of transformers what a task can begin with.

    Accepts what `from_huggingface` accepts, and decoders that are not tied, which no task needs.
    A pooler is taken for a "sequence". The last layer of a head is taken only from a model of the
    same kind with the same labels in the same order: otherwise its rows would mean other classes.

    Args:
        tensors, values: of `read_files`.
        kind: of the new task.
        labels: name of each of its classes; none for a "span".

    Raises:
        CheckpointError: a part of the encoder is missing, or a shape does not fit the config.
    """
    config = config_from_huggingface(values, nsp=False)
    theirs = modern_names(tensors)
    # Files that hold tied tensors once may hold them under the decoder's name.
    decoder = theirs.get("cls.predictions.decoder.weight")
    if decoder is not None and TOKEN_TABLE not in theirs:
        theirs[TOKEN_TABLE] = decoder
        del theirs["cls.predictions.decoder.weight"]
    shapes = _shapes(config, kind, len(labels))
    names = _task_names(config, kind)
    same = task_kind(values) == kind and (kind == "span" or task_labels(values) == tuple(labels))
    wanted = {
        name: sources
        for name, sources in names.items()
        if same or name.startswith(("bert.", "head.pooler."))
    }
    state = to_our_names(theirs, wanted, shapes)
    drawn = tuple(name for name in shapes if name not in state)
    ordered = {name: state[name] for name in shapes if name in state}
    return TaskStart(ordered, config, drawn, _left(theirs, names, state))


def _shapes(config: BertConfig, kind: TaskKind, labels: int) -> dict[str, torch.Size]:
    return parameter_shapes(config, kind, 2 if kind == "span" else labels)


def _left(
    theirs: Mapping[str, Tensor], names: Names, state: Mapping[str, Tensor]
) -> tuple[str, ...]:
    used = {source for name in state for source in names[name]}
    return tuple(sorted(theirs.keys() - used))
