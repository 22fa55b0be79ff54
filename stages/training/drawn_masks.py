"""Masks drawn while training reads (dynamic masking): another one for each row in each epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.text.masking import MaskOptions, mask_rows
from stages.text.random import Stream
from stages.training.examples import Examples, Ragged


@dataclass(frozen=True)
class DrawnMasks:
    """Masks that are a function of (seed, source, epoch, row), in whatever order rows are read.

    Attributes:
        options: of the kernel that masks ahead of training too.
        seed: of the masks.
        source: number of the source in a mix: its rows have masks of their own.
    """

    options: MaskOptions
    seed: int
    source: int = 0

    def apply(self, examples: Examples, epoch: int, rows: NDArray[np.int64]) -> Examples:
        """Unmasked examples with masks.

        Args:
            examples: whole rows of pairs, with no masked positions.
            epoch: pass over the source, from 0.
            rows: [B] numbers of the examples among the rows of the source's files.
        """
        ids = examples.input_ids
        stream = Stream(self.seed, "mask", "loading", self.source, epoch)
        masked = mask_rows(ids.values, ids.offsets, self.options, stream, rows)
        return Examples(
            input_ids=Ragged(masked.ids, ids.offsets),
            a_length=examples.a_length,
            is_next=examples.is_next,
            mlm_positions=Ragged(masked.positions, masked.offsets),
            mlm_labels=masked.labels,
            documents=examples.documents,
        )
