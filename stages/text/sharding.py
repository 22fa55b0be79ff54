"""From cleaned documents to shards: identity, order, validation side, parts, cuts, duplicates.

A document is known by the hash of its cleaned text (its *origin*), whatever file it came from.
Its parts are put in the order of a keyed hash, and that order is cut into shards of about equal
bytes. So the same documents give the same shards, in whatever files, batches and order they come;
a shard is a random sample of the corpus; and exact duplicates meet in one shard.

Tables between the passes have the columns of `ROW_SCHEMA`; what a shard holds in the end is
`SHARD_SCHEMA`, and beside it `PROVENANCE_SCHEMA`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
        *SHARD_SCHEMA,
        *list(PROVENANCE_SCHEMA)[2:],
    ]
)

Keys = npt.NDArray[np.uint64]


def document_hash(texts: pa.Array) -> pa.FixedSizeBinaryArray:
    """BLAKE2b of each cleaned text, 128 bits: the same text has the same hash wherever it is."""
    data, offsets = text_buffer(texts)
    view = memoryview(data.data)
    bounds = offsets.tolist()
    hashes = [
        hashlib.blake2b(view[start:end], digest_size=ORIGIN_BYTES).digest()
        for start, end in pairwise(bounds)
    ]
    return pa.array(hashes, ORIGIN)


def _keyed(seed: int, purpose: bytes, messages: Sequence[bytes]) -> Keys:
    """64-bit BLAKE2b of each message, keyed by the seed; each purpose draws for itself."""
    key = seed.to_bytes(16, "little", signed=True)
    hashes = [hashlib.blake2b(m, digest_size=8, key=key, person=purpose).digest() for m in messages]
    return np.frombuffer(b"".join(hashes), np.dtype("<u8")).astype(np.uint64)


def order_key(seed: int, origin: pa.Array, part: pa.Array) -> Keys:
    """Where each part stands in the corpus: uint64, uniform, equal for equal (origin, part)."""
    numbers = part.to_numpy(zero_copy_only=False).astype("<u4")
    messages = [o + n.tobytes() for o, n in zip(origin.to_pylist(), numbers, strict=True)]
    return _keyed(seed, b"order", messages)


def is_validation(seed: int, origin: pa.Array, share: float) -> npt.NDArray[np.bool_]:
    """Whether each document is held out: `share` of all origins, independent of the order.

    Only the origin counts, so parts of a document and equal documents are on one side.
    """
    # Compared as integers, since a share such as 0.02 has no exact product with 2^64 in float64.
    limit = np.uint64(min(int(share * 2**64), 2**64 - 1))
    return np.asarray(_keyed(seed, b"validation", origin.to_pylist()) < limit)


def document_rows(
    documents: pa.RecordBatch,
    sentence_ends: pa.ListArray,
    *,
    seed: int,
    validation_share: float,
    max_document_bytes: int,
) -> pa.Table:
    """Rows of the first pass (`ROW_SCHEMA`), oversized documents cut into parts, sorted by key.

    Args:
        documents: columns source, id and text (cleaned, not empty).
        sentence_ends: of `documents["text"]`.
        seed: of the split: order and validation side.
        validation_share: share of documents held out.
        max_document_bytes: longest part.
    """
    origin = document_hash(documents["text"])
    held_out = pa.array(is_validation(seed, origin, validation_share))
    parts = cut_documents(documents["text"], sentence_ends, max_document_bytes)
    document = origin.take(parts["row"])
    table = pa.table(
        [
            pa.array(order_key(seed, document, parts["part"])),
            held_out.take(parts["row"]),
            document,
            parts["part"],
            parts["text"],
            parts["sentence_ends"],
            documents["source"].take(parts["row"]),
            documents["id"].take(parts["row"]),
        ],
        schema=ROW_SCHEMA,
    )
    return _in_order(table)


def shard_cuts(
    keys: Keys, sizes: npt.NDArray[np.integer], shard_bytes: int, shards: int | None = None
) -> Keys:
    """The first key of each shard but the first, so that shards hold about equal bytes.

    The number of shards is max(1, ceil(bytes / shard_bytes)), or `shards`; never more than there
    are distinct keys. It depends on the distinct rows alone: rows that share a key are duplicates
    and count once.

    Args:
        keys: order keys of all rows of one side of the split, in any order.
        sizes: bytes of text of each row.
        shard_bytes: what a shard aims at.
        shards: their number, if it is given.

    Returns:
        n - 1 rising keys; `shard_of` says what they mean.
    """
    distinct, index = np.unique(keys, return_index=True)
    if not len(distinct):
        return np.zeros(0, np.uint64)
    # Two rows with one key and unequal sizes are a collision of hashes: take the larger, so that
    # the order of the rows does not matter.
    size = np.zeros(len(distinct), np.int64)
    size[:] = np.asarray(sizes, np.int64)[index]
    if len(distinct) < len(keys):
        np.maximum.at(size, np.searchsorted(distinct, keys), np.asarray(sizes, np.int64))
    filled = np.cumsum(size)
    total = int(filled[-1])
    number = shards if shards is not None else max(1, -(-total // shard_bytes))
    number = min(number, len(distinct))
    cuts = np.zeros(number - 1, np.int64)
    for i in range(1, number):
        aim = total * i / number
        at = int(np.searchsorted(filled, aim))
        # Row `at` crosses the aim: it goes to the side where it leaves the smaller error.
        before = int(filled[at - 1]) if at else 0
        at += aim - before > filled[at] - aim
        low = int(cuts[i - 2]) + 1 if i > 1 else 1
        cuts[i - 1] = min(max(at, low), len(distinct) - (number - i))
    return np.asarray(distinct[cuts])


def shard_of(keys: Keys, cuts: Keys) -> npt.NDArray[np.int64]:
    """The shard of each key."""
    return np.searchsorted(cuts, keys, side="right")


@dataclass(frozen=True)
class Shard:
    """A finished shard.

    Attributes:
        rows: `SHARD_SCHEMA`, in order.
        provenance: `PROVENANCE_SCHEMA`; row i tells where row i of `rows` came from.
        counts: rows_in = rows + duplicate_rows, documents_in = documents + duplicate_documents
            (a document is counted where its first part is).
    """

    rows: pa.Table
    provenance: pa.Table
    counts: dict[str, int]


def merge_shard(tables: Sequence[pa.Table], deduplicate: bool = True) -> Shard:
    """Merge what the first pass wrote of one shard: sort, drop duplicates, set provenance apart.

    Args:
        tables: `ROW_SCHEMA`, in any order and any number of pieces; only rows of this shard.
        deduplicate: keep one of several rows with equal origin and part: of equal texts, the one
            whose source and id come first.
    """
    table = _in_order(pa.concat_tables([ROW_SCHEMA.empty_table(), *tables]).combine_chunks())
    documents_in = _first_parts(table)
    rows_in = table.num_rows
    if deduplicate and rows_in > 1:
        same = np.ones(rows_in - 1, np.bool_)
        for name in ("key", "part", "document"):
            column = table[name].combine_chunks()
            equal = pc.equal(column[1:], column[:-1])
            same &= equal.to_numpy(zero_copy_only=False)
        table = table.filter(pa.array(np.append(True, ~same)))
    documents = _first_parts(table)
    counts = {
        "rows_in": rows_in,
        "rows": table.num_rows,
        "duplicate_rows": rows_in - table.num_rows,
        "documents_in": documents_in,
        "documents": documents,
        "duplicate_documents": documents_in - documents,
    }
    table = table.combine_chunks()
    return Shard(table.select(SHARD_SCHEMA.names), table.select(PROVENANCE_SCHEMA.names), counts)


def _first_parts(table: pa.Table) -> int:
    return int(pc.sum(pc.equal(table["part"], 0)).as_py() or 0)


def _in_order(table: pa.Table) -> pa.Table:
    """Sorted by key; what shares a key by document, part, source and id."""
    names = ("key", "document", "part", "source", "id")
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]))
