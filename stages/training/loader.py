"""Global batches in an order that is f(seed, epoch), from any position, from one source or several.

Batch i is rows [i * G, (i + 1) * G) of an endless stream: that of one source (`stream`), or of
several interleaved in exact proportions (`mixing`), each source running through its own epochs. So
the loader's whole state is i, and batch 1,000,000 comes as fast as the first. The number of
workers does not come in: each rank sees the whole global batch and takes its share (`packing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pyarrow.fs import FileSystem

from stages.training.bins import LengthBins
from stages.training.drawn_masks import DrawnMasks
from stages.training.examples import Examples, concatenate
from stages.training.mixing import Interleaving, exact_share
from stages.training.randomness import key
from stages.training.row_groups import Limits, ShardFile
from stages.training.stream import RowStream


@dataclass(frozen=True)
class MixedSource:
    """Rows of another artifact that are mixed in.

    Attributes:
        filesystem: where the paths of the files lead.
        copies: the files of each copy, as for the loader; it runs through epochs of its own.
        weight: its share of the rows, of all sources together; above 0 and below 1.
    """

    filesystem: FileSystem
    copies: tuple[tuple[ShardFile, ...], ...]
    weight: float | Fraction


class Loader:
    """Global batches of `batch_size` rows.

    Args:
        filesystem: where the paths of the files lead.
        copies: the files of each copy; epoch e reads copy e mod len(copies) only.
        seed: of the order.
        batch_size: G, rows of a global batch.
        limits: checked as row groups are decoded.
        bins: a batch holds rows of one bin, as far as they go; None: of any length. In a mix each
            batch is then of one source, and the proportions hold for batches.
        documents: whether batches hold the documents' hashes.
        masks: to be drawn, where the files are pairs; None: they hold masked rows.
        mix: what is mixed in; the first source has the share that these leave.

    Raises:
        DataError: a copy has no rows.
        ValueError: shares that are not above 0, or leave nothing.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        copies: Sequence[Sequence[ShardFile]],
        seed: int,
        batch_size: int,
        limits: Limits,
        bins: LengthBins | None = None,
        documents: bool = False,
        masks: DrawnMasks | None = None,
        mix: Sequence[MixedSource] = (),
    ) -> None:
        self._batch_size = batch_size
        self._whole_batches = bins is not None
        shares = [exact_share(source.weight) for source in mix]
        if sum(shares, Fraction()) >= 1:
            raise ValueError("the weights of a mix must leave a share: their sum is not below 1")
        self._interleaving = Interleaving([1 - sum(shares, Fraction()), *shares])
        sources = [(filesystem, copies), *((s.filesystem, s.copies) for s in mix)]
        self._streams = [
            RowStream(
                files_at,
                files,
                # The first source is read as if it were alone.
                seed if number == 0 else key(seed, "source", number),
                batch_size,
                limits,
                bins,
                None if masks is None else replace(masks, source=number),
                documents,
            )
            for number, (files_at, files) in enumerate(sources)
        ]

    def batch(self, index: int) -> Examples:
        """Global batch `index`, counted from the start of training over all epochs.

        Raises:
            DataError: a file does not hold what it should, or sources do not fit together.
        """
        parts = []
        before, after = self._rows_before(index), self._rows_before(index + 1)
        for stream, start, stop in zip(self._streams, before, after, strict=True):
            if stop > start:
                parts += stream.read(start, stop - start)
        return concatenate(parts)

    def position(self, index: int, source: int = 0) -> tuple[int, int]:
        """(epoch, row in the epoch's order) of a source where batch `index` begins."""
        return self._streams[source].position(self._rows_before(index)[source])

    def rows(self, epoch: int) -> int:
        """Rows of an epoch of the first source."""
        return self._streams[0].rows(epoch)

    def mixed_rows(self, epoch: int) -> int:
        """Of an epoch of the first source, rows that are in batches of several bins; all of them
        without bins.
        """
        return self._streams[0].mixed_rows(epoch)

    def _rows_before(self, index: int) -> list[int]:
        """Rows that each source has given before batch `index`."""
        if self._whole_batches:
            return [n * self._batch_size for n in self._interleaving.counts(index)]
        return self._interleaving.counts(index * self._batch_size)
