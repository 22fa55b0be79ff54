"""What a user may set of fine-tuning: the group `finetune`, and the tasks under `tasks`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from pipeline.config import Group
from stages.config_types import Count, Dropout, PositiveInt, Share
from stages.corpus_config import Encoding

Objective = Literal["classification", "regression", "tagging", "answers"]
GlueLayout = Literal["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]
Format = Literal["auto", "tsv", "csv", "jsonl", "parquet", "arrow", "conll", "squad"]
Scheme = Literal["plain", "IO", "IOB1", "BIO", "BIOES", "BILOU"]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Decay = Annotated[float, Field(gt=0.0, le=1.0)]
Seeds = Annotated[int, Field(ge=1, le=20)]
Length = Annotated[int, Field(ge=8)]
Text = Annotated[str, Field(min_length=1)]

TASK_NAME = re.compile("[a-z0-9_-]+")

REGRESSION_LAYOUTS = ("stsb",)
"""Layouts of GLUE whose labels are numbers."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": (
        "accuracy", "f1", "precision", "recall", "f1/macro", "f1/micro", "matthews",
    ),
    "regression": ("pearson", "spearman", "mean_squared_error"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "answers": ("f1", "exact"),
}  # fmt: skip
"""Figures that a task can be judged by; the first is the default."""

TABLES = ("auto", "tsv", "csv", "jsonl", "parquet", "arrow")
FORMATS: Mapping[str, tuple[str, ...]] = {
    "classification": TABLES,
    "regression": TABLES,
    "tagging": ("auto", "conll", "jsonl", "parquet", "arrow"),
    "answers": ("auto", "squad"),
}
"""What the files of a task can be."""

ONLY_OF: Mapping[str, tuple[str, ...]] = {
    "glue": ("classification", "regression"),
    "text": ("classification", "regression"),
    "text_b": ("classification", "regression"),
    "label": ("classification", "regression"),
    "words": ("tagging",),
    "tags": ("tagging",),
    "words_column": ("tagging",),
    "scheme": ("tagging",),
    "labels": ("classification", "tagging"),
    "positive": ("classification",),
    "overlap": ("tagging", "answers"),
}
"""Keys that only some objectives have."""

LENGTHS = {"classification": 128, "regression": 128, "tagging": 128, "answers": 384}
OVERLAPS = {"tagging": 32, "answers": 128}
_SPECIALS = {"tagging": 2, "answers": 3}


