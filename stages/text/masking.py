"""Masked language modelling: which positions are predicted, and what stands there instead.

The kernel is pure NumPy over flat ids. Every draw is a function of (stream, row number, column),
so a row gets the same mask in whatever batch it is seen: the mask stage calls it on a shard,
dynamic masking in training on the rows of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.text.buffers import whole
from stages.text.random import Stream, counter_bits, counter_uint32
from stages.text.words_in_rows import Words, choose_spans, choose_words, find_words

Ids = NDArray[np.unsignedinteger[Any]]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Flags = NDArray[np.bool_]

BLOCK_TOKENS = 2**17
"""Tokens masked at a time; bounds memory and changes nothing else."""

_NEVER = np.uint32(0xFFFFFFFF)
_LOW_32 = np.uint64(0xFFFFFFFF)
_REPLACEMENT_COUNTER = 2**32
"""Counters of replacement draws start here, above those of positions."""


def vocabulary_flags(tokens: Sequence[str], special: Sequence[str]) -> tuple[Flags, Flags]:
    """Which entries of a vocabulary are ordinary (neither special nor `[unusedN]`), and which
    are `##` continuations; both [V] bool.
    """
    left_out = set(special)
    unused = re.compile(r"\[unused\d+\]")
    ordinary = [token not in left_out and not unused.fullmatch(token) for token in tokens]
    pieces = [token.startswith("##") for token in tokens]
    return np.asarray(ordinary, dtype=np.bool_), np.asarray(pieces, dtype=np.bool_)


@dataclass(frozen=True)
class MaskOptions:
    """What `mask_rows` does.

    Attributes:
        cls_id, sep_id: never candidates. mask_id: the entry that hides a token.
        ordinary: [V] entries that may stand in as random replacements; two at least.
        continuation: [V] entries that continue a word (`##`).
        max_predictions: cap a row.
        never: [V] entries that are never predicted, nor is a whole word that holds one; None:
            none. (Leave them out of `ordinary` too, if they are not to stand in for others.)
        strategy: per_token; whole_word: all pieces of a word or none; span: runs of whole words
            (SpanBERT, Joshi et al., 2020, arXiv:1907.10529).
        span_probability: spans of n words have the chance (1 - p)^(n - 1) p, scaled to one.
        span_words: the longest span.
        span_together: a span is hidden, replaced or kept as a whole, as SpanBERT does; False:
            each of its tokens by itself.
        probability: share of a row's tokens, special tokens counted, to be predicted.
        mask_share: of the chosen positions, those that become `[MASK]`.
        random_share: those that become another ordinary entry; the rest stay as they are.

    Raises:
        ValueError: shares or sizes that make no sense.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    ordinary: Flags
    continuation: Flags
    max_predictions: int
    strategy: Literal["per_token", "whole_word", "span"] = "per_token"
    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    never: Flags | None = None
    span_probability: float = 0.2
    span_words: int = 10
    span_together: bool = True

    def __post_init__(self) -> None:
        if len(self.ordinary) != len(self.continuation):
            raise ValueError("ordinary and continuation must have one flag for each entry")
        if self.never is not None and len(self.never) != len(self.ordinary):
            raise ValueError("never must have one flag for each entry")
        if not 0 < self.span_probability < 1 or not 1 <= self.span_words < 2**8:
            raise ValueError("span_probability must lie between 0 and 1, span_words in 1..255")
        if np.count_nonzero(self.ordinary) < 2:
            raise ValueError("the vocabulary needs two ordinary entries at least to draw from")
        if not 0 < self.probability < 1 or self.max_predictions < 1:
            raise ValueError("probability must lie between 0 and 1, max_predictions be 1 or more")
        if (
            min(self.mask_share, self.random_share) < 0
            or self.mask_share + self.random_share > 1 + 1e-9
        ):
            raise ValueError("mask_share and random_share must be shares of one whole")

    @cached_property
    def ordinary_ids(self) -> Int64s:
        """Ordinary entries, ascending."""
        return np.flatnonzero(self.ordinary)

    @cached_property
    def ordinary_rank(self) -> Int64s:
        """[V] place of an entry among the ordinary ones (of no meaning for others)."""
        rank: Int64s = np.cumsum(self.ordinary, dtype=np.int64) - 1
        return rank

    @cached_property
    def span_law(self) -> NDArray[np.float64]:
        """[span_words] the chance of a span of 1, 2... words; its mean is 3.8 by default."""
        chances = (1 - self.span_probability) ** np.arange(self.span_words)
        law: NDArray[np.float64] = chances / chances.sum()
        return law

    def candidates(self, ids: Ids, offsets: Int64s) -> Flags:
        """[T] what may be predicted in rows."""
        text: Flags = (ids != self.cls_id) & (ids != self.sep_id)
        if self.never is None:
            return text
        if self.strategy == "per_token":
            text &= ~self.never[ids]
            return text
        words = self.words(ids, offsets)
        return words.tokens(np.ones(len(words.heads), dtype=np.bool_), len(ids))

    def words(self, ids: Ids, offsets: Int64s) -> Words:
        """The words that may be predicted in rows."""
        return find_words(
            (ids != self.cls_id) & (ids != self.sep_id),
            self.continuation[ids],
            None if self.never is None else self.never[ids],
            offsets,
        )

    def quota(self, lengths: Int64s) -> Int64s:
        """Predictions for rows of these lengths: the reference's rule, `round` half to even."""
        wanted = np.rint(lengths * self.probability).astype(np.int64)
        counts: Int64s = np.minimum(self.max_predictions, np.maximum(1, wanted))
        return counts


