"""Writing one part of an artifact: nothing of it is seen before it is whole."""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from pipeline.artifact import Part, read_json
from pipeline.digest import canonical_json
from pipeline.stage import Json

if TYPE_CHECKING:
    from pipeline.writer import ArtifactWriter


class PartWriter:
    """One part being written:

        with writer.part("train/00007.parquet") as part:
            pq.write_table(table, part.stream)
            part.finish(digest=table_digest(table), rows=table.num_rows)

    The part exists once the block ends without an exception; after one, nothing of it stays. If
    another attempt finished the same part meanwhile, its one is kept and this one dropped.
    `result` is the part that stayed.
    """

    def __init__(self, writer: ArtifactWriter, name: str, content: bool) -> None:
        self.result: Part | None = None
        self._writer = writer
        self._name = name
        self._content = content
        # Unique even within an attempt: a task that counts as lost may still be writing the same.
        token = secrets.token_hex(4)
        self._temporary = f"{writer.making}/tmp/{writer.attempt}/{name}.{token}"
        self._facts: dict[str, Any] | None = None

    def __enter__(self) -> PartWriter:
        self._file = self._writer.files.spool(self._temporary)
        self.stream = HashingStream(self._file)
        return self

    def finish(
        self,
        *,
        digest: str | None = None,
        rows: int | None = None,
        figures: Mapping[str, Json] | None = None,
        schema: Any = None,
    ) -> None:
        """Say what was written; call it last, once.

        Args:
            digest: hex, of the logical content (`TableDigest`); None: the file's bytes are it.
            rows: rows or documents.
            figures: JSON, found again in `finished()` and in the manifest.
            schema: the `pyarrow.Schema` of a table.
        """
        columns = {} if schema is None else {f.name: str(f.type) for f in schema}
        self._facts = {"digest": digest, "rows": rows, "figures": figures or {}, "schema": columns}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        files, writer = self._writer.files, self._writer
        try:
            if kind is not None:
                return
            if self._facts is None:
                raise ValueError(f"part {self._name}: finish() was not called")
            sha256, size = self.stream.sha256(), self.stream.tell()
            self._facts["digest"] = (self._facts["digest"] or sha256) if self._content else None
            part = Part(name=self._name, size=size, sha256=sha256, **self._facts)
            writer.check_current()
            record = f"{writer.making}/parts/{self._name}.json"
            row = read_json(files.read(record))
            if row is not None and files.size(f"{writer.data}/{self._name}") == row["size"]:
                self.result = Part.from_json(row)
                return
            files.place(self._file, self._temporary, f"{writer.data}/{self._name}")
            # Lost or torn in a power cut, the part is made again.
            files.write(record, canonical_json(asdict(part)), durable=False)
            self.result = part
        finally:
            self._file.close()
            if files.local:
                files.remove(self._temporary)


class HashingStream(io.RawIOBase):
    """A writable binary file that knows the SHA-256 of what went through it."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Write all of a bytes-like object."""
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size

    def sha256(self) -> str:
        """Hex digest of all bytes so far."""
        return self._hash.hexdigest()