class FinetuneConfig(Group):
    """Fine-tuning: what holds for each task that says nothing else."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    data: Text = Field("tasks", description="Folder that relative paths of tasks start from.")
    init_from: Text | None = Field(
        None,
        description="The encoder to start from. null: this run's pretraining; or a folder: an "
        "export, a pretrain artifact's data, or any BERT as transformers writes it, with its own "
        "vocabulary.",
    )
    epochs: PositiveInt = Field(3, description="Passes over the training rows.")
    global_batch_size: PositiveInt = Field(
        32, description="Features (a row, or a window of a long one) a step, over all workers."
    )
    learning_rate: Positive = Field(5e-5, description="Peak learning rate.")
    warmup_share: Share = Field(0.1, description="Share of the steps with linear warm-up.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="After warm-up: down to zero, or constant."
    )
    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="With decay on matrices only. lamb: for large batches."
    )
    weight_decay: NotNegative = Field(0.01, description="Decoupled decay.")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="First moment.")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.999, description="Second moment.")
    epsilon: Positive = Field(1e-6, description="Of the optimiser.")
    clip_norm: Positive | None = Field(
        1.0, description="Largest global gradient norm; null: no clipping."
    )
    precision: Literal["bf16", "tf32", "float32"] = Field(
        "bf16", description="Of matrix products, as train.precision."
    )
    layer_decay: Decay = Field(
        1.0,
        description="Learning rate of a block as a share of that of the block above; the head has "
        "the full one. 1: all alike.",
    )
    freeze_embeddings: bool = Field(False, description="Embeddings stay as they are.")
    freeze_layers: Count = Field(
        0, description="So many lowest blocks stay as they are, and the embeddings too."
    )
    freeze_encoder: bool = Field(False, description="Only the head (and a pooler) is trained.")
    head_dropout: Dropout | None = Field(
        None, description="Before the head; null: as the model's hidden dropout."
    )
    dropout: Dropout | None = Field(
        None, description="Of the encoder, hidden and attention; null: the model's own."
    )
    seeds: Seeds = Field(
        1,
        description="Runs that differ in their seed alone (head, order, dropout): mean and "
        "deviation of each figure are reported, and the best model is kept.",
    )
    keep: Literal["best", "last"] = Field(
        "best", description="Weights of the best evaluation by the task's metric, or the last."
    )
    patience: PositiveInt | None = Field(
        None, description="Evaluations without gain before training stops; null: never early."
    )
    evaluate_every_steps: PositiveInt | None = Field(
        None, description="Figures on dev while training; null: after each epoch."
    )
    checkpoint_every_steps: PositiveInt = Field(500, description="Changes no result.")
    log_every_steps: PositiveInt = Field(20, description="Changes no result.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest kept. Changes no result.")
    max_length: Length | None = Field(
        None,
        description="Positions of a feature, special tokens included; null: by objective, "
        "128 and for answers 384.",
    )
    max_unusable_share: Share = Field(
        0.01,
        description="Rows of train or dev that cannot be used are counted by reason and left out; "
        "more than this share fails. Changes no result.",
    )
    onnx: bool = Field(False, description="Write model.onnx beside the weights (extra onnx).")
    register_: bool = Field(
        True, alias="register", description="Register the model in MLflow. Changes no result."
    )


def _names(value: Any) -> Any:
    """Names of classes: YAML reads 0 and true as what they look like."""
    if not isinstance(value, (list, tuple)):
        return value
    return [
        str(name).lower() if isinstance(name, bool) else str(name) if type(name) is int else name
        for name in value
    ]


def _name(value: Any) -> Any:
    return _names([value])[0]


class TaskConfig(Group):
    """One task: its files, what they hold, and what it sets differently from `finetune`."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    objective: Objective = Field(
        description="classification: a class for a text or a pair of texts; regression: a number; "
        "tagging: a class for each word; answers: the part of a context that answers a question."
    )
    train: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        description="Files to learn from; relative ones are in finetune.data."
    )
    dev: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        description="Files to measure on, and to choose the best weights by."
    )
    format: Format = Field(
        "auto",
        description="tsv, csv, jsonl, parquet, arrow: a row of named columns each; conll: a word "
        "and its tag a line; squad: SQuAD's JSON (1.1 and 2.0); auto: by objective and ending.",
    )
    encoding: Encoding = Field(
        "utf-8", description="Of text files; a BOM wins over it; detect: by each file's content."
    )
    glue: GlueLayout | None = Field(
        None, description="Columns as in the files of this task of GLUE, instead of those below."
    )
    text: Text | None = Field(None, description="Column of the text, or first text; null: text.")
    text_b: Text | None = Field(None, description="Column of the second text; null: one text.")
    label: Text | None = Field(None, description="Column of the class or number; null: label.")
    id: Text | None = Field(None, description="Column of ids; null: each row's place in its file.")
    words: Text | None = Field(None, description="Tables: column of lists of words; null: words.")
    tags: Text | None = Field(None, description="Tables: column of lists of tags; null: tags.")
    words_column: int | None = Field(
        None, description="CoNLL: column of words, from 0; null: the first that is no number."
    )
    tags_column: int = Field(
        -1, description="CoNLL: column of tags, from 0; from the end where negative."
    )
    separator: Literal["detect", "tab", "space"] = Field(
        "detect", description="CoNLL: between columns."
    )
    comment: str = Field("#", description="CoNLL: what comment lines begin with; empty: none do.")
    scheme: Scheme | None = Field(
        None, description="How tags mark entities (plain: not at all); null: as train shows."
    )
    labels: Annotated[tuple[Text, ...], BeforeValidator(_names)] = Field(
        (),
        description="All classes or tags in their order, rows with others are left out; empty: "
        "those of train.",
    )
    positive: Annotated[Text, BeforeValidator(_name)] | None = Field(
        None, description="Of two classes, that of f1, precision and recall; null: the second."
    )
    metric: Text | None = Field(
        None,
        description="Figure that the task is judged by; null: accuracy, pearson, f1 (tagging; "
        "accuracy where tags are plain), f1 (answers).",
    )
    max_length: Length | None = Field(None, description="null: finetune.max_length.")
    overlap: Count | None = Field(
        None,
        description="Pieces that neighbouring windows of a long row share; null: 32 for tagging, "
        "128 for answers, less where max_length is small.",
    )
    max_question_length: PositiveInt = Field(
        64, description="Answers: pieces of a question; a longer one loses its end."
    )
    max_answer_length: PositiveInt = Field(30, description="Answers: pieces of an answer at most.")
    init_from: Text | None = Field(None, description="null: finetune.init_from.")
    epochs: PositiveInt | None = Field(None, description="null: finetune.epochs.")
    global_batch_size: PositiveInt | None = Field(
        None, description="null: finetune.global_batch_size."
    )
    learning_rate: Positive | None = Field(None, description="null: finetune.learning_rate.")
    warmup_share: Share | None = Field(None, description="null: finetune.warmup_share.")
    schedule: Literal["linear", "cosine", "constant"] | None = Field(
        None, description="null: finetune.schedule."
    )
    weight_decay: NotNegative | None = Field(None, description="null: finetune.weight_decay.")
    layer_decay: Decay | None = Field(None, description="null: finetune.layer_decay.")
    freeze_embeddings: bool | None = Field(None, description="null: finetune.freeze_embeddings.")
    freeze_layers: Count | None = Field(None, description="null: finetune.freeze_layers.")
    freeze_encoder: bool | None = Field(None, description="null: finetune.freeze_encoder.")
    head_dropout: Dropout | None = Field(None, description="null: finetune.head_dropout.")
    dropout: Dropout | None = Field(None, description="null: finetune.dropout.")
    seeds: Seeds | None = Field(None, description="null: finetune.seeds.")
    keep: Literal["best", "last"] | None = Field(None, description="null: finetune.keep.")
    patience: PositiveInt | None = Field(None, description="null: finetune.patience.")
    evaluate_every_steps: PositiveInt | None = Field(
        None, description="null: finetune.evaluate_every_steps."
    )
    max_unusable_share: Share | None = Field(None, description="null: finetune.max_unusable_share.")
    onnx: bool | None = Field(None, description="null: finetune.onnx.")
    register_: bool | None = Field(None, alias="register", description="null: finetune.register.")

    @model_validator(mode="after")
    def _keys_of_the_objective(self) -> Self:
        for key, objectives in ONLY_OF.items():
            if getattr(self, key) not in (None, ()) and self.objective not in objectives:
                raise ValueError(
                    f"{key}={_shown(getattr(self, key))} has no meaning for "
                    f"objective={self.objective}, it is of {' and '.join(objectives)}: leave it "
                    "out, or set another objective"
                )
        known = METRICS[self.objective]
        if self.metric is not None and self.metric not in known:
            raise ValueError(
                f"metric={self.metric} is no figure of objective={self.objective}: set one of "
                f"{', '.join(known)}"
            )
        formats = FORMATS[self.objective]
        if self.format not in formats:
            raise ValueError(
                f"format={self.format} holds nothing for objective={self.objective}: set one of "
                f"{', '.join(formats)}"
            )
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if self.glue is None:
            return self
        own = [key for key in ("text", "text_b", "label") if getattr(self, key) is not None]
        if own:
            raise ValueError(
                f"glue={self.glue} says which columns hold what, and {own[0]}="
                f"{getattr(self, own[0])} too: leave one of them out"
            )
        if self.format not in ("auto", "tsv"):
            raise ValueError(
                f"format={self.format}, and the files of glue={self.glue} are TSV: leave out one "
                "of them"
            )
        numbers = self.glue in REGRESSION_LAYOUTS
        if numbers != (self.objective == "regression"):
            what = "numbers" if numbers else "classes"
            right = "regression" if numbers else "classification"
            raise ValueError(f"the labels of glue={self.glue} are {what}: set objective={right}")
        return self

    @model_validator(mode="after")
    def _labels_are_several(self) -> Self:
        twice = next((name for name in self.labels if self.labels.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"labels: {twice!r} stands twice: leave it out")
        if len(self.labels) == 1:
            raise ValueError(
                f"labels: {self.labels[0]!r} is the only one, and a classifier needs two: name "
                "all, or leave labels out"
            )
        if self.positive is not None and self.labels and self.positive not in self.labels:
            raise ValueError(
                f"positive={self.positive} is not among labels {_shown(self.labels)}: name one of "
                "them"
            )
        return self

    def completed(self, finetune: FinetuneConfig) -> TaskConfig:
        """With what `finetune` says, and defaults of the objective, where it says nothing itself.

        What stays null has null's meaning in `finetune`, or is found in the files (`scheme`), or is
        not of the objective.

        Raises:
            ValueError: lengths that leave no room.
        """
        shared = TaskConfig.model_fields.keys() & FinetuneConfig.model_fields.keys()
        filled = {name: getattr(finetune, name) for name in shared if getattr(self, name) is None}
        length = self.max_length or finetune.max_length or LENGTHS[self.objective]
        filled |= {"max_length": length, "metric": self.metric or METRICS[self.objective][0]}
        if self.objective in OVERLAPS:
            filled["overlap"] = self._overlap(length)
        return self.model_copy(update=filled)

    def _overlap(self, length: int) -> int:
        room = length - _SPECIALS[self.objective]
        question = ""
        if self.objective == "answers":
            room -= self.max_question_length
            question = f" and a question of max_question_length={self.max_question_length}"
        overlap = self.overlap
        if overlap is None:
            overlap = min(OVERLAPS[self.objective], max(room // 2, 0))
        if not overlap < room:
            raise ValueError(
                f"max_length={length} leaves {max(room, 0)} pieces a window beside special tokens"
                f"{question}, and overlap={overlap} of them are shared: raise max_length or lower "
                f"{'max_question_length' if room < 2 else 'overlap'}"
            )
        return overlap


def _shown(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _tasks_by_name(value: Any) -> Any:
    """Refuse what stands under `tasks` and is no task with a name."""
    for name, task in value.items() if isinstance(value, Mapping) else ():
        if name in TaskConfig.model_fields and not isinstance(task, Mapping):
            raise ValueError(
                f"tasks.{name} is set, and a task has a name: tasks.NAME.{name}=... on the command "
                "line; a file of the group task begins with the line '# @package tasks.NAME'"
            )
        if not TASK_NAME.fullmatch(str(name)):
            raise ValueError(
                f"tasks.{name}: a task's name is of small letters, digits, - and _: call it "
                f"{re.sub('[^a-z0-9_-]+', '_', str(name).lower()).strip('_') or 'mine'}"
            )
        if isinstance(task, Mapping) and "objective" not in task:
            raise ValueError(
                f"tasks.{name}.objective is missing: set it to classification, regression, tagging "
                f"or answers; or pick {name} from the group task, where it has it: task={name}"
            )
    return value


Tasks = Annotated[dict[str, TaskConfig], BeforeValidator(_tasks_by_name)]


class Shape(Protocol):
    """What of the group `model` limits tasks."""

    @property
    def num_layers(self) -> int:
        """Encoder blocks."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Rows of the position table."""
        ...


def check_tasks_fit(
    tasks: Mapping[str, TaskConfig], finetune: FinetuneConfig, model: Shape
) -> None:
    """Raise `ValueError` where a task leaves no room, or is beyond this run's model."""
    for name, task in tasks.items():
        try:
            whole = task.completed(finetune)
        except ValueError as error:
            raise ValueError(f"tasks.{name}: {error}") from None
        if whole.init_from is not None:
            continue  # another model's shape: `plan` looks into its folder
        length, layers = whole.max_length or 0, whole.freeze_layers or 0
        if length > model.max_position_embeddings:
            raise ValueError(
                f"tasks.{name}.max_length={length} is longer than model.max_position_embeddings="
                f"{model.max_position_embeddings}: shorten it, or raise "
                "model.max_position_embeddings"
            )
        if layers > model.num_layers:
            raise ValueError(
                f"tasks.{name}.freeze_layers={layers} is more than model.num_layers="
                f"{model.num_layers}: lower it"
            )
