"""Near duplicates: documents whose sketches agree, found by bands and joined to clusters.

Made for a shuffle. A row (key, origin, sketch) a band and document is sent to the task of its key
(`task_of_key`); documents that are alike share a key, and so a task, with high probability
(locality-sensitive hashing, Indyk and Motwani, 1998). A task compares what shares a key
(`similar_pairs`), so that a chance collision costs no document. The pairs of all tasks join
documents to clusters (`clusters`), and all of a cluster but the document with the smallest origin
are dropped. `clusters` may be called on parts first: its rows are pairs again.

Nothing depends on the order of rows, on tasks or files.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.text.minhash import (
    NearDuplicateOptions,
    band_keys,
    estimated_similarity,
    signatures,
    sketches,
)
from stages.text.segments import Hashes

ORIGIN_BYTES = 16
MOST_ROUNDS = 16
"""Documents of a bucket that others are compared with, one after the other."""

PAIR_SCHEMA = pa.schema(
    [
        pa.field("origin", pa.binary(ORIGIN_BYTES), nullable=False),
        pa.field("kept", pa.binary(ORIGIN_BYTES), nullable=False),
        pa.field("similarity", pa.float32(), nullable=False),
    ]
)


def band_schema(options: NearDuplicateOptions) -> pa.Schema:
    """Of the rows that are shuffled: key, origin, sketch."""
    return pa.schema(
        [
            pa.field("key", pa.uint64(), nullable=False),
            pa.field("origin", pa.binary(ORIGIN_BYTES), nullable=False),
            pa.field("sketch", pa.binary(options.permutations), nullable=False),
        ]
    )


def band_rows(texts: pa.Array, origins: pa.Array, options: NearDuplicateOptions) -> pa.Table:
    """Rows of `band_schema`, one a band and document with words, sorted by key.

    Args:
        texts: string [n], cleaned.
        origins: fixed-size binary [n], their hashes.
        options: what counts as a near duplicate.
    """
    found = signatures(texts, options)
    # A text without words has no shingle, and is like no other.
    some = pa.array(np.any(found < 2**32 - 1, axis=1))
    found, origins = found[some.to_numpy(zero_copy_only=False)], origins.filter(some)
    keys = band_keys(found, options)
    order = np.argsort(keys, axis=None, kind="stable")
    document = pa.array(order // keys.shape[1])
    sketch = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(options.permutations), len(found), [None, pa.py_buffer(sketches(found))]
    )
    return pa.table(
        [pa.array(keys.ravel()[order]), origins.take(document), sketch.take(document)],
        schema=band_schema(options),
    )


def task_of_key(keys: Hashes, tasks: int) -> npt.NDArray[np.int64]:
    """The task (0 to tasks - 1) that a key goes to; rising with the key."""
    return ((keys >> np.uint64(32)) * np.uint64(tasks) >> np.uint64(32)).astype(np.int64)


def similar_pairs(rows: pa.Table, options: NearDuplicateOptions) -> pa.Table:
    """Pairs of documents that share a key and whose sketches agree (`PAIR_SCHEMA`, distinct).

    In a bucket (a key) all are compared with the smallest origin; what is unlike it, with the next
    smallest, and so on, `MOST_ROUNDS` times: no bucket costs more than a multiple of its size.

    Args:
        rows: `band_schema`: all rows of some keys, in any order.
        options: what counts as a near duplicate.
    """
    keys = rows["key"].to_numpy()
    ordered = np.sort(keys)
    shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    at = np.searchsorted(shared, keys)
    inside = np.zeros(len(keys), np.bool_)
    known = at < len(shared)
    inside[known] = shared[at[known]] == keys[known]
    rows = rows.filter(pa.array(inside))
    if not rows.num_rows:
        return PAIR_SCHEMA.empty_table()
    keys, origins = rows["key"].to_numpy(), _fixed(rows["origin"])
    sketch = _fixed(rows["sketch"]).view(np.uint8).reshape(len(keys), options.permutations)
    order = np.lexsort((origins, keys))
    keys, origins, sketch = keys[order], origins[order], sketch[order]
    open_ = np.arange(len(keys))
    found = []
    for _ in range(MOST_ROUNDS):
        first = np.append(True, keys[open_][1:] != keys[open_][:-1])
        chosen = open_[first][np.cumsum(first) - 1]
        alike = estimated_similarity(sketch[open_], sketch[chosen])
        close = alike >= options.threshold
        other = close & (origins[open_] != origins[chosen])
        found.append((origins[open_[other]], origins[chosen[other]], alike[other]))
        open_ = open_[~close]
        if not len(open_):
            break
    origin, kept, similarity = (np.concatenate(parts) for parts in zip(*found, strict=True))
    _, once = np.unique(np.stack((origin, kept), axis=1), axis=0, return_index=True)
    return _pairs(origin[once], kept[once], similarity[once])


def clusters(pairs: pa.Table) -> pa.Table:
    """What to drop: each document but the smallest of every cluster, once, with the one kept.

    Args:
        pairs: `PAIR_SCHEMA`, in any order; of several tasks, or results of this function.

    Returns:
        `PAIR_SCHEMA` sorted by origin; `similarity` is that of the pair through which the document
        came in, the greatest of several.
    """
    left, right = _fixed(pairs["origin"]), _fixed(pairs["kept"])
    nodes, index = np.unique(np.concatenate((left, right)), return_inverse=True)
    a, b = index[: len(left)], index[len(left) :]
    # Labels fall to the smallest node of each component: hooking and pointer jumping.
    label = np.arange(len(nodes))
    while True:
        least = np.minimum(label[a], label[b])
        if np.array_equal(label[a], label[b]):
            break
        np.minimum.at(label, label[a], least)
        np.minimum.at(label, label[b], least)
        while not np.array_equal(label, label[label]):
            label = label[label]
    dropped = np.flatnonzero(label != np.arange(len(nodes)))
    similarity = np.zeros(len(nodes), np.float32)
    np.maximum.at(similarity, a, pairs["similarity"].to_numpy())
    np.maximum.at(similarity, b, pairs["similarity"].to_numpy())
    return _pairs(nodes[dropped], nodes[label[dropped]], similarity[dropped])


def _fixed(column: pa.ChunkedArray) -> npt.NDArray[np.bytes_]:
    """A column of fixed-size binary as NumPy bytes, which sort alike."""
    array = column.combine_chunks()
    width = array.type.byte_width
    _, buffer = array.buffers()
    start = array.offset * width
    raw = memoryview(buffer)[start : start + len(array) * width] if buffer else b""
    return np.frombuffer(raw, f"S{width}")


def _pairs(
    origin: npt.NDArray[np.bytes_],
    kept: npt.NDArray[np.bytes_],
    similarity: npt.NDArray[np.floating],
) -> pa.Table:
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(ORIGIN_BYTES), len(part), [None, pa.py_buffer(np.ascontiguousarray(part))]
        )
        for part in (origin, kept)
    ]
    return pa.table([*columns, pa.array(similarity.astype(np.float32))], schema=PAIR_SCHEMA)
