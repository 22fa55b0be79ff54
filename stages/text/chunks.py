"""A shard seen as sentence lengths, and its documents cut into chunks of whole sentences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from stages.text.random import Stream

Int64s = NDArray[np.int64]

MINIMUM_CUT_TOKENS = 16
"""A sentence alone in its chunk is cut in two when it has at least this many tokens."""

MINIMUM_HALF_TOKENS = 4
"""Each half of a cut sentence has at least this many tokens."""


@dataclass(frozen=True)
class Sentences:
    """The sentences of a shard, as pairing sees them: integers only.

    Token positions count from 0 over the shard's flat token ids.

    Attributes:
        lengths: [S] tokens of each sentence; 0 for a sentence without tokens.
        documents: [D + 1] document d holds the sentences documents[d]..documents[d + 1] - 1.
        origins: [D] integer identity of what each document was: the parts of one cut document,
            and documents of equal content, share it and never become partners.
        word_starts: [T] whether a token starts a word (it is no `##` piece).
        sources: [D] integer identity of where each document comes from; None: all from one.

    Raises:
        ValueError: when the arrays do not fit together.
    """

    lengths: Int64s
    documents: Int64s
    origins: Int64s
    word_starts: NDArray[np.bool_]
    sources: Int64s | None = None

    def __post_init__(self) -> None:
        if len(self.documents) != len(self.origins) + 1:
            raise ValueError(
                f"documents has {len(self.documents)} offsets for {len(self.origins)} origins: "
                "it needs one more than there are documents"
            )
        if self.sources is not None and len(self.sources) != len(self.origins):
            raise ValueError(f"{len(self.sources)} sources for {len(self.origins)} documents")
        if self.documents[0] != 0 or self.documents[-1] != len(self.lengths):
            raise ValueError(f"documents must run from 0 to {len(self.lengths)}, the sentences")
        if np.any(np.diff(self.documents) < 0) or np.any(self.lengths < 0):
            raise ValueError("documents must not fall and lengths must not be negative")
        if len(self.word_starts) != self.offsets[-1]:
            raise ValueError(
                f"word_starts has {len(self.word_starts)} flags for {self.offsets[-1]} tokens"
            )

    @cached_property
    def offsets(self) -> Int64s:
        """[S + 1] token position at which each sentence starts."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    @cached_property
    def document_of(self) -> Int64s:
        """[S] document of each sentence."""
        return np.repeat(np.arange(len(self.origins)), np.diff(self.documents))

    def without_empty(self) -> Sentences:
        """The same documents and token positions, without sentences of no token."""
        kept = self.lengths > 0
        before = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
        return Sentences(
            lengths=self.lengths[kept],
            documents=before[self.documents],
            origins=self.origins,
            word_starts=self.word_starts,
            sources=self.sources,
        )


@dataclass(frozen=True)
class Chunks:
    """Consecutive sentences that become A and B of one pair.

    Attributes:
        first, last: [n] sentences first..last - 1.
        cut: [n] token position at which a chunk of one sentence is cut; -1: between sentences.
        lost: sentences that stand alone and cannot be cut.
    """

    first: Int64s
    last: Int64s
    cut: Int64s
    lost: Int64s


def draw_targets(documents: int, room: int, probability: float, stream: Stream) -> Int64s:
    """[documents] tokens at which a chunk of each document is full.

    As the reference: `room`, or with `probability` any length from 2 to `room`.
    """
    short = stream.uniform(documents) < probability
    lengths = 2 + stream.below(room - 1, documents)
    return np.where(short, lengths, room)


def chunk_ends(sentences: Sentences, targets: Int64s) -> Int64s:
    """[S] the end of a chunk that starts at each sentence.

    It is the first sentence boundary at which the chunk holds its document's target of tokens,
    or the document's end.
    """
    counts = np.diff(sentences.documents)
    offsets = sentences.offsets
    full = np.searchsorted(offsets, offsets[:-1] + np.repeat(targets, counts), side="left")
    return np.minimum(full, np.repeat(sentences.documents[1:], counts))


