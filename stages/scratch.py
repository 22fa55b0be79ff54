"""Intermediate files of a stage: they outlive a kill, and go when its artifact is committed.

Those that are not `durable` need not outlive a power cut: it may leave them torn, shorter than they
were, or gone. Who reads them then looks at their sizes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store import ArtifactWriter


def write_scratch(
    output: ArtifactWriter, name: str, table: pa.Table, *, durable: bool = True
) -> None:
    """Write a small table whole, or not at all, into the stage's work folder."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    output.files.write(f"{output.work}/{name}", sink.getvalue(), durable=durable)


def write_scratch_buffer(
    output: ArtifactWriter, name: str, data: pa.Buffer, *, durable: bool = True
) -> None:
    """Write a file whole, or not at all, into the stage's work folder."""
    # No copy: the files of a store take whatever holds bytes.
    view: Any = memoryview(data)
    output.files.write(f"{output.work}/{name}", view, durable=durable)


def write_scratch_json(
    output: ArtifactWriter, name: str, value: Any, *, durable: bool = True
) -> None:
    """Write a small JSON value whole, or not at all."""
    output.files.write(f"{output.work}/{name}", json.dumps(value).encode(), durable=durable)


def read_scratch_json(output: ArtifactWriter, name: str) -> Any:
    """What `write_scratch_json` wrote; None when it is not there, or torn by a power cut."""
    data = output.files.read(f"{output.work}/{name}")
    try:
        return None if data is None else json.loads(data)
    except ValueError:
        return None


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
