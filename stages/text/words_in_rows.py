"""Whole words of token rows, and which of them are predicted: single words, or spans of words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.text.random import counter_bits, counter_uint32

Ids = NDArray[np.unsignedinteger[Any]]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Flags = NDArray[np.bool_]

SPAN_COUNTER = 2**33
"""Counters of spans' draws start here, above those of positions and replacements."""

TRIES = 16
"""Places drawn for a span before all places where it fits are listed."""

_LAST = np.iinfo(np.uint64).max
_LOW_32 = np.uint64(0xFFFFFFFF)
_SIZE = np.uint64(0xFFFF)


@dataclass(frozen=True)
class Words:
    """Words of rows that may be predicted.

    Attributes:
        heads: [W] flat position of each word's first token.
        sizes: [W] its tokens.
        first: [n + 1] row r holds the words first[r]..first[r + 1] - 1.
    """

    heads: Int64s
    sizes: Int64s
    first: Int64s

    def tokens(self, taken: Flags, length: int) -> Flags:
        """[length] whether a flat position belongs to one of the words that are flagged [W]."""
        sizes = self.sizes[taken]
        ends = np.cumsum(sizes)
        flags = np.zeros(length, dtype=np.bool_)
        flags[np.repeat(self.heads[taken] - ends + sizes, sizes) + np.arange(ends[-1:].sum())] = (
            True
        )
        return flags


def find_words(text: Flags, continues: Flags, never: Flags | None, offsets: Int64s) -> Words:
    """The words of rows.

    Args:
        text: [T] all but `[CLS]` and `[SEP]`.
        continues: [T] whether a token continues a word. Where truncation left a segment that
            starts with such a piece, it heads itself.
        never: [T] tokens that are not predicted, nor is the word that holds one.
        offsets: [n + 1] where rows start.
    """
    head = text.copy()
    head[1:] &= ~(continues[1:] & text[:-1])
    stops = np.flatnonzero(head | ~text)
    starts = np.flatnonzero(head[stops])
    heads = stops[starts]
    ends = np.append(stops, len(text))[starts + 1]
    if never is not None and len(heads):
        before = np.concatenate(([0], np.cumsum(never, dtype=np.int64)))
        open_ones = before[ends] == before[heads]
        heads, ends = heads[open_ones], ends[open_ones]
    return Words(heads, ends - heads, np.searchsorted(heads, offsets))


def choose_words(words: Words, offsets: Int64s, keys: UInt64s, quota: Int64s) -> Flags:
    """[W] words in random order, each taken unless it would exceed its row's quota of tokens."""
    taken = np.zeros(len(words.heads), dtype=np.bool_)
    count = np.diff(words.first)
    lengths = np.diff(offsets)
    if not len(words.heads):
        return taken
    inside = np.arange(int(lengths.max())) < lengths[:, np.newaxis]
    lots = counter_uint32(keys, inside.shape[1])[inside][words.heads]
    # The walk ends after about quota words: look at those with the least lots. A row in a
    # thousand needs more.
    enough = (quota + 3 * np.sqrt(quota) + 2) / np.maximum(count, 1)
    limit = np.minimum(enough * 2.0**32, 2.0**32 - 1).astype(np.uint32)
    near = np.flatnonzero(lots <= np.repeat(limit, count))
    held = np.diff(np.searchsorted(near, words.first))
    # A lot, its word and the word's size in one integer: sorted together, and ties have an order.
    local = near - np.repeat(words.first[:-1], held)
    filled = np.arange(int(held.max())) < held[:, np.newaxis]
    tagged = np.full(filled.shape, _LAST, dtype=np.uint64)
    tagged[filled] = _tag(lots[near], local, words.sizes[near])
    tagged.sort(axis=1)
    # First all words before one that does not fit, in one step for all rows.
    total = np.cumsum((tagged & _SIZE).astype(np.int32), axis=1, dtype=np.int32)
    fits = (total <= quota[:, np.newaxis]) & filled
    row, _ = fits.nonzero()
    taken[words.first[row] + _word(tagged[fits])] = True
    column = np.count_nonzero(fits, axis=1)
    some = np.flatnonzero(column)
    left = quota.copy()
    left[some] -= total[some, column[some] - 1]
    rows = np.flatnonzero((left > 0) & (column < held))
    while len(rows):
        drawn = tagged[rows, column[rows]]
        size = (drawn & _SIZE).astype(np.int64)
        fit = size <= left[rows]
        taken[(words.first[rows] + _word(drawn))[fit]] = True
        left[rows] -= np.where(fit, size, 0)
        column[rows] += 1
        rows = rows[(left[rows] > 0) & (column[rows] < held[rows])]
    for r in np.flatnonzero((left > 0) & (held < count)).tolist():
        own = slice(int(words.first[r]), int(words.first[r + 1]))
        remaining = int(left[r])
        for word in np.sort(_tag(lots[own], np.arange(count[r]), words.sizes[own]))[held[r] :]:
            if int(word & _SIZE) <= remaining:
                taken[own.start + int(_word(word))] = True
                remaining -= int(word & _SIZE)
    return taken


