"""Tiny synthetic shards of the mask artifact, and jobs that train on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.fs import LocalFileSystem

from model.config import BertConfig
from stages.training.job import NoHooks, Rounding, TrainConfig, TrainJob
from stages.training.row_groups import ShardFile, read_index

VOCAB_SIZE = 64
CLS, SEP, MASK = 2, 3, 4
LOCAL = LocalFileSystem()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_rows(rows: int, seed: int, longest: int = 40, most_masked: int = 12) -> dict[str, list]:
    """Rows as lists: words follow each other, so that there is something to learn.

    Masked counts are very uneven: many rows have one, some have `most_masked`.
    """
    generator = np.random.default_rng(seed)
    table: dict[str, list] = {
        name: []
        for name in (
            "input_ids", "a_length", "is_next", "mlm_positions", "mlm_labels", "document",
        )
    }  # fmt: skip
    for row in range(rows):
        is_next = bool(row % 2)
        a, b = generator.integers(1, (longest - 3) // 2, 2)
        first = int(generator.integers(5, VOCAB_SIZE))
        second = first + a if is_next else first + 30 + a
        words_a = 5 + (first - 5 + np.arange(a)) % (VOCAB_SIZE - 5)
        words_b = 5 + (second - 5 + np.arange(b)) % (VOCAB_SIZE - 5)
        ids = np.concatenate([[CLS], words_a, [SEP], words_b, [SEP]])
        words = np.delete(np.arange(1, len(ids) - 1), a)
        count = min(len(words), 1 if generator.random() < 0.7 else most_masked)
        positions = np.sort(generator.choice(words, count, replace=False))
        labels = ids[positions].copy()
        ids[positions[generator.random(count) < 0.8]] = MASK
        table["input_ids"].append(ids.tolist())
        table["a_length"].append(int(a))
        table["is_next"].append(is_next)
        table["mlm_positions"].append(positions.tolist())
        table["mlm_labels"].append(labels.tolist())
        table["document"].append(row)
    return table


def write_shard(path: Path, columns: Mapping[str, Sequence], row_group_rows: int) -> ShardFile:
    types = {
        "input_ids": pa.list_(pa.uint16()),
        "a_length": pa.uint16(),
        "is_next": pa.bool_(),
        "mlm_positions": pa.list_(pa.uint16()),
        "mlm_labels": pa.list_(pa.uint16()),
        "document": pa.uint64(),
    }
    arrays = {name: pa.array(values, types[name]) for name, values in columns.items()}
    table = pa.table(arrays).replace_schema_metadata({"vocabulary": "abc"})
    pq.write_table(table, path, row_group_size=row_group_rows, compression="zstd")
    return read_index(LOCAL, [str(path)])[0]


@pytest.fixture
def shards(tmp_path: Path) -> tuple[ShardFile, ...]:
    """Three shards of 130 rows in row groups of 50, 50 and 30."""
    folder = tmp_path / "shards"
    folder.mkdir()
    return tuple(
        write_shard(folder / f"shard-{n}.parquet", make_rows(130, seed=n), 50) for n in range(3)
    )


MakeJob = Callable[..., TrainJob]


@pytest.fixture
def make_job(tmp_path: Path, shards: tuple[ShardFile, ...]) -> MakeJob:
    """A job for a tiny model; `train`, `model` and `rounding` take dicts of changed fields."""

    def make(
        train: Mapping | None = None,
        model: Mapping | None = None,
        rounding: Mapping | None = None,
        folder: str = "checkpoints",
        **changes: object,
    ) -> TrainJob:
        job = TrainJob(
            model=BertConfig(
                vocab_size=VOCAB_SIZE, hidden_size=32, num_layers=2, num_heads=2,
                max_position_embeddings=40,
            ),
            train=TrainConfig(
                steps=50, global_batch_size=16, learning_rate=2e-3, precision="float32",
                checkpoint_every_steps=1000, log_every_steps=1,
            ),
            rounding=Rounding(micro_batch_tokens=200, threads=1),
            seed=7,
            filesystem=LOCAL,
            copies=(shards,),
            checkpoint_filesystem=LOCAL,
            checkpoint_folder=str(tmp_path / folder),
            fingerprint="f" * 64,
            attempt="first",
            device="cpu",
        )  # fmt: skip
        job = replace(
            job,
            train=replace(job.train, **(train or {})),
            model=replace(job.model, **(model or {})),
            rounding=replace(job.rounding, **(rounding or {})),
        )
        return replace(job, **changes)  # type: ignore[arg-type]

    return make


class Recorder(NoHooks):
    """Keeps what a run says; stops it, or breaks it off, at given steps."""

    def __init__(self, stop_at: int | None = None, break_at: int | None = None) -> None:
        self.values: dict[int, dict[str, float]] = {}
        self.checkpoints: list[int] = []
        self.notices: list[str] = []
        self.steps = self.done = 0
        self._asked = 0
        self._stop_at, self._break_at = stop_at, break_at

    def planned(self, steps: int, done: int) -> None:
        self.steps, self.done = steps, done

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values.setdefault(step, {}).update(values)
        if step == self._break_at:
            raise KeyboardInterrupt

    def should_stop(self) -> bool:
        self._asked += 1
        return self._asked == self._stop_at

    def saved(self, step: int) -> None:
        self.checkpoints.append(step)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def losses(self) -> dict[int, float]:
        return {s: v["train/loss"] for s, v in self.values.items() if "train/loss" in v}


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def rows_maker() -> Callable[..., dict[str, list]]:
    return make_rows


@pytest.fixture
def shard_writer() -> Callable[..., ShardFile]:
    return write_shard
