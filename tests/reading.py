"""Read files as the shard stage does, all at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from stages.text.listing import list_files, splits
from stages.text.readers import DOCUMENT_SCHEMA, Batch, read
from stages.text.records import ReadOptions


def read_all(*paths: Path, format: str = "auto", **options: object) -> tuple[list[str], Batch]:
    """Texts in order, and one batch that stands for all."""
    listing = list_files([str(p) for p in paths], format=format)
    batches = [b for s in splits(listing) for b in read(s, ReadOptions(**options))]  # type: ignore[arg-type]
    rejects: Counter[str] = Counter()
    for batch in batches:
        batch.documents.validate(full=True)
        assert batch.documents.schema.equals(DOCUMENT_SCHEMA)
        rejects.update(batch.rejects)
    table = pa.Table.from_batches([b.documents for b in batches], DOCUMENT_SCHEMA)
    documents = pa.RecordBatch.from_arrays(
        [table[name].combine_chunks() for name in table.column_names], schema=DOCUMENT_SCHEMA
    )
    encodings = sum((Counter(b.encodings) for b in batches), Counter())
    examples = tuple(e for b in batches for e in b.examples)
    size = sum(b.bytes for b in batches)
    return table["text"].to_pylist(), Batch(documents, dict(rejects), examples, size, encodings)  # type: ignore[arg-type]
