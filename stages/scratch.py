"""Intermediate files of a stage: they outlive a kill, and go when its artifact is committed."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store import ArtifactWriter


def write_scratch(output: ArtifactWriter, name: str, table: pa.Table, **options: Any) -> None:
    """Write a small table whole, or not at all, into the stage's work folder."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    output.files.write(f"{output.work}/{name}", sink.getvalue())


def scratch_names(output: ArtifactWriter, folder: str) -> set[str]:
    """Names of the scratch files in `folder`."""
    # A kill can leave the temporary file of a write behind; those begin with a dot.
    names = output.files.walk(f"{output.work}/{folder}")
    return {name for name in names if not name.startswith(".")}


def open_scratch(output: ArtifactWriter, name: str) -> Any:
    """A scratch file as a seekable `pyarrow.NativeFile`."""
    return output.fs.open_input_file(f"{output.work}/{name}")
