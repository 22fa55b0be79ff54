"""Rows without pairs: RoBERTa's full sentences (Liu et al., 2019, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.text.chunks import Sentences
from stages.text.pair_counts import Counts
from stages.text.pairing import NoPairsError
from stages.text.random import Stream

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SentencePlan:
    """The rows of a shard for training without next sentence prediction.

    Attributes:
        segments: [m, 2] token ranges over the shard's flat ids; each is followed by `[SEP]`.
        rows: [n + 1] row r holds the segments rows[r]..rows[r + 1] - 1.
        document: [n] document of a row's first token.
        counts: as in `pairing.PairPlan`; every token is used.
    """

    segments: Int64s
    rows: Int64s
    document: Int64s
    counts: Counts

    def __len__(self) -> int:
        return len(self.document)


def full_sentences(
    sentences: Sentences, *, max_seq_length: int, stream: Stream, across_documents: bool = False
) -> SentencePlan:
    """Pack contiguous sentences into rows of up to `max_seq_length` tokens.

    A row ends before the sentence that would not fit, and at the document's end unless
    `across_documents`, which goes on after one more `[SEP]` (both ways are RoBERTa's). A sentence
    longer than a row is cut, at the last word start that fits where there is one. The stream
    only shuffles the rows.

    Raises:
        NoPairsError: the shard holds no tokens.
        ValueError: max_seq_length below 8.
    """
    if max_seq_length < 8:
        raise ValueError(f"max_seq_length={max_seq_length} leaves no room for text: at least 8")
    room = max_seq_length - 2
    filled = sentences.without_empty()
    counts = _counts(sentences, filled)
    if not len(filled.lengths):
        raise NoPairsError("this shard holds no tokens: check the corpus", counts)
    offsets, documents = _pieces(filled, room)
    # With a [SEP] between documents, a row's length is a difference of these shifted positions.
    shift = np.zeros_like(documents)
    if across_documents:
        shift[1:] = np.cumsum(documents[1:] != documents[:-1])
    piece_ends = offsets[1:] + shift
    stop = np.searchsorted(piece_ends, offsets[:-1] + shift + room, side="right")
    if not across_documents:
        stop = np.minimum(stop, np.searchsorted(documents, documents, side="right"))
    firsts = _walk(stop.tolist())
    starts_row = np.zeros(len(documents), dtype=np.bool_)
    starts_row[firsts] = True
    starts_segment = starts_row.copy()
    starts_segment[1:] |= documents[1:] != documents[:-1]
    heads = np.flatnonzero(starts_segment)
    segments = np.stack([offsets[heads], offsets[np.append(heads[1:], len(documents))]], axis=1)
    rows = np.append(np.flatnonzero(starts_row[heads]), len(heads))
    order = stream.child("order").permutation(len(firsts))
    picked = _ranges(rows[:-1][order], rows[1:][order])
    return SentencePlan(
        segments=segments[picked],
        rows=np.concatenate(([0], np.cumsum(np.diff(rows)[order], dtype=np.int64))),
        document=documents[firsts][order],
        counts=counts,
    )


def _walk(stop: list[int]) -> list[int]:
    firsts = []
    i = 0
    while i < len(stop):
        firsts.append(i)
        i = stop[i]
    return firsts


def _pieces(sentences: Sentences, room: int) -> tuple[Int64s, Int64s]:
    """Offsets [P + 1] and documents [P] of sentences, those above `room` cut into pieces."""
    starts = sentences.offsets[:-1]
    long = np.flatnonzero(sentences.lengths > room)
    if not len(long):
        return sentences.offsets, sentences.document_of
    cuts: list[int] = []
    for start, end in zip(starts[long].tolist(), sentences.offsets[long + 1].tolist(), strict=True):
        while end - start > room:
            words = np.flatnonzero(sentences.word_starts[start + 1 : start + room + 1])
            start += int(words[-1]) + 1 if len(words) else room
            cuts.append(start)
    offsets = np.sort(np.concatenate([sentences.offsets, np.asarray(cuts, dtype=np.int64)]))
    sentence = np.searchsorted(sentences.offsets, offsets[:-1], side="right") - 1
    return offsets, sentences.document_of[sentence]


def _ranges(starts: Int64s, ends: Int64s) -> Int64s:
    """start..end - 1 of each range, one after the other."""
    sizes = ends - starts
    shift = starts - (np.cumsum(sizes) - sizes)
    positions: Int64s = np.arange(int(sizes.sum())) + np.repeat(shift, sizes)
    return positions


def _counts(sentences: Sentences, filled: Sentences) -> Counts:
    documents = int(np.count_nonzero(np.diff(filled.documents)))
    kept = len(filled.lengths)
    tokens = int(filled.offsets[-1])
    return {
        "documents": {
            "in": len(sentences.origins),
            "used": documents,
            "empty": len(sentences.origins) - documents,
        },
        "sentences": {
            "in": len(sentences.lengths),
            "used": kept,
            "empty": len(sentences.lengths) - kept,
        },
        "tokens": {"in": tokens, "used": tokens},
    }
