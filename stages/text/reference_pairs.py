"""Pairs in the way of google-research/bert (`balance: reference`), over integers only.

The same law as `create_instances_from_document`, with random calls of our own. One difference:
the random B never comes from the own document or one of the same origin.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.text.chunks import Sentences, chunk_ends
from stages.text.random import Stream

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SentencePairs:
    """Pairs as ranges of sentences, before truncation.

    Attributes:
        a, b: [n, 2] sentences [first, last) of A and B.
        is_next: [n] whether B followed A.
    """

    a: Int64s
    b: Int64s
    is_next: NDArray[np.bool_]


def reference_pairs(sentences: Sentences, targets: Int64s, stream: Stream) -> SentencePairs:
    """Walk each document as the reference does.

    A chunk of one sentence is NotNext; another is so with probability 1/2, and then gives the
    sentences after A back. B is taken from a uniformly drawn document of another origin, from a
    uniformly drawn sentence on, until it fills the target.

    Args:
        sentences: without empty ones; two origins at least.
        targets: [D] from `chunks.draw_targets`.
        stream: where the draws come from.
    """
    ends = chunk_ends(sentences, targets).tolist()
    offsets = sentences.offsets.tolist()
    documents = sentences.documents.tolist()
    partners = _Partners(sentences)
    draw = _Draws(stream)
    rows: list[tuple[int, int, int, int, bool]] = []
    for d, target in enumerate(targets.tolist()):
        start, stop = documents[d], documents[d + 1]
        while start < stop:
            end = ends[start]
            count = end - start
            middle = start + (1 if count == 1 else 1 + draw.below(count - 1))
            if count == 1 or draw.below(2):
                other = partners.pick(d, draw)
                low, high = documents[other], documents[other + 1]
                first = low + draw.below(high - low)
                want = target - (offsets[middle] - offsets[start])
                last = bisect_left(offsets, offsets[first] + want, first + 1, high)
                rows.append((start, middle, first, last, False))
                start = middle
            else:
                rows.append((start, middle, middle, end, True))
                start = end
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 5)
    return SentencePairs(table[:, 0:2], table[:, 2:4], table[:, 4].astype(np.bool_))


class _Partners:
    """Uniform draws among the documents of other origins."""

    def __init__(self, sentences: Sentences) -> None:
        filled = np.flatnonzero(np.diff(sentences.documents) > 0)
        origins = sentences.origins[filled]
        by_origin = np.argsort(origins, kind="stable")
        ordered = origins[by_origin]
        low = np.searchsorted(ordered, sentences.origins, side="left")
        high = np.searchsorted(ordered, sentences.origins, side="right")
        self._documents = filled[by_origin].tolist()
        self._low = low.tolist()
        self._size = (high - low).tolist()

    def pick(self, document: int, draw: _Draws) -> int:
        place = draw.below(len(self._documents) - self._size[document])
        if place >= self._low[document]:
            place += self._size[document]
        return int(self._documents[place])


class _Draws:
    """Single draws for a Python loop, from words fetched many at a time."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._words: list[int] = []

    def below(self, bound: int) -> int:
        if not self._words:
            self._words = self._stream.uint64(4096).tolist()
        return (self._words.pop() * bound) >> 64