def _tag(lots: NDArray[np.uint32], words: Int64s, sizes: Int64s) -> UInt64s:
    shifted = lots.astype(np.uint64) << np.uint64(32)
    return shifted | (words << 16 | sizes).astype(np.uint64)


def _word(tagged: UInt64s) -> Int64s:
    return ((tagged & _LOW_32) >> np.uint64(16)).astype(np.int64)


def choose_spans(words: Words, keys: UInt64s, quota: Int64s, law: NDArray[np.float64]) -> Int64s:
    """[W] the first word of the span that holds a word, or -1 (SpanBERT, Joshi et al., 2020,
    arXiv:1907.10529).

    A row draws a length in words, then the word at which a span of it starts, again until it lies
    in one segment and on no other span; and so on until the quota of tokens is used. The span
    that would exceed it is cut after the last word that fits, and is the last one. Where no place
    is left for a length, the longest free run is taken.

    Args:
        words: from `find_words`.
        keys: [n] of rows.
        quota: [n] tokens a row.
        law: [m] probability of 1..m words.
    """
    span = np.full(len(words.heads), -1, dtype=np.int64)
    if not len(span):
        return span
    # A span never runs over a [SEP], a row's end or a word that is not there.
    closes = np.append(words.heads[1:] != (words.heads + words.sizes)[:-1], True)
    last = np.flatnonzero(closes)
    run_end = last[np.searchsorted(last, np.arange(len(span)))] + 1
    before = np.concatenate(([0], np.cumsum(words.sizes)))
    edges = np.floor(np.cumsum(law)[:-1] * 2.0**32).astype(np.uint64)
    steps = np.arange(len(law))
    count = np.diff(words.first)
    left = quota.copy()
    length = np.zeros(len(count), dtype=np.int64)
    failed = np.zeros(len(count), dtype=np.int64)
    rows = np.flatnonzero((left > 0) & (count > 0))
    attempt = 0
    while len(rows):
        bits = counter_bits(keys[rows], np.full(len(rows), SPAN_COUNTER + attempt))
        attempt += 1
        drawn = 1 + np.searchsorted(edges, bits & _LOW_32, side="right")
        length[rows] = np.where(failed[rows] == 0, drawn, length[rows])
        lot = bits >> np.uint64(32)
        start = words.first[rows] + _scaled(lot, count[rows])
        for k in np.flatnonzero(failed[rows] >= TRIES).tolist():
            r = rows[k]
            own = slice(words.first[r], words.first[r + 1])
            open_ones = (span[own] < 0) & (words.sizes[own] <= left[r])
            place, length[r] = _listed(
                span[own], run_end[own] - own.start, open_ones, length[r], lot[k]
            )
            start[k] = own.start + place
        wide = length[rows, np.newaxis]
        part = np.minimum(start[:, np.newaxis] + np.minimum(steps, wide - 1), len(span) - 1)
        used = before[part + 1] - before[start, np.newaxis]
        kept = (steps < wide) & (used <= left[rows, np.newaxis])
        kept_words = np.count_nonzero(kept, axis=1)
        fits = (start + length[rows] <= run_end[start]) & np.all(span[part] < 0, axis=1)
        fits &= kept_words > 0
        span[part[fits[:, np.newaxis] & kept]] = np.repeat(start[fits], kept_words[fits])
        after = np.minimum(start + kept_words, len(span))
        left[rows] -= np.where(fits, before[after] - before[start], 0)
        # Cut to the quota: the row's last.
        left[rows[fits & (kept_words < length[rows])]] = 0
        left[rows[length[rows] == 0]] = 0
        failed[rows] = np.where(fits, 0, failed[rows] + 1)
        rows = rows[left[rows] > 0]
    return span


def _scaled(lots: UInt64s, sizes: Int64s) -> Int64s:
    """A place in 0..size - 1 for each 32-bit lot."""
    return ((lots * sizes.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def _listed(
    span: Int64s, run_end: Int64s, open_ones: Flags, length: int, lot: np.uint64
) -> tuple[int, int]:
    """A start and a length in one row, of all that are left; length 0: none is."""
    place = np.arange(len(span))
    taken = np.where(span >= 0, place, len(span))
    stop = np.minimum(run_end, np.minimum.accumulate(taken[::-1])[::-1])
    room = np.where(open_ones, stop - place, 0)
    length = min(length, int(room.max()))
    if length == 0:
        return 0, 0
    starts = np.flatnonzero(room >= length)
    return int(starts[(int(lot) * len(starts)) >> 32]), length
