"""NotNext by exchange: chunks of two origins whose B segments are alike swap them, or do not.

Chunks are matched two by two before a coin is tossed, so that both labels see the same chunks: a
match (i, j) gives the rows (A_i, B_i) and (A_j, B_j), both IsNext, or (A_i, B_j) and (A_j, B_i),
both NotNext. Every B is used once. Lengths and sentence counts can tell the label only by what
B_i and B_j differ in, and a match bounds that, whatever the documents are like. Splits are drawn
until most chunks have a match; of the others all splits are searched, so that few documents, or
ones whose sentences are of other lengths, lose less.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.text.chunks import Chunks, Sentences
from stages.text.random import Stream
from stages.text.truncation import truncated_lengths

Int64s = NDArray[np.int64]

DROPPED = -1

ATTEMPTS = 32
"""Times that chunks without a match draw another split and try again."""

WORK = 10
"""No further attempt once this many chunks were tried for each one there is: the rest belongs to
documents that dominate, and has no partner."""

TOLERANCE = 0.2
"""Largest difference of matched Bs in units of tokens / sqrt(sentences). The standard deviation
of a segment's length is about half of that unit (sentences vary by half of their mean)."""

SEARCH = 200_000
"""Splits that are searched at most, beside those that were drawn: where more are left, a shard is
large, and the draws have found what there is."""

LEAST_MATCHES = 2
"""Taken where there are as many chunks, alike or not: a toy has rows too, and too few to learn
lengths from."""


@dataclass(frozen=True)
class Exchange:
    """What became of chunks.

    Attributes:
        middle: [n] token position where A ends and B starts.
        a_sentences: [n] sentences of A; 1 where a sentence is cut.
        chosen: [n] the chunk whose B is used: the chunk itself (IsNext), one of another origin
            (NotNext, each B once), or `DROPPED`, where no chunk of another origin matched.
    """

    middle: Int64s
    a_sentences: Int64s
    chosen: Int64s


@dataclass(frozen=True)
class Segments:
    """What lengths tell of chunks; [n] each.

    Attributes:
        groups: chunks of different groups never match.
        origins: chunks of equal origin never match.
        a, b: tokens of A and B before truncation.
        b_sentences: sentences of B.
    """

    groups: Int64s
    origins: Int64s
    a: Int64s
    b: Int64s
    b_sentences: Int64s


def exchange(
    sentences: Sentences,
    chunks: Chunks,
    groups: Int64s,
    room: int,
    stream: Stream,
) -> Exchange:
    """Split chunks into A and B and choose whose B follows whose A.

    Args:
        sentences, chunks: a shard.
        groups: [n] chunks of different groups never exchange, nor do chunks of whole sentences
            and cut ones: a B that does not start a sentence would give the label away.
        room: tokens of A and B together, at most.
        stream: where the draws come from.
    """
    size = chunks.last - chunks.first
    whole = chunks.cut < 0
    start, end = sentences.offsets[chunks.first], sentences.offsets[chunks.last]
    origins = sentences.origins[sentences.document_of[chunks.first]]

    def middles(of: Int64s, a_sentences: Int64s) -> Int64s:
        between = sentences.offsets[chunks.first[of] + a_sentences]
        return np.where(whole[of], between, chunks.cut[of])

    def seen(of: Int64s, a_sentences: Int64s) -> Segments:
        middle = middles(of, a_sentences)
        return Segments(
            groups=2 * groups[of] + whole[of],
            origins=origins[of],
            a=middle - start[of],
            b=end[of] - middle,
            b_sentences=np.where(whole[of], size[of] - a_sentences, 1),
        )

    a_sentences = np.ones(len(size), dtype=np.int64)
    matches = np.zeros((0, 2), dtype=np.int64)
    left, work, searched = np.arange(len(size)), 0, 0
    is_left = np.ones(len(size), dtype=np.bool_)
    for attempt in range(ATTEMPTS):
        work += len(left)
        if len(left) < 2 or work > WORK * len(size):
            break
        drawn = left[whole[left]]
        a_sentences[drawn] = 1 + stream.child("splits", attempt).below(size[drawn] - 1)
        # Equal Bs first: in a large shard most chunks have one.
        tolerance = TOLERANCE if attempt else 0.0
        ties = stream.child("ties", attempt)
        found = left[match(seen(left, a_sentences[left]), room, tolerance, ties)]
        matches = np.concatenate([matches, found])
        is_left[found] = False
        left = left[is_left[left]]
    # Few splits of documents of two styles are alike: those that are do not wait to be drawn.
    for attempt in itertools.count():
        of, nth = _every_split(left, np.where(whole[left], size[left] - 1, 1))
        searched += len(of)
        if len(left) < 2 or searched > SEARCH:
            break
        ties = stream.child("ties of every split", attempt)
        found = match_one_of_each(seen(of, nth), of, room, TOLERANCE, ties)
        if not len(found):
            break
        a_sentences[of[found]] = nth[found]
        matches = np.concatenate([matches, of[found]])
        is_left[of[found]] = False
        left = left[is_left[left]]
    most = LEAST_MATCHES - len(matches)
    if most > 0 and len(left) > 1:
        ties = stream.child("ties", "loose")
        found = left[match_loosely(seen(left, a_sentences[left]), most, ties)]
        matches = np.concatenate([matches, found])
    chosen = toss(matches, len(size), stream.child("labels"))
    return Exchange(middles(np.arange(len(size)), a_sentences), a_sentences, chosen)


