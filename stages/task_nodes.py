"""The node of a task's data, for the catalogue. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.stage import Node, RawInput, Stage
from stages.config import Config
from stages.task_config import TaskConfig

_SEQUENCES = ("format", "encoding", "glue", "text", "text_b", "label", "id")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "classification": (*_SEQUENCES, "labels", "positive"),
    "regression": _SEQUENCES,
    "tagging": (
        "format", "encoding", "words", "tags", "id", "words_column", "tags_column", "separator",
        "comment", "labels", "scheme", "overlap",
    ),
    "answers": ("encoding", "overlap", "max_question_length", "max_answer_length"),
}  # fmt: skip
"""What acts for each objective, beside those of all."""


def _text(*names: str) -> tuple[str, ...]:
    return tuple(f"stages.text.{name}" for name in names)


TASK = Stage(
    name="task",
    version=1,
    run="stages.task:run",
    modules=(
        "stages.task",
        "stages.task_reading",
        "stages.task_report",
        "stages.task_source",
        "stages.given_weights",
        "model.pickles",
        "stages.vocabulary_source",
        "stages.vocabulary_files",
        "stages.tables",
        *_text("tasks"),
        *_text("task_pieces", "task_words", "task_spans", "task_tables", "windows"),
        *_text("piece_offsets", "existing", "parity", "buffers", "special_tokens", "word_counts"),
        *_text("words", "engines", "wordpiece", "tokenizer_files"),
        *_text("columns", "delimited", "encodings", "folders", "listing", "records", "streams"),
        *_text("uris"),
    ),
    libraries=("tokenizers",),
    recorded=("numpy", "pyarrow"),
    needs_ray=False,
)


def task_node(config: Config, name: str, task: TaskConfig) -> Node:
    """The node `task/NAME`.

    Args:
        config: the run's.
        name: of the task.
        task: one of `config.resolved_tasks()`.
    """
    whole = task.model_dump(mode="json")
    own = config.tasks[name].init_from is not None
    settings = {
        "name": name,
        "data": config.finetune.data,
        "init_from": task.init_from,
        "init_from_key": f"tasks.{name}.init_from" if own else "finetune.init_from",
        **{key: whole[key] for key in ("train", "dev", "max_unusable_share")},
        **{key: whole[key] for key in ("max_length", "freeze_layers")},
    }
    return Node(
        name=f"task/{name}",
        stage=TASK,
        # The listing stands for the files, and for the vocabulary of a model that is given.
        config={
            "task": {
                key: whole[key]
                for key in ("objective", "max_length", "metric", *COLUMNS[task.objective])
            },
            "vocabulary": "vocab" if task.init_from is None else "listed",
        },
        settings={
            "task": settings,
            "init_from": task.init_from,
            "speed": {"tokenizer": config.speed.tokenizer},
        },
        inputs={"vocab": "vocab"} if task.init_from is None else {},
        raw=_listing(settings, name),
    )


def _listing(settings: Mapping[str, Any], name: str) -> Callable[[], RawInput]:
    def listing() -> RawInput:
        from stages.task_source import list_task

        return list_task(settings, name, Path.cwd())

    return listing