def make_chunks(sentences: Sentences, targets: Int64s, room: int) -> Chunks:
    """Cut documents into chunks of two or more sentences, or of one that can be cut in two.

    A chunk is what the reference takes: sentences until the target is reached or the document
    ends. A chunk of one sentence is mended by `_mend`.

    Args:
        sentences: without empty ones.
        targets: [D] from `draw_targets`.
        room: tokens of A and B together, at most.
    """
    ends = chunk_ends(sentences, targets)
    # Only a sentence that fills a chunk from its own start can be left alone.
    cuts = _cut_positions(sentences, ends == np.arange(1, len(ends) + 1))
    end_of, offsets, cut_of = _integers(ends), _integers(sentences.offsets), _integers(cuts)
    documents = sentences.documents.tolist()
    firsts: list[int] = []
    lasts: list[int] = []
    for start, stop in itertools.pairwise(documents):
        bounds = [start]
        alone = False
        while start < stop:
            end = end_of[start]
            alone |= end - start == 1
            bounds.append(end)
            start = end
        if alone:
            bounds = _mend(bounds, offsets, cut_of, room)
        firsts += bounds[:-1]
        lasts += bounds[1:]
    first = np.asarray(firsts, dtype=np.int64)
    last = np.asarray(lasts, dtype=np.int64)
    cut = np.where(last - first == 1, cuts[first], -1)
    lost = (last - first == 1) & (cut < 0)
    return Chunks(first[~lost], last[~lost], cut[~lost], first[lost])


def _integers(values: Int64s) -> Sequence[int]:
    """Python's integers, made only where one is looked at: few are, and a list makes all."""
    return cast(Sequence[int], memoryview(values.data))


def _mend(bounds: list[int], offsets: Sequence[int], cuts: Sequence[int], room: int) -> list[int]:
    """Boundaries of a document's chunks, with as few chunks of one sentence as can be.

    A lone sentence joins the next chunk if that is a lone one too, else the chunk before or after
    it, when both together fit into a row. Else it takes a sentence from a neighbour of three or
    more. Else it stays, to be cut; and when it cannot be cut, it joins a neighbour all the same
    and the pair is truncated.
    """
    mended = [bounds[0]]
    k = 1
    while k < len(bounds):
        start, end = mended[-1], bounds[k]
        if end - start == 1:
            left = mended[-2] if len(mended) > 1 else -1
            right = bounds[k + 1] if k + 1 < len(bounds) else -1
            fits_left = left >= 0 and offsets[end] - offsets[left] <= room
            fits_right = right >= 0 and offsets[right] - offsets[start] <= room
            if (fits_right and right - end == 1) or (fits_right and not fits_left):
                k += 1
                end = right
            elif fits_left:
                mended.pop()
            elif left >= 0 and start - left >= 3:
                mended[-1] = start - 1
            elif right >= 0 and right - end >= 3:
                end += 1
            elif cuts[start] >= 0:
                pass
            elif left >= 0:
                mended.pop()
            elif right >= 0:
                k += 1
                end = right
        mended.append(end)
        k += 1
    return mended


def _cut_positions(sentences: Sentences, wanted: NDArray[np.bool_]) -> Int64s:
    """[S] the word start nearest to the middle of wanted sentences, or -1 where none can be cut."""
    cuts = np.full(len(sentences.lengths), -1, dtype=np.int64)
    open_ones = np.flatnonzero(wanted & (sentences.lengths >= MINIMUM_CUT_TOKENS))
    low = sentences.offsets[open_ones] + MINIMUM_HALF_TOKENS
    high = sentences.offsets[open_ones + 1] - MINIMUM_HALF_TOKENS
    left = (sentences.offsets[open_ones] + sentences.offsets[open_ones + 1]) // 2
    right = left.copy()
    # Outwards from the middle, one token a step; most sentences are done after two or three.
    while len(open_ones):
        for side in (right, left):
            place = np.clip(side, low, high)
            found = sentences.word_starts[place]
            cuts[open_ones[found]] = place[found]
        going = (cuts[open_ones] < 0) & ((left > low) | (right < high))
        open_ones, low, high = open_ones[going], low[going], high[going]
        left, right = left[going] - 1, right[going] + 1
    return cuts
