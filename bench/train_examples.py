"""Masked rows to train on: saved ones, or random ones where no text is at hand.

Only NumPy, pyarrow and the trainer's own reader: this runs on a bare machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from stages.training.examples import Examples, Ragged, concatenate, offsets_of
from stages.training.row_groups import Limits, RowGroups, read_index

ENTRIES = b"clozeline.bench.entries"
"""Key of the vocabulary's size in the schema metadata of a file that `save` wrote."""

MASK_SHARE = 0.15

COLUMNS = ("input_ids", "a_length", "is_next", "mlm_positions", "mlm_labels")


def save(shards: Sequence[Path], entries: int, path: Path) -> int:
    """Write the rows of a mask artifact's shards into one file; returns their number."""
    table = pa.concat_tables([pq.read_table(shard, columns=list(COLUMNS)) for shard in shards])
    table = table.replace_schema_metadata({ENTRIES: str(entries).encode()})
    pq.write_table(table, path, compression="zstd", row_group_size=2048)
    return int(table.num_rows)


def load(path: Path, max_length: int, entries: int | None = None) -> tuple[Examples, int]:
    """The rows of a file of masked rows, and the size of their vocabulary.

    Args:
        path: what `save` wrote, or any shard of a mask artifact.
        max_length: no row is longer.
        entries: size of the vocabulary, for a file that does not say it.

    Raises:
        ValueError: the size is not known, or a row does not fit.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    metadata = pq.read_schema(path).metadata or {}
    if entries is None and ENTRIES not in metadata:
        raise ValueError(f"{path} does not say how large its vocabulary is: give --entries")
    size = entries or int(metadata[ENTRIES])
    filesystem = LocalFileSystem()
    groups = RowGroups(
        filesystem, read_index(filesystem, [str(path)]), Limits(size, max_length), keep=1
    )
    return concatenate([groups.get(number) for number in range(len(groups))]), size


def fitting(files: Sequence[str], length: int) -> Path:
    """The file whose rows are made for `length`: none is longer, and some are nearly as long.

    Rows of at most 128 would say nothing of a model at 512: three quarters would be padding.

    Raises:
        ValueError: no file is.
    """
    longest = {}
    for file in files:
        column = pq.read_table(file, columns=["input_ids"])["input_ids"]
        longest[file] = pc.max(pc.list_value_length(column)).as_py() or 0
        if 0.75 * length <= longest[file] <= length:
            return Path(file)
    found = ", ".join(f"{file} of at most {most}" for file, most in longest.items())
    raise ValueError(
        f"no file holds rows of up to {length} tokens ({found}): give one more --examples; "
        f"clozeline bench train --length {length} --save-examples FILE makes it"
    )


def random(rows: int, max_length: int, entries: int, seed: int, full: bool = False) -> Examples:
    """Rows of random ids, shaped as pairs are: nine in ten nearly full, the rest of any length.

    Args:
        rows: how many.
        max_length: of a row, special tokens included.
        entries: size of the vocabulary.
        seed: of all draws.
        full: every row has `max_length` tokens, so that nothing is padded anywhere.
    """
    draw = np.random.default_rng(seed)
    lengths = max_length - draw.integers(0, max(1, max_length // 10), rows)
    short = draw.random(rows) < 0.1
    lengths[short] = draw.integers(min(8, max_length), max_length + 1, int(short.sum()))
    if full:
        lengths[:] = max_length
    offsets = offsets_of(lengths)
    ids = draw.integers(0, entries, int(offsets[-1]), dtype=np.int64)
    counts = np.maximum(1, np.round(MASK_SHARE * lengths)).astype(np.int64)
    positions = np.concatenate(
        [np.sort(draw.choice(n, c, replace=False)) for n, c in zip(lengths, counts, strict=True)]
    )
    masked = offsets_of(counts)
    return Examples(
        input_ids=Ragged(ids, offsets),
        a_length=(lengths - 3) // 2,
        is_next=draw.random(rows) < 0.5,
        mlm_positions=Ragged(positions, masked),
        mlm_labels=draw.integers(0, entries, int(masked[-1]), dtype=np.int64),
    )
