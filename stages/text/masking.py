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

from stages.text.random import Stream, counter_bits, counter_uint32

Ids = NDArray[np.unsignedinteger[Any]]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Flags = NDArray[np.bool_]

BLOCK_ROWS = 1024
"""Rows masked at a time; bounds memory and changes nothing else."""

_NEVER = np.uint32(0xFFFFFFFF)
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
        strategy: per_token, or whole_word: all pieces of a word or none.
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
    strategy: Literal["per_token", "whole_word"] = "per_token"
    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1

    def __post_init__(self) -> None:
        if len(self.ordinary) != len(self.continuation):
            raise ValueError("ordinary and continuation must have one flag for each entry")
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
    if count and int(np.diff(offsets).max()) >= 2**16:
        raise ValueError("rows longer than 65535 tokens cannot be masked")
    keys = stream.row_keys(np.arange(count) if rows is None else rows)
    out = ids.copy()
    positions: list[NDArray[np.uint16]] = []
    labels: list[Ids] = []
    counts = np.zeros(count, dtype=np.int64)
    for low in range(0, count, BLOCK_ROWS):
        high = min(low + BLOCK_ROWS, count)
        block = slice(int(offsets[low]), int(offsets[high]))
        block_offsets = offsets[low : high + 1] - offsets[low]
        block_ids = ids[block]
        chosen = _choose(block_ids, block_offsets, keys[low:high], options)
        flat = np.flatnonzero(chosen)
        counts[low:high] = np.diff(np.searchsorted(flat, block_offsets))
        row = np.repeat(np.arange(high - low), counts[low:high])
        columns = flat - block_offsets[row]
        originals = block_ids[flat]
        out[block][flat] = _replacements(originals, columns, keys[low:high][row], options)
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
    lists = table.column("input_ids").combine_chunks()
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


def _choose(ids: Ids, offsets: Int64s, keys: UInt64s, options: MaskOptions) -> Flags:
    """[T] whether each position is predicted."""
    candidate = (ids != options.cls_id) & (ids != options.sep_id)
    before = np.concatenate(([0], np.cumsum(candidate, dtype=np.int64)))
    available = before[offsets[1:]] - before[offsets[:-1]]
    quota = np.minimum(options.quota(np.diff(offsets)), available)
    if options.strategy == "per_token":
        return _choose_tokens(candidate, offsets, keys, quota)
    return _choose_words(ids, candidate, offsets, keys, quota, options)


def _choose_tokens(candidate: Flags, offsets: Int64s, keys: UInt64s, quota: Int64s) -> Flags:
    """The `quota` candidates of each row with the smallest random keys."""
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=1))
    inside = np.arange(width) < lengths[:, np.newaxis]
    eligible = np.zeros(inside.shape, dtype=np.bool_)
    eligible[inside] = candidate
    lots = np.minimum(counter_uint32(keys, width), _NEVER - np.uint32(1))
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


def _choose_words(
    ids: Ids,
    candidate: Flags,
    offsets: Int64s,
    keys: UInt64s,
    quota: Int64s,
    options: MaskOptions,
) -> Flags:
    """Whole words in random order, each taken unless it would exceed the row's quota."""
    after_special = np.concatenate(([True], ~candidate[:-1]))
    # Truncation may leave a segment that starts with a `##` piece: it heads itself.
    head = candidate & (~options.continuation[ids] | after_special)
    heads = np.flatnonzero(head)
    word = np.cumsum(head, dtype=np.int64) - 1
    sizes = np.bincount(word[candidate], minlength=len(heads))
    first_word = np.searchsorted(heads, offsets)
    words = np.diff(first_word)
    width = int(words.max(initial=0))
    if width == 0:
        return np.zeros(len(ids), dtype=np.bool_)
    inside = np.arange(width) < words[:, np.newaxis]
    row = np.repeat(np.arange(len(words)), words)
    columns = heads - offsets[row]
    lots = counter_uint32(keys, int(np.diff(offsets).max()))[row, columns]
    # A lot and its word in one integer: sorted together, and ties have an order.
    tagged = np.full(inside.shape, np.iinfo(np.uint64).max, dtype=np.uint64)
    local = np.arange(len(heads)) - first_word[row]
    tagged[inside] = (lots.astype(np.uint64) << np.uint64(32)) | local.astype(np.uint64)
    tagged.sort(axis=1)
    drawn = (tagged & np.uint64(0xFFFFFFFF)).astype(np.int64)
    drawn[~inside] = 0
    drawn += first_word[:-1, np.newaxis]
    drawn_size = np.where(inside, sizes[np.minimum(drawn, len(sizes) - 1)], np.iinfo(np.int64).max)
    taken = np.zeros(len(heads), dtype=np.bool_)
    open_rows = np.flatnonzero(quota > 0)
    left = quota[open_rows]
    for column in range(width):
        size = drawn_size[open_rows, column]
        fits = size <= left
        taken[drawn[open_rows[fits], column]] = True
        left = left - np.where(fits, size, 0)
        still = (left > 0) & (words[open_rows] > column + 1)
        open_rows, left = open_rows[still], left[still]
        if not len(open_rows):
            break
    chosen = candidate.copy()
    chosen[candidate] = taken[word[candidate]]
    return chosen


def _replacements(originals: Ids, columns: Int64s, keys: UInt64s, options: MaskOptions) -> Ids:
    """What stands at chosen positions: `[MASK]`, another ordinary entry, or the token itself."""
    bits = counter_bits(keys, columns + _REPLACEMENT_COUNTER)
    lot = (bits >> np.uint64(32)).astype(np.float64) * 2.0**-32
    place = bits & np.uint64(0xFFFFFFFF)
    own = options.ordinary[originals]
    # One entry less to draw from where the original is itself ordinary, and a step over it.
    entries = (len(options.ordinary_ids) - own).astype(np.uint64)
    rank = ((place * entries) >> np.uint64(32)).astype(np.int64)
    rank += own & (rank >= options.ordinary_rank[originals])
    replaced = options.ordinary_ids[rank].astype(originals.dtype)
    kept = np.where(lot < options.mask_share + options.random_share, replaced, originals)
    result: Ids = np.where(lot < options.mask_share, options.mask_id, kept).astype(originals.dtype)
    return result
