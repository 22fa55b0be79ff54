"""What is done about a loss or gradient that is NaN or infinite: the batch is kept for a person."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from stages.training.examples import Examples, Ragged
from stages.training.job import Job
from stages.training.step import StepLosses

MOST_IN_A_ROW = 10
"""Steps skipped one after another before the run stops all the same."""
MOST_SAVED = 3
"""Batches that one process keeps; of the next ones the steps are named alone."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient is NaN or infinite. The model holds the weights from before that step.

    Attributes:
        step: the step, counted from 1.
    """

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


class BadSteps:
    """What happens at steps whose loss or gradient is not finite: an end, or a lost step.

    Losses and gradients are sums over all ranks, so all ranks come to the same.

    Args:
        job: `on_nonfinite`, and where batches are kept.
        parts: of the loss, in words.
        batch: the global batch of a step as a table (`batch_table`); called on rank 0 alone.
        rank: of this process.
        skipped: steps lost before this process began.
        notice: told of each lost step.

    Attributes:
        skipped: steps lost so far.
    """

    def __init__(
        self,
        job: Job,
        parts: Sequence[str],
        batch: Callable[[int], pa.Table],
        rank: int,
        skipped: int,
        notice: Callable[[str], None],
    ) -> None:
        self._job = job
        self._parts = parts
        self._batch = batch
        self._rank = rank
        self._notice = notice
        self._in_a_row: list[int] = []
        self._saved = 0
        self.skipped = skipped

    def met(self, step: int, losses: StepLosses, rate: float) -> None:
        """Step `step`, counted from 0, cannot be made.

        Raises:
            NonFiniteError: the run is to end.
        """
        if self._in_a_row and self._in_a_row[-1] != step - 1:
            self._in_a_row.clear()
        self._in_a_row.append(step)
        where = self._save(step, losses, rate)
        said = ", ".join(
            f"{name} {value:g}" for name, value in zip(self._parts, losses.parts, strict=True)
        )
        text = (
            f"step {step + 1}: {said}, gradient norm {losses.grad_norm:g}: not finite. The step "
            f"was not applied{where}"
        )
        if self._job.train.on_nonfinite == "skip" and len(self._in_a_row) < MOST_IN_A_ROW:
            self.skipped += 1
            self._notice(f"{text}; going on ({self.skipped} lost so far)")
            return
        if self._job.train.on_nonfinite == "skip":
            text += f". It is number {MOST_IN_A_ROW} in a row"
        group = self._job.group
        advice = (
            f"Training anew with a lower {group}.learning_rate, a longer {group}.warmup_share or "
            f"{group}.precision=float32 may not meet it"
        )
        if group == "train" and self._job.train.on_nonfinite == "stop":
            advice = (
                "Where few batches do this, train.on_nonfinite=skip leaves them out and goes on "
                f"from the last checkpoint, if there is one. {advice}"
            )
        raise NonFiniteError(step + 1, f"{text}. {advice}")

    def _save(self, step: int, losses: StepLosses, rate: float) -> str:
        job = self._job
        if self._rank != 0 or job.nonfinite_folder is None or self._saved == MOST_SAVED:
            return ""
        self._saved += 1
        what = {
            "step": step + 1,
            **{
                name.replace(" ", "_").lower(): str(value)
                for name, value in zip(self._parts, losses.parts, strict=True)
            },
            "gradient_norm": str(losses.grad_norm),
            "learning_rate": rate,
            "fingerprint": job.fingerprint,
            "vocabulary_digest": job.vocabulary_digest,
            **job.described(),
        }
        path = save_batch(
            job.checkpoint_filesystem,
            job.nonfinite_folder,
            step + 1,
            lambda: self._batch(step),
            what,
        )
        return f"; its batch is in {path}"


def save_batch(
    filesystem: FileSystem,
    folder: str,
    step: int,
    table: Callable[[], pa.Table],
    what: Mapping[str, Any],
) -> str:
    """Write a global batch as `step-00000017.parquet`, and beside it what is known of the step.

    Args:
        filesystem: where `folder` lies.
        folder: made when it is not there.
        step: counted from 1.
        table: makes the batch.
        what: a JSON object.

    Returns:
        The path, or why there is none: an error here must not hide the one that led to it.
    """
    path = f"{folder}/step-{step:08d}"
    try:
        filesystem.create_dir(folder, recursive=True)
        with filesystem.open_output_stream(f"{path}.parquet") as stream:
            pq.write_table(table(), stream, compression="zstd")
        with filesystem.open_output_stream(f"{path}.json") as stream:
            stream.write(json.dumps(what, indent=1).encode())
    except (OSError, ValueError) as error:
        return f"nowhere ({error})"
    return f"{path}.parquet"


def batch_table(examples: Examples) -> pa.Table:
    """A batch of pretraining, with `document` where the examples name theirs."""
    labels = Ragged(examples.mlm_labels, examples.mlm_positions.offsets)
    columns = {
        "input_ids": lists(examples.input_ids),
        "a_length": pa.array(examples.a_length),
        "is_next": _labels(examples),
        "mlm_positions": lists(examples.mlm_positions),
        "mlm_labels": lists(labels),
    }
    if examples.documents is not None:
        columns["document"] = pa.array(examples.documents)
    return pa.table(columns)


def _labels(examples: Examples) -> pa.Array:
    if examples.is_next is None:
        return pa.nulls(len(examples), pa.bool_())
    return pa.array(examples.is_next)


def lists(ragged: Ragged) -> pa.Array:
    """A column of lists."""
    return pa.LargeListArray.from_arrays(pa.array(ragged.offsets), pa.array(ragged.values))
