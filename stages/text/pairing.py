"""IsNext/NotNext pairs and full sentences of a shard: plans over integers.

Tokens are touched only at the end, by `rows.gather`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stages.text.chunks import Sentences, draw_targets, make_chunks
from stages.text.exchange import exchange
from stages.text.pair_counts import Counts, pair_counts
from stages.text.random import Stream
from stages.text.reference_pairs import reference_pairs
from stages.text.sentence_order import ordered_chunks
from stages.text.truncation import truncate_spans, truncated_lengths

__all__ = ["NoPairsError", "PairPlan", "Sentences", "SingleOriginError", "make_pairs"]

Int64s = NDArray[np.int64]


class NoPairsError(ValueError):
    """Nothing in the shard can become a pair; `counts` says what was lost and why."""

    def __init__(self, message: str, counts: Counts) -> None:
        super().__init__(message)
        self.counts = counts


class SingleOriginError(NoPairsError):
    """All text of the shard is of one origin: no NotNext partner exists."""


@dataclass(frozen=True)
class PairPlan:
    """The pairs of a shard, one row each, in their final order.

    Positions count tokens over the shard's flat ids; ranges are half-open.

    Attributes:
        a, b: [n, 2] token ranges of A and B.
        a_before, b_before: [n, 2] the same before truncation. IsNext: a_before[:, 1] is
            b_before[:, 0]; swapped (sentence order): the other way round.
        is_next: [n] whether B followed A. Else B is of another origin, or, for sentence order,
            came before A.
        document, partner: [n] document of A and of B (equal for IsNext and sentence order).
        a_sentences, b_sentences: [n] sentences of A and B before truncation; 1 and 1 for a
            sentence that was cut in two.
        is_cut: [n] whether A and B are halves of sentences.
        counts: what came in, what is used, and what is not, by reason: `empty`,
            `single_sentence` (a sentence alone in its document and too short to cut; for sentence
            order, alone),
            `no_partner` (no chunk of like length from another origin was left), and for tokens
            `truncated`. A document or sentence is used when any row takes part of it.
    """

    a: Int64s
    b: Int64s
    a_before: Int64s
    b_before: Int64s
    is_next: NDArray[np.bool_]
    document: Int64s
    partner: Int64s
    a_sentences: Int64s
    b_sentences: Int64s
    is_cut: NDArray[np.bool_]
    counts: Counts

    def __len__(self) -> int:
        return len(self.is_next)


@dataclass(frozen=True)
class _Pairs:
    """Rows before truncation: token ranges [n, 2], first sentences and sentence counts [n]."""

    a: Int64s
    b: Int64s
    a_first: Int64s
    b_first: Int64s
    a_sentences: Int64s
    b_sentences: Int64s
    is_next: NDArray[np.bool_]
    is_cut: NDArray[np.bool_]


def make_pairs(
    sentences: Sentences,
    *,
    max_seq_length: int,
    stream: Stream,
    task: Literal["next_sentence", "sentence_order"] = "next_sentence",
    balance: Literal["exact", "reference"] = "exact",
    partner: Literal["any", "same_source"] = "any",
    short_sequence_probability: float = 0.1,
) -> PairPlan:
    """Plan a shard's pairs.

    Args:
        sentences: the shard.
        max_seq_length: tokens of a row at most, `[CLS]` and two `[SEP]` included.
        stream: named by seed, stage, shard and copy; the plan is a function of it and the input.
        task: next_sentence: B follows A or comes from another document; sentence_order: A and B
            follow one another, in order or swapped, half and half.
        balance: exact: NotNext by exchange, half and half (counts differ by one at most);
            reference: google-research/bert's law (more NotNext, each B drawn anew). Of
            next_sentence alone.
        partner: same_source: exact takes NotNext partners from documents of the same source.
        short_sequence_probability: share of documents with a random shorter target.

    Raises:
        SingleOriginError: the shard holds text of one origin only.
        NoPairsError: no pair could be made.
        ValueError: max_seq_length below 8.
    """
    if max_seq_length < 8:
        raise ValueError(f"max_seq_length={max_seq_length} leaves no room for pairs: at least 8")
    room = max_seq_length - 3
    filled = sentences.without_empty()
    if task == "next_sentence":
        _require_two_origins(sentences, filled)
    targets = draw_targets(
        len(filled.origins), room, short_sequence_probability, stream.child("targets")
    )
    if task == "sentence_order":
        pairs, lost = _ordered(filled, targets, room, stream)
    elif balance == "exact":
        sources = filled.sources if partner == "same_source" else None
        pairs, lost = _exact(filled, targets, room, sources, stream)
    else:
        pairs, lost = _reference(filled, targets, stream), np.zeros(0, dtype=np.int64)
    if not len(pairs.is_next):
        counts = _counts(sentences, filled, pairs, np.zeros((0, 2), dtype=np.int64), lost)
        raise NoPairsError(_why_none(task, counts), counts)
    return _finish(sentences, filled, pairs, lost, room, stream)


def _why_none(task: str, counts: Counts) -> str:
    lost = counts["sentences"]
    unmatched = f", and {lost['no_partner']} find no partner of like length in another one"
    return (
        f"no sentence pair can be made of this shard: of {lost['in']} sentences "
        f"{lost['single_sentence']} are short and alone in their document"
        f"{unmatched if task == 'next_sentence' else ''}. Give longer or more documents, "
        "or set objective.nsp: false to train without pairs"
    )


def _require_two_origins(sentences: Sentences, filled: Sentences) -> None:
    origins = np.unique(filled.origins[np.diff(filled.documents) > 0])
    if len(origins) >= 2:
        return
    nothing = np.zeros(0, dtype=np.int64)
    none = nothing.astype(np.bool_)
    empty = nothing.reshape(0, 2)
    rows = _Pairs(empty, empty, nothing, nothing, nothing, nothing, none, none)
    counts = _counts(sentences, filled, rows, empty, nothing)
    if not len(origins):
        raise NoPairsError(
            "this shard holds no tokens, so no pair can be made: check the corpus "
            "(objective.nsp: false would not help)",
            counts,
        )
    raise SingleOriginError(
        "all text of this shard comes from one document, so no NotNext pair can be made: "
        "give more documents or fewer shards, or set objective.nsp: false to train without pairs",
        counts,
    )


def _exact(
    sentences: Sentences,
    targets: Int64s,
    room: int,
    sources: Int64s | None,
    stream: Stream,
) -> tuple[_Pairs, Int64s]:
    """Pairs by exchange, and the sentences lost as single ones."""
    chunks = make_chunks(sentences, targets, room)
    groups = np.zeros(len(chunks.first), dtype=np.int64)
    if sources is not None:
        groups = sources[sentences.document_of[chunks.first]]
    made = exchange(sentences, chunks, groups, room, stream.child("exchange"))
    whole = chunks.cut < 0
    b_first = np.where(whole, chunks.first + made.a_sentences, chunks.first)
    b_sentences = np.where(whole, chunks.last - b_first, 1)
    start, end = sentences.offsets[chunks.first], sentences.offsets[chunks.last]
    i = np.flatnonzero(made.chosen >= 0)
    j = made.chosen[i]
    pairs = _Pairs(
        a=np.stack([start[i], made.middle[i]], axis=1),
        b=np.stack([made.middle[j], end[j]], axis=1),
        a_first=chunks.first[i],
        b_first=b_first[j],
        a_sentences=made.a_sentences[i],
        b_sentences=b_sentences[j],
        is_next=i == j,
        is_cut=~whole[i],
    )
    return pairs, chunks.lost


def _ordered(
    sentences: Sentences, targets: Int64s, room: int, stream: Stream
) -> tuple[_Pairs, Int64s]:
    """Pairs in order and swapped, and the sentences lost as single ones."""
    chunks = ordered_chunks(sentences, targets, room, stream.child("order of segments"))
    earlier = np.stack([chunks.first, chunks.middle], axis=1)
    later = np.stack([chunks.middle, chunks.last], axis=1)
    swapped = chunks.swapped[:, np.newaxis]
    a, b = np.where(swapped, later, earlier), np.where(swapped, earlier, later)
    return _whole_sentences(sentences, a, b, ~chunks.swapped), chunks.lost


def _reference(sentences: Sentences, targets: Int64s, stream: Stream) -> _Pairs:
    drawn = reference_pairs(sentences, targets, stream.child("walk"))
    return _whole_sentences(sentences, drawn.a, drawn.b, drawn.is_next)


def _whole_sentences(
    sentences: Sentences, a: Int64s, b: Int64s, is_next: NDArray[np.bool_]
) -> _Pairs:
    return _Pairs(
        a=sentences.offsets[a],
        b=sentences.offsets[b],
        a_first=a[:, 0],
        b_first=b[:, 0],
        a_sentences=a[:, 1] - a[:, 0],
        b_sentences=b[:, 1] - b[:, 0],
        is_next=is_next,
        is_cut=np.zeros(len(is_next), dtype=np.bool_),
    )


def _finish(
    sentences: Sentences,
    filled: Sentences,
    pairs: _Pairs,
    lost: Int64s,
    room: int,
    stream: Stream,
) -> PairPlan:
    """Truncate, count and shuffle."""
    a_kept, b_kept = truncated_lengths(
        pairs.a[:, 1] - pairs.a[:, 0], pairs.b[:, 1] - pairs.b[:, 0], room
    )
    sides = stream.child("sides")
    a = truncate_spans(pairs.a, a_kept, sides)
    b = truncate_spans(pairs.b, b_kept, sides)
    counts = _counts(sentences, filled, pairs, np.concatenate([a, b]), lost)
    order = stream.child("order").permutation(len(a))
    return PairPlan(
        a=a[order],
        b=b[order],
        a_before=pairs.a[order],
        b_before=pairs.b[order],
        is_next=pairs.is_next[order],
        document=filled.document_of[pairs.a_first[order]],
        partner=filled.document_of[pairs.b_first[order]],
        a_sentences=pairs.a_sentences[order],
        b_sentences=pairs.b_sentences[order],
        is_cut=pairs.is_cut[order],
        counts=counts,
    )


def _counts(
    sentences: Sentences, filled: Sentences, pairs: _Pairs, spans: Int64s, lost: Int64s
) -> Counts:
    firsts = np.concatenate([pairs.a_first, pairs.b_first])
    lasts = firsts + np.concatenate([pairs.a_sentences, pairs.b_sentences])
    return pair_counts(
        sentences,
        filled,
        used_sentences=np.stack([firsts, lasts], axis=1),
        spans_before=np.concatenate([pairs.a, pairs.b]),
        spans=spans,
        lost=lost,
    )
