"""From cleaned documents to rows of shards: identity, order, validation side, parts, duplicates.

A document is known by the hash of its cleaned text (its *origin*), whatever file it came from.
Its parts are put in the order of a keyed hash, and that order is cut into shards of about equal
bytes. So the same documents give the same shards, in whatever files, batches and order they come;
a shard is a random sample of the corpus; and exact duplicates meet in one shard.

Tables between the passes have the columns of `ROW_SCHEMA`; what a shard holds in the end is
`SHARD_SCHEMA`, and beside it `PROVENANCE_SCHEMA`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.text.buffers import text_buffer
from stages.text.cutting import cut_documents

ORIGIN_BYTES = 16
ORIGIN = pa.binary(ORIGIN_BYTES)

SHARD_SCHEMA = pa.schema(
    [
        pa.field("document", ORIGIN, nullable=False),
        pa.field("part", pa.uint32(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("sentence_ends", pa.list_(pa.uint32()), nullable=False),
    ]
)
PROVENANCE_SCHEMA = pa.schema(
    [
        pa.field("document", ORIGIN, nullable=False),
        pa.field("part", pa.uint32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)
ROW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("validation", pa.bool_(), nullable=False),
        # How often the row stands in its shard.
        pa.field("repeat", pa.uint32(), nullable=False),
        # Bytes of text, so that shards can be planned without reading it.
        pa.field("size", pa.uint32(), nullable=False),
        *SHARD_SCHEMA,
        *list(PROVENANCE_SCHEMA)[2:],
    ]
)

Keys = npt.NDArray[np.uint64]


def document_hash(texts: pa.Array) -> pa.FixedSizeBinaryArray:
    """BLAKE2b of each cleaned text, 128 bits: the same text has the same hash wherever it is."""
    data, offsets = text_buffer(texts)
    hashes = _hashes(hashlib.blake2b(digest_size=ORIGIN_BYTES), data, offsets.tolist())
    buffers = [None, pa.py_buffer(b"".join(hashes))]
    return pa.FixedSizeBinaryArray.from_buffers(ORIGIN, len(hashes), buffers)


def _origin_bytes(origin: pa.Array) -> npt.NDArray[np.uint8]:
    """uint8 [n, 16]"""
    data = np.frombuffer(origin.buffers()[1] or b"", np.uint8)
    start = origin.offset * ORIGIN_BYTES
    return data[start : start + len(origin) * ORIGIN_BYTES].reshape(-1, ORIGIN_BYTES)


def _hashes(fresh: Any, data: npt.NDArray[np.uint8], offsets: Iterable[int]) -> list[bytes]:
    """What `fresh`, a hash that has read nothing, says of each message of a buffer."""
    # A copy of a hash that has taken its key and settings costs half of a new one.
    copy = fresh.copy
    view = memoryview(data.data)
    hashes = []
    for start, end in pairwise(offsets):
        hashed = copy()
        hashed.update(view[start:end])
        hashes.append(hashed.digest())
    return hashes


def _keyed(seed: int, purpose: bytes, messages: npt.NDArray[np.uint8]) -> Keys:
    """64-bit BLAKE2b of each row, keyed by the seed; each purpose draws for itself."""
    key = seed.to_bytes(16, "little", signed=True)
    width = messages.shape[1]
    fresh = hashlib.blake2b(digest_size=8, key=key, person=purpose)
    hashes = _hashes(fresh, messages.reshape(-1), range(0, messages.size + 1, width))
    return np.frombuffer(b"".join(hashes), np.dtype("<u8")).astype(np.uint64)


def _share_of_keys(share: float) -> np.uint64:
    # Compared as integers, since a share such as 0.02 has no exact product with 2^64 in float64.
    return np.uint64(min(int(share * 2**64), 2**64 - 1))


def order_key(seed: int, origin: pa.Array, part: pa.Array) -> Keys:
    """Where each part stands in the corpus: uint64, uniform, equal for equal (origin, part)."""
    numbers = part.to_numpy(zero_copy_only=False).astype("<u4")
    messages = np.concatenate(
        (_origin_bytes(origin), numbers.view(np.uint8).reshape(-1, 4)), axis=1
    )
    return _keyed(seed, b"order", messages)


def is_validation(seed: int, origin: pa.Array, share: float) -> npt.NDArray[np.bool_]:
    """Whether each document is held out: `share` of all origins, independent of the order.

    Only the origin counts, so parts of a document and equal documents are on one side.
    """
    keys = _keyed(seed, b"validation", _origin_bytes(origin))
    return np.asarray(keys < _share_of_keys(share))


def is_sampled(seed: int, origin: pa.Array, share: float) -> npt.NDArray[np.bool_]:
    """Whether each document is in a sample of `share` of all origins, independent of the rest.

    A larger share holds all of a smaller one's, so a document that two sources hold is kept when
    the source with the larger share keeps it.
    """
    if share >= 1:
        return np.ones(len(origin), np.bool_)
    return np.asarray(_keyed(seed, b"sample", _origin_bytes(origin)) < _share_of_keys(share))


def document_rows(
    documents: pa.RecordBatch,
    sentence_ends: pa.ListArray,
    *,
    seed: int,
    validation_share: float,
    max_document_bytes: int,
    origin: pa.Array | None = None,
    repeat: int = 1,
) -> pa.Table:
    """Rows of the first pass (`ROW_SCHEMA`), oversized documents cut into parts; in no order.

    Args:
        documents: columns source, id and text (cleaned, not empty).
        sentence_ends: of `documents["text"]`.
        seed: of the split: order and validation side.
        validation_share: share of documents held out.
        max_document_bytes: longest part.
        origin: `document_hash` of the texts, when it is known already.
        repeat: how often a training document is to stand in its shard.
    """
    if origin is None:
        origin = document_hash(documents["text"])
    held_out = is_validation(seed, origin, validation_share)
    parts = cut_documents(documents["text"], sentence_ends, max_document_bytes)
    source, ids = documents["source"], documents["id"]
    if parts.num_rows != len(origin):
        row = parts["row"]
        held_out = held_out[row.to_numpy()]
        origin, source, ids = origin.take(row), source.take(row), ids.take(row)
    return pa.table(
        [
            pa.array(order_key(seed, origin, parts["part"])),
            pa.array(held_out),
            pa.array(np.where(held_out, 1, repeat).astype(np.uint32)),
            pc.binary_length(parts["text"]).cast(pa.uint32()),
            origin,
            parts["part"],
            parts["text"],
            parts["sentence_ends"],
            source,
            ids,
        ],
        schema=ROW_SCHEMA,
    )


@dataclass(frozen=True)
class Merged:
    """Rows in order, and what deduplication left out.

    Attributes:
        rows: in the order of (key, document, part, source, id); training rows first, where the
            table says which are held out.
        duplicate_rows: rows left out.
        duplicate_documents: documents left out; each is counted where its first part is.
    """

    rows: pa.Table
    duplicate_rows: int
    duplicate_documents: int


def merge_rows(tables: Sequence[pa.Table], deduplicate: bool = True) -> Merged:
    """Sort rows of any number of tables and drop duplicates.

    It may be applied to parts of a corpus, and again to its own results.

    Args:
        tables: one or more of one schema, with the columns key, document, part, source, id and
            repeat, perhaps validation.
        deduplicate: keep one of several rows with equal origin and part: of equal texts, the one
            whose source and id come first, with the largest `repeat` of them.

    Raises:
        ValueError: they hold 2 GiB of text or more, which is more than one table can take.
    """
    table = pa.concat_tables(tables)
    keys = table["key"].to_numpy()
    sides = ["validation"] if "validation" in table.column_names else []
    if not sides and np.all(keys[1:] > keys[:-1]):
        return Merged(table, 0, 0)
    try:
        table = table.combine_chunks()
    except pa.ArrowInvalid as error:
        raise ValueError(f"too much text with about one key: {error}") from None
    order = np.argsort(keys)
    if not np.any(keys[order][1:] == keys[order][:-1]):
        for name in sides:
            held_out = table[name].to_numpy()[order]
            order = np.concatenate((order[~held_out], order[held_out]))
        return Merged(table.take(pa.array(order)).combine_chunks(), 0, 0)
    names = (*sides, "key", "document", "part", "source", "id")
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    table = table.take(order).combine_chunks()
    if not deduplicate:
        return Merged(table, 0, 0)
    same = np.ones(table.num_rows - 1, np.bool_)
    for name in ("key", "part", "document"):
        column = table[name].combine_chunks()
        same &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    first = np.append(True, ~same)
    dropped = table["part"].to_numpy()[~first]
    most = np.maximum.reduceat(table["repeat"].to_numpy(), np.flatnonzero(first))
    table = table.filter(pa.array(first)).combine_chunks()
    table = table.set_column(
        table.schema.get_field_index("repeat"), table.schema.field("repeat"), pa.array(most)
    )
    return Merged(table, len(dropped), int(np.count_nonzero(dropped == 0)))


def copies(tables: Iterable[pa.Table], number: int) -> Iterator[pa.Table]:
    """Of `tables`, the rows that stand in their shard more than `number` times."""
    for table in tables:
        kept = table.filter(pc.greater(table["repeat"], number)) if number else table
        if kept.num_rows:
            yield kept