@dataclass(frozen=True)
class Masked:
    """Rows after masking.

    Attributes:
        ids: [T] flat ids with replacements.
        positions: [M] columns of predicted tokens, ascending in each row.
        labels: [M] the tokens that stood there.
        offsets: [n + 1] row r's predictions are offsets[r]..offsets[r + 1] - 1.
    """

    ids: Ids
    positions: NDArray[np.uint16]
    labels: Ids
    offsets: Int64s


def mask_rows(
    ids: Ids,
    offsets: Int64s,
    options: MaskOptions,
    stream: Stream,
    rows: NDArray[np.integer[Any]] | None = None,
) -> Masked:
    """Choose positions to predict in each row and replace them.

    Args:
        ids: [T] flat ids, each row with its `[CLS]` and `[SEP]`s. Not changed.
        offsets: [n + 1] where rows start; rows of 65,535 tokens at most.
        options: what to do.
        stream: named by seed, stage, shard and copy (or epoch); it is not moved.
        rows: [n] numbers of the rows in the shard, the key of their draws (default 0..n - 1).
    """
    count = len(offsets) - 1
    longest = int(np.diff(offsets).max(initial=1))
    if longest >= 2**16:
        raise ValueError("rows longer than 65535 tokens cannot be masked")
    keys = stream.row_keys(np.arange(count) if rows is None else rows)
    out = ids.copy()
    positions: list[NDArray[np.uint16]] = []
    labels: list[Ids] = []
    counts = np.zeros(count, dtype=np.int64)
    block_rows = max(1, BLOCK_TOKENS // longest)
    for low in range(0, count, block_rows):
        high = min(low + block_rows, count)
        block = slice(int(offsets[low]), int(offsets[high]))
        block_offsets = offsets[low : high + 1] - offsets[low]
        block_ids = ids[block]
        chosen, leads = _choose(block_ids, block_offsets, keys[low:high], options)
        flat = np.flatnonzero(chosen)
        counts[low:high] = np.diff(np.searchsorted(flat, block_offsets))
        row = np.repeat(np.arange(high - low), counts[low:high])
        columns = flat - block_offsets[row]
        originals = block_ids[flat]
        decided = columns if leads is None else leads[flat] - block_offsets[row]
        out[block][flat] = _replacements(originals, columns, decided, keys[low:high][row], options)
        positions.append(columns.astype(np.uint16))
        labels.append(originals)
    return Masked(
        ids=out,
        positions=np.concatenate([np.zeros(0, dtype=np.uint16), *positions]),
        labels=np.concatenate([ids[:0], *labels]),
        offsets=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
    )


def mask_table(
    table: pa.Table,
    options: MaskOptions,
    stream: Stream,
    rows: NDArray[np.integer[Any]] | None = None,
) -> pa.Table:
    """`mask_rows` over a table with `input_ids` list<uint16 or uint32>.

    `input_ids` gets the replacements; `mlm_positions` list<uint16> and `mlm_labels`, of the type
    of `input_ids`, are added; other columns and the schema's metadata stay. Give `rows` when the
    table is a part of a shard.
    """
    lists = whole(table.column("input_ids"))
    offsets = lists.offsets.to_numpy().astype(np.int64)
    ids = lists.flatten().to_numpy()
    masked = mask_rows(ids, offsets - offsets[0], options, stream, rows)
    lengths = pa.array((offsets - offsets[0]).astype(np.int32))
    predicted = pa.array(masked.offsets.astype(np.int32))
    place = table.schema.get_field_index("input_ids")
    return (
        table.set_column(
            place, "input_ids", pa.ListArray.from_arrays(lengths, pa.array(masked.ids))
        )
        .append_column(
            "mlm_positions", pa.ListArray.from_arrays(predicted, pa.array(masked.positions))
        )
        .append_column("mlm_labels", pa.ListArray.from_arrays(predicted, pa.array(masked.labels)))
    )


def _choose(
    ids: Ids, offsets: Int64s, keys: UInt64s, options: MaskOptions
) -> tuple[Flags, Int64s | None]:
    """[T] whether each position is predicted, and [T] the position that decides its fate."""
    quota = options.quota(np.diff(offsets))
    if options.strategy == "per_token":
        candidate = options.candidates(ids, offsets)
        before = np.concatenate(([0], np.cumsum(candidate, dtype=np.int64)))
        available = before[offsets[1:]] - before[offsets[:-1]]
        return _choose_tokens(candidate, offsets, keys, np.minimum(quota, available)), None
    words = options.words(ids, offsets)
    if options.strategy == "whole_word":
        return words.tokens(choose_words(words, offsets, keys, quota), len(ids)), None
    span = choose_spans(words, keys, quota, options.span_law)
    chosen = words.tokens(span >= 0, len(ids))
    if not options.span_together:
        return chosen, None
    leads = np.zeros(len(ids), dtype=np.int64)
    masked = span >= 0
    leads[chosen] = np.repeat(words.heads[span[masked]], words.sizes[masked])
    return chosen, leads


def _choose_tokens(candidate: Flags, offsets: Int64s, keys: UInt64s, quota: Int64s) -> Flags:
    """The `quota` candidates of each row with the smallest random keys."""
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=1))
    inside = np.arange(width) < lengths[:, np.newaxis]
    eligible = np.zeros(inside.shape, dtype=np.bool_)
    eligible[inside] = candidate
    lots = counter_uint32(keys, width)
    np.minimum(lots, _NEVER - np.uint32(1), out=lots)
    lots[~eligible] = _NEVER
    ordered = np.sort(lots, axis=1)
    threshold = ordered[np.arange(len(quota)), np.maximum(quota - 1, 0)]
    threshold[quota == 0] = 0
    chosen = (lots <= threshold[:, np.newaxis]) & (quota > 0)[:, np.newaxis]
    excess = np.count_nonzero(chosen, axis=1) - quota
    # Equal keys at the threshold, about once in 2**32 / width rows: the last columns give way.
    for row in np.flatnonzero(excess):
        tied = np.flatnonzero(lots[row] == threshold[row])
        chosen[row, tied[len(tied) - excess[row] :]] = False
    picked: Flags = chosen[inside]
    return picked


