"""From a plan to rows: token ids gathered once, into Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.text.full_sentences import SentencePlan
from stages.text.pairing import PairPlan

Int64s = NDArray[np.int64]

BLOCK_IDS = 1 << 16
BLOCK_ROWS = 4096
"""Rows gathered at a time, so that the working memory does not grow with the shard."""


def id_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The smallest unsigned type, 16 or 32 bits, that holds every id."""
    return np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.uint32)


def looked_up(table: NDArray[Any], ids: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """`table[ids]`, [T], for ids inside of the table, a block at a time.

    NumPy makes 64-bit indices of all ids at once: eight times a table of flags, fetched anew.
    """
    found = np.empty(len(ids), table.dtype)
    for low in range(0, len(ids), BLOCK_IDS):
        block = slice(low, low + BLOCK_IDS)
        # "clip": with "raise" NumPy would copy the result once more.
        table.take(ids[block], out=found[block], mode="clip")
    return found


def gather(
    ids: NDArray[np.integer[Any]],
    plan: PairPlan | SentencePlan,
    document_hashes: pa.Array,
    *,
    cls_id: int,
    sep_id: int,
    vocabulary_size: int,
    rows: slice | None = None,
) -> pa.Table:
    """Lay out `[CLS] A [SEP] B [SEP]`, or `[CLS] text [SEP]`, for the rows of a plan.

    Args:
        ids: [T] flat token ids of the shard, in the order that the plan counts in.
        plan: from `pairing.make_pairs` or `full_sentences.full_sentences`.
        document_hashes: [D] one value a document, of any type; passed through.
        cls_id, sep_id: ids of `[CLS]` and `[SEP]`.
        vocabulary_size: number of entries; decides the type of ids.
        rows: which rows, in their order (default: all), to bound memory.

    Returns:
        `input_ids` list<uint16 or uint32>; `a_length` uint16, tokens of A without specials
        (segment 0 is positions 0..a_length + 1); `is_next` bool, null for full sentences, where
        a_length covers all but the first and last token; `document`, A's hash.

    Raises:
        ValueError: a row of more than 65,535 tokens, or 2**31 tokens together.
    """
    picked = np.arange(len(plan))[rows if rows is not None else slice(None)]
    if isinstance(plan, PairPlan):
        spans = np.stack([plan.a[picked], plan.b[picked]], axis=1).reshape(-1, 2)
        counts = np.full(len(picked), 2, dtype=np.int64)
        a_length = plan.a[picked, 1] - plan.a[picked, 0]
        is_next = pa.array(plan.is_next[picked])
    else:
        counts = np.diff(plan.rows)[picked]
        spans = plan.segments[_positions(plan.rows[:-1][picked], counts)]
        a_length = np.zeros(len(picked), dtype=np.int64)
        is_next = pa.nulls(len(picked), pa.bool_())
    first_span = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    lengths_before = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0] + 1)))
    offsets = lengths_before[first_span] + np.arange(len(picked) + 1)
    longest = int(np.diff(offsets).max(initial=0))
    if longest >= 2**16 or offsets[-1] >= 2**31:
        raise ValueError(
            f"the longest row has {longest} tokens and all rows {offsets[-1]}: at most 65535 and "
            "2**31 - 1; gather fewer rows at a time"
        )
    if isinstance(plan, SentencePlan):
        a_length = np.diff(offsets) - 2
    values = np.empty(int(offsets[-1]), dtype=id_dtype(vocabulary_size))
    for low in range(0, len(picked), BLOCK_ROWS):
        high = min(low + BLOCK_ROWS, len(picked))
        _fill(
            values[offsets[low] : offsets[high]],
            ids,
            spans[first_span[low] : first_span[high]],
            offsets[low:high] - offsets[low],
            cls_id,
            sep_id,
            first_span[low:high] - first_span[low],
        )
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
    return pa.table(
        {
            "input_ids": lists,
            "a_length": pa.array(a_length.astype(np.uint16)),
            "is_next": is_next,
            "document": document_hashes.take(pa.array(plan.document[picked])),
        }
    )


def _fill(
    out: NDArray[Any],
    ids: NDArray[np.integer[Any]],
    spans: Int64s,
    row_starts: Int64s,
    cls_id: int,
    sep_id: int,
    first_span: Int64s,
) -> None:
    """Write the rows of one block: each span and its `[SEP]`, each row after its `[CLS]`."""
    sizes = spans[:, 1] - spans[:, 0]
    led = np.zeros(len(spans), dtype=np.int64)
    led[first_span] = 1
    ends = np.cumsum(sizes + 1 + led)
    starts = ends - 1 - sizes
    # One look-up for every place, those of special tokens too: these are written over.
    source = np.repeat(spans[:, 0] - starts, sizes + 1 + led)
    source += np.arange(len(out))
    out[:] = ids.take(source, mode="clip")
    out[row_starts] = cls_id
    out[ends - 1] = sep_id


def _positions(starts: Int64s, counts: Int64s) -> Int64s:
    shift = starts - (np.cumsum(counts) - counts)
    positions: Int64s = np.repeat(shift, counts) + np.arange(int(counts.sum()))
    return positions