def match(segments: Segments, room: int, tolerance: float, stream: Stream) -> Int64s:
    """Chunks (i, j) that may swap their Bs, [m, 2]; each chunk is in one match at most.

    They are of one group and of different origins, and their Bs have equally many sentences. In
    both rows the swap moves no length after truncation by more than the tolerance, and makes no
    full row short and no short one full. Neighbours in the order of B's length are tried, equal
    ones in random order.
    """
    i, j, fits = _neighbours(segments, room, tolerance, stream)
    taken = _alternate(fits)
    return np.stack([i[taken], j[taken]], axis=1)


def match_one_of_each(
    segments: Segments, of: Int64s, room: int, tolerance: float, stream: Stream
) -> Int64s:
    """As `match`, where a chunk stands in several splits, `of` says which: it is in one match.

    Of neighbours that fit, those are taken that no other ones of their chunks precede in a random
    order; more may be left for another call.
    """
    i, j, fits = _neighbours(segments, room, tolerance, stream)
    i, j = i[fits], j[fits]
    rank = stream.permutation(len(i))
    first = np.full(1 + of.max(initial=0), len(i), dtype=np.int64)
    np.minimum.at(first, of[i], rank)
    np.minimum.at(first, of[j], rank)
    taken = (first[of[i]] == rank) & (first[of[j]] == rank)
    return np.stack([i[taken], j[taken]], axis=1)


def _neighbours(
    segments: Segments, room: int, tolerance: float, stream: Stream
) -> tuple[Int64s, Int64s, NDArray[np.bool_]]:
    """Neighbours i, j in the order of B's length, and whether they may swap their Bs."""
    a, b, count = segments.a, segments.b, segments.b_sentences
    a_kept, b_kept = truncated_lengths(a, b, room)
    order = np.lexsort((stream.uint64(len(a)), b_kept, count, segments.groups))
    i, j = order[:-1], order[1:]
    fits = _may_meet(segments, i, j) & (count[i] == count[j])
    limit = tolerance * np.minimum(b_kept[i], b_kept[j]) / np.sqrt(count[i])
    for own, other in ((i, j), (j, i)):
        a_new, b_new = truncated_lengths(a[own], b[other], room)
        fits &= np.abs(a_new - a_kept[own]) <= limit
        fits &= np.abs(b_new - b_kept[own]) <= limit
        fits &= (a_new + b_new == room) == (a_kept[own] + b_kept[own] == room)
    return i, j, fits


def match_loosely(segments: Segments, most: int, stream: Stream) -> Int64s:
    """At most `most` matches, [m, 2], of like Bs without a bound: the nearest in length."""
    order = np.lexsort((stream.uint64(len(segments.b)), segments.b, segments.groups))
    i, j = order[:-1], order[1:]
    taken = _alternate(_may_meet(segments, i, j))
    i, j = i[taken], j[taken]
    nearest = np.argsort(np.abs(segments.b[i] - segments.b[j]), kind="stable")[:most]
    return np.stack([i[nearest], j[nearest]], axis=1)


def toss(matches: Int64s, chunks: int, stream: Stream) -> Int64s:
    """[chunks] whose B follows each A: half of the matches swap.

    Of every two matches in their order, which are alike as a rule, a coin says which one swaps.
    Of an odd last match only one chunk is used, so that the labels differ by one at most.
    """
    i, j = matches.T
    count = len(matches)
    coins = (stream.uint32((count + 1) // 2) & 1).astype(np.bool_)
    swapped = np.repeat(coins, 2)[:count] ^ (np.arange(count) % 2 == 1)
    chosen = np.full(chunks, DROPPED, dtype=np.int64)
    chosen[i] = np.where(swapped, j, i)
    chosen[j] = np.where(swapped, i, j)
    if count % 2:
        chosen[j[-1]] = DROPPED
    return chosen


def _every_split(chunks: Int64s, splits: Int64s) -> tuple[Int64s, Int64s]:
    """Each chunk as often as it has splits, and which of them it is, from 1."""
    of = np.repeat(chunks, splits)
    return of, 1 + np.arange(len(of)) - np.repeat(np.cumsum(splits) - splits, splits)


def _may_meet(segments: Segments, i: Int64s, j: Int64s) -> NDArray[np.bool_]:
    """Whether i and j are of one group and two origins, one of them that which dominates.

    Where one origin holds more than half, each chunk of another one is a partner for it.
    """
    origins = segments.origins
    meets: NDArray[np.bool_] = segments.groups[i] == segments.groups[j]
    meets &= origins[i] != origins[j]
    middle = np.sort(origins)[len(origins) // 2]
    if 2 * np.count_nonzero(origins == middle) > len(origins):
        meets &= (origins[i] == middle) | (origins[j] == middle)
    return meets


def _alternate(fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of each run of neighbours that fit, the first, the third...: no chunk is taken twice."""
    place = np.arange(len(fits))
    first = fits & ~np.concatenate(([False], fits[:-1]))
    run = np.maximum.accumulate(np.where(first, place, 0))
    taken: NDArray[np.bool_] = fits & ((place - run) % 2 == 0)
    return taken
