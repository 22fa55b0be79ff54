"""Examples as ragged NumPy arrays: flat values and offsets, no padding, no Python lists.

Legend: B examples, T tokens over all of them, M masked positions over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[Any]


class DataError(ValueError):
    """A file does not hold what the trainer needs; the message names file, row group and row."""


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers laid end to end: list i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: [T], any integer type.
        offsets: [B + 1] int64, starts with 0.
    """

    values: IntArray
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> IntArray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[B] int64."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """The lists `rows`, in that order."""
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        # Position t of the result comes from its list's start plus its place in the list.
        source = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[source], offsets)


@dataclass(frozen=True)
class Examples:
    """B rows.

    Attributes:
        input_ids: whole rows, special tokens included, masks applied where there are any.
        a_length: [B] int64, tokens of A; segment 0 is positions 0..a_length + 1. Read only where
            `is_next` is given: without NSP all of a row is segment 0.
        is_next: [B] bool, or None without NSP.
        mlm_positions: positions inside the row.
        mlm_labels: [M] the original ids there, in the order of `mlm_positions.values`.
        documents: [B] hashes of the documents, to trace rows back; None unless they were asked
            for.
    """

    input_ids: Ragged
    a_length: NDArray[np.int64]
    is_next: NDArray[np.bool_] | None
    mlm_positions: Ragged
    mlm_labels: IntArray
    documents: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def tokens(self) -> int:
        """T."""
        return int(self.input_ids.offsets[-1])

    @property
    def masked(self) -> int:
        """M."""
        return len(self.mlm_labels)

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """The examples `rows`, in that order."""
        labels = Ragged(self.mlm_labels, self.mlm_positions.offsets)
        return Examples(
            input_ids=self.input_ids.take(rows),
            a_length=self.a_length[rows],
            is_next=None if self.is_next is None else self.is_next[rows],
            mlm_positions=self.mlm_positions.take(rows),
            mlm_labels=labels.take(rows).values,
            documents=None if self.documents is None else self.documents[rows],
        )


def offsets_of(lengths: IntArray) -> NDArray[np.int64]:
    """[B + 1] int64 offsets of lists with these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def concatenate(parts: Sequence[Examples]) -> Examples:
    """The examples of `parts` one after the other.

    Raises:
        DataError: some parts carry `is_next` and some do not.
    """
    if len(parts) == 1:
        return parts[0]
    is_next = [part.is_next for part in parts if part.is_next is not None]
    if is_next and len(is_next) != len(parts):
        raise DataError("some files hold is_next and some do not: they come from two datasets")
    documents = [part.documents for part in parts if part.documents is not None]
    return Examples(
        input_ids=_concatenate_ragged([part.input_ids for part in parts]),
        a_length=np.concatenate([part.a_length for part in parts]),
        is_next=np.concatenate(is_next) if is_next else None,
        mlm_positions=_concatenate_ragged([part.mlm_positions for part in parts]),
        mlm_labels=np.concatenate([part.mlm_labels for part in parts]),
        documents=np.concatenate(documents) if len(documents) == len(parts) else None,
    )


def _concatenate_ragged(parts: Sequence[Ragged]) -> Ragged:
    values = np.concatenate([part.values for part in parts])
    return Ragged(values, offsets_of(np.concatenate([part.lengths for part in parts])))