def _replacements(
    originals: Ids, columns: Int64s, decided: Int64s, keys: UInt64s, options: MaskOptions
) -> Ids:
    """What stands at chosen positions: `[MASK]`, another ordinary entry, or the token itself.

    Which of the three is drawn at column `decided`, the entry at the token's own.
    """
    bits = counter_bits(keys, columns + _REPLACEMENT_COUNTER)
    deciding = bits if decided is columns else counter_bits(keys, decided + _REPLACEMENT_COUNTER)
    lot = (deciding >> np.uint64(32)).astype(np.float64) * 2.0**-32
    hidden = lot < options.mask_share
    drawn = np.flatnonzero(~hidden & (lot < options.mask_share + options.random_share))
    result = originals.copy()
    result[hidden] = options.mask_id
    result[drawn] = _other_entries(originals[drawn], bits[drawn] & _LOW_32, options)
    return result


def _other_entries(originals: Ids, draws: UInt64s, options: MaskOptions) -> Int64s:
    """For each original a random ordinary entry that is not it; draws: 32 random bits each."""
    own = options.ordinary[originals]
    # One entry less to draw from where the original is itself ordinary, and a step over it.
    entries = (len(options.ordinary_ids) - own).astype(np.uint64)
    rank = ((draws * entries) >> np.uint64(32)).astype(np.int64)
    rank += own & (rank >= options.ordinary_rank[originals])
    return options.ordinary_ids[rank]
