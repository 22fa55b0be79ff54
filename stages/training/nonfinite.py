"""What is done about a loss or gradient that is NaN or infinite: the batch is kept for a person."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from stages.training.examples import Examples, Ragged

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


@dataclass(frozen=True)
class StepLosses:
    """Of a global batch, the same on all ranks.

    Attributes:
        mlm: nats a masked position.
        pair: nats a pair; 0 without pairs.
        grad_norm: of all gradients, before clipping.
    """

    mlm: float
    pair: float
    grad_norm: float

    @property
    def finite(self) -> bool:
        """Whether a step can be made."""
        return math.isfinite(self.mlm + self.pair) and math.isfinite(self.grad_norm)

    def __str__(self) -> str:
        return (
            f"MLM loss {self.mlm:g}, pair loss {self.pair:g}, gradient norm {self.grad_norm:g}: "
            "not finite"
        )


def save_batch(
    filesystem: FileSystem, folder: str, step: int, examples: Examples, what: Mapping[str, Any]
) -> str:
    """Write a global batch as `step-00000017.parquet`, and beside it what is known of the step.

    Args:
        filesystem: where `folder` lies.
        folder: made when it is not there.
        step: counted from 1.
        examples: the batch, with `documents` where the files name them.
        what: a JSON object.

    Returns:
        The path, or why there is none: an error here must not hide the one that led to it.
    """
    path = f"{folder}/step-{step:08d}"
    labels = Ragged(examples.mlm_labels, examples.mlm_positions.offsets)
    columns = {
        "input_ids": _lists(examples.input_ids),
        "a_length": pa.array(examples.a_length),
        "is_next": pa.array([None] * len(examples) if examples.is_next is None else examples.is_next),
        "mlm_positions": _lists(examples.mlm_positions),
        "mlm_labels": _lists(labels),
    }
    if examples.documents is not None:
        columns["document"] = pa.array(examples.documents)
    try:
        filesystem.create_dir(folder, recursive=True)
        with filesystem.open_output_stream(f"{path}.parquet") as stream:
            pq.write_table(pa.table(columns), stream, compression="zstd")
        with filesystem.open_output_stream(f"{path}.json") as stream:
            stream.write(json.dumps(what, indent=1).encode())
    except OSError as error:
        return f"nowhere ({error})"
    return f"{path}.parquet"


def _lists(ragged: Ragged) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(ragged.offsets), pa.array(ragged.values))
