"""How stages write and read the Parquet files of their artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifact import Part
from pipeline.digest import TableDigest
from pipeline.store import Artifact, ArtifactWriter

COMPRESSION = "zstd"
ROW_GROUPS = "row_groups"
"""In the record of a part of pairs or masks: rows of each row group, so that training needs to open
no file to know what is in it."""

ROW_GROUP_ROWS = 2048
"""Of pairs and masks: what a training worker decodes at a time."""

PAIR_KEY = b"clozeline.pair"
"""Of pairs, in the schema metadata: which task the labels are of, for reports."""

LABELS = {
    "next_sentence": {True: "IsNext", False: "NotNext"},
    "sentence_order": {True: "in order", False: "swapped"},
}
"""What `is_next` says, in words."""

PAIR_NAMES = {"next_sentence": "nsp", "sentence_order": "sentence_order"}
"""With which the names of figures begin: the two tasks differ too much to share a curve."""

LABEL_COUNTS = "label_counts.parquet"
"""Of a mask artifact: how often each id is a label."""


def shard_files(artifact: Artifact, split: str) -> list[str]:
    """Names of the shards of "train" or "validation", in order."""
    return [name for name in artifact.files() if name.startswith(f"{split}-")]


def write_table(
    output: ArtifactWriter,
    name: str,
    tables: Iterable[pa.Table],
    figures: Mapping[str, Any] | None = None,
    *,
    row_group_rows: int,
    content: bool = True,
    byte_stream_split: tuple[str, ...] = (),
    dictionary: tuple[str, ...] | None = None,
) -> Part:
    """Write tables of one schema as one Parquet part, with row groups of bounded size.

    Args:
        figures: kept in the part's record; looked at after the last table, so that a generator of
            tables may still fill it in.
        row_group_rows: rows a row group; each table is cut into groups of so many.
        byte_stream_split: leaf columns that are integers without repetition (ids): cheaper and
            smaller so than with a dictionary.
        dictionary: columns that repeat few values; None: all, or none with `byte_stream_split`.
            Trying a dictionary on text that never repeats costs time for nothing.
    """
    use_dictionary = not byte_stream_split if dictionary is None else list(dictionary)
    sizes: list[int] = []
    writer: pq.ParquetWriter | None = None
    with output.part(name, content=content) as part:
        digest: TableDigest | None = None
        for table in tables:
            if writer is None:
                digest = TableDigest(table.schema)
                writer = pq.ParquetWriter(
                    part.stream,
                    table.schema,
                    compression=COMPRESSION,
                    use_dictionary=use_dictionary,
                    column_encoding=dict.fromkeys(byte_stream_split, "BYTE_STREAM_SPLIT") or None,
                    # Of ids the smallest and the largest say nothing.
                    write_statistics=not byte_stream_split,
                    # A bit that storage turned is not read as another id.
                    write_page_checksum=True,
                )
            assert digest is not None
            digest.update(table)
            writer.write_table(table, row_group_size=row_group_rows)
            starts = range(0, table.num_rows, row_group_rows)
            sizes += [min(row_group_rows, table.num_rows - start) for start in starts]
        if writer is None or digest is None:
            raise ValueError(f"{name}: no table to write")
        schema = writer.schema
        writer.close()
        if byte_stream_split:
            figures = {**(figures or {}), ROW_GROUPS: sizes}
        part.finish(digest=digest.hexdigest(), rows=sum(sizes), figures=figures, schema=schema)
    assert part.result is not None
    return part.result
