"""Intermediate files of a stage: they outlive a kill, and go when its artifact is committed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store import ArtifactWriter


def write_scratch(output: ArtifactWriter, name: str, table: pa.Table, **options: Any) -> None:
    """Write a small table whole, or not at all, into the stage's work folder."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    output.files.write(f"{output.work}/{name}", sink.getvalue())


def write_scratch_buffer(output: ArtifactWriter, name: str, data: pa.Buffer) -> None:
    """Write a file whole, or not at all, into the stage's work folder."""
    # No copy: the files of a store take whatever holds bytes.
    output.files.write(f"{output.work}/{name}", memoryview(data))  # type: ignore[arg-type]


def write_scratch_json(output: ArtifactWriter, name: str, value: Any) -> None:
    """Write a small JSON value whole, or not at all."""
    output.files.write(f"{output.work}/{name}", json.dumps(value).encode())


def read_scratch_json(output: ArtifactWriter, name: str) -> Any:
    """What `write_scratch_json` wrote; None when it is not there."""
    data = output.files.read(f"{output.work}/{name}")
    return None if data is None else json.loads(data)


def scratch_names(output: ArtifactWriter, folder: str) -> set[str]:
    """Names of the scratch files in `folder`."""
    return set(scratch_sizes(output, folder))


def scratch_sizes(output: ArtifactWriter, folder: str) -> dict[str, int]:
    """Name -> bytes of the scratch files in `folder`."""
    # A kill can leave the temporary file of a write behind; those begin with a dot.
    found = output.files.walk(f"{output.work}/{folder}")
    return {n: size for n, size in found.items() if not n.rpartition("/")[2].startswith(".")}


def remove_scratch(output: ArtifactWriter, names: Iterable[str]) -> None:
    """Remove scratch files; those that are gone are no error."""
    for name in names:
        output.files.remove(f"{output.work}/{name}")


def open_scratch(output: ArtifactWriter, name: str) -> Any:
    """A scratch file as a seekable `pyarrow.NativeFile`."""
    return output.fs.open_input_file(f"{output.work}/{name}")
