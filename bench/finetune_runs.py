"""A run of ours in `bench.finetune`: the product's own `finetune`, in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from torch import Tensor

from bench.finetune_data import TaskSet
from model.config import BertConfig
from stages.training.device import Precision
from stages.training.finetuning import TaskJob, Watched, finetune
from stages.training.job import NoHooks, Rounding, TrainConfig
from stages.training.tensor_files import write_tensors

LOCAL = LocalFileSystem()


@dataclass(frozen=True)
class Recipe:
    """How a task is learned, the same on all sides. Dropout is the model's."""

    learning_rate: float
    epochs: int = 1
    batch: int = 32
    precision: Precision = "float32"
    dropout: float = 0.1
    warmup_share: float = 0.1
    weight_decay: float = 0.01

    def steps(self, features: int) -> int:
        """Of all epochs."""
        return self.epochs * -(-features // self.batch)


@dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
        figures: of dev.
        losses: by step.
        train_seconds, train_cpu_seconds: of the steps, by the clock and of this process.
        seconds: of the whole run, dev included.
        tokens: real ones that it learned from.
    """

    figures: Mapping[str, float]
    losses: tuple[float, ...]
    train_seconds: float
    train_cpu_seconds: float
    seconds: float
    tokens: int


def now() -> tuple[float, float]:
    """Seconds of the clock, and of this process on CPUs."""
    return time.perf_counter(), time.process_time()


class Said(NoHooks):
    """Losses, and when steps began and ended."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.began = self.ended = now()

    def planned(self, steps: int, done: int) -> None:
        """The next thing is the first step."""
        self.began = now()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A step ended, or (with other figures) a look at dev."""
        if "train/loss" in values:
            self.losses.append(values["train/loss"])
            self.ended = now()


def train_config(recipe: Recipe, steps: int) -> TrainConfig:
    """As fine-tuning of the product: AdamW, linear warm-up and fall, clipping at 1."""
    return TrainConfig(
        steps=steps,
        global_batch_size=recipe.batch,
        learning_rate=recipe.learning_rate,
        warmup_share=recipe.warmup_share,
        weight_decay=recipe.weight_decay,
        precision=recipe.precision,
        checkpoint_every_steps=10**9,
        log_every_steps=1,
        keep_best=False,
    )


def write_start(path: Path, weights: Mapping[str, Tensor]) -> Path:
    """Weights as a file to begin with."""
    with path.open("wb") as stream:
        write_tensors(stream, weights)
    return path


def make_job(
    task: TaskSet,
    config: BertConfig,
    start: Path,
    recipe: Recipe,
    seed: int,
    folder: Path,
    steps: int | None = None,
    looked: bool = True,
) -> TaskJob:
    """A job on one thread that looks at dev after its last step.

    Args:
        start: of `write_start`.
        folder: new, for the checkpoint of the last step.
        steps: fewer than the recipe's.
        looked: at dev.
    """
    steps = steps or recipe.steps(len(task.train.examples))
    score, metric = task.scorer(task.dev), task.layout.metric
    return TaskJob(
        model=replace(
            config, hidden_dropout=recipe.dropout, attention_dropout=recipe.dropout, nsp=False
        ),
        kind=task.layout.kind,
        classes=task.columns,
        train=train_config(recipe, steps),
        rounding=Rounding(threads=1),
        seed=seed,
        examples=task.train.examples,
        watched=Watched(task.dev.examples, score, metric, every_steps=steps, keep_best=False)
        if looked
        else None,
        filesystem=LOCAL,
        init_from=str(start),
        checkpoint_filesystem=LOCAL,
        checkpoint_folder=str(folder),
        fingerprint="bench",
        attempt="bench",
        device="cpu",
    )


def run_ours(job: TaskJob) -> Run:
    """Train; seconds of the steps are without reading weights, dev and the checkpoint."""
    said: Any = Said()
    began = time.perf_counter()
    outcome = finetune(job, said)
    seconds = time.perf_counter() - began
    figures = {
        name.removeprefix("dev/"): value
        for name, value in outcome.figures.items()
        if name.startswith("dev/")
    }
    clock, cpu = (end - begin for begin, end in zip(said.began, said.ended, strict=True))
    return Run(figures, tuple(said.losses), clock, cpu, seconds, outcome.tokens_seen)
