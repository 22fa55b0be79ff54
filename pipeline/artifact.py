"""What a finished node leaves in the store: parts (files) and a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.digest import json_digest
from pipeline.files import COPY_BYTES, Files
from pipeline.results import result_from_json
from pipeline.stage import Json, Result

FORMAT = 1
"""Of manifests. A reader refuses newer ones."""

MANIFEST = "manifest.json"
LONG_LIST = 1000
"""Longer lists of files and of raw input stand in a sidecar, so that `plan` stays fast."""

FILES_SIDECAR = "_files.json"
RAW_SIDECAR = "_raw.json"
REPORT_SIDECAR = "_report.json"


@dataclass(frozen=True)
class Part:
    """One finished file of an artifact.

    Attributes:
        name: relative to the artifact's data folder; may hold `/`.
        size: bytes.
        sha256: of the file; guards storage.
        digest: of the logical content; None for side files (reports, provenance), which stand
            outside the artifact's output digest.
        rows: rows or documents in it, where that has a meaning.
        figures: whatever the stage wants to find again when it did not make the part itself.
        schema: column name -> Arrow type, for tables.
    """

    name: str
    size: int
    sha256: str
    digest: str | None
    rows: int | None = None
    figures: Mapping[str, Json] = field(default_factory=dict)
    schema: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """As it stands in records and manifests; what is empty is left out."""
        row = {"name": self.name, "size": self.size, "sha256": self.sha256, "digest": self.digest}
        extra = {"rows": self.rows, "figures": dict(self.figures), "schema": dict(self.schema)}
        return row | {key: value for key, value in extra.items() if value not in (None, {})}

    @staticmethod
    def from_json(row: Mapping[str, Json]) -> Part:
        """The reverse of `to_json`."""
        return Part(**row)


def output_digest(parts: Mapping[str, Part]) -> str:
    """SHA-256 over the sorted (name, content digest) of the content parts."""
    return json_digest([[n, p.digest] for n, p in sorted(parts.items()) if p.digest is not None])


@dataclass(frozen=True)
class Artifact:
    """A finished artifact. Picklable: workers open it as the driver does.

    Attributes:
        path: `<store>/<node>/<fingerprint>` inside `files`.
        manifest: as read from `manifest.json`; see `ArtifactWriter.commit`.
    """

    files_at: Files
    path: str
    manifest: Mapping[str, Json]

    @property
    def node(self) -> str:
        """Name of the node that made it."""
        return str(self.manifest["node"])

    @property
    def fingerprint(self) -> str:
        """Hex; what it was made from."""
        return str(self.manifest["fingerprint"])

    @property
    def output_digest(self) -> str:
        """Hex; what came out."""
        return str(self.manifest["output_digest"])

    @property
    def figures(self) -> Mapping[str, Json]:
        """Summary figures of the stage."""
        figures: Mapping[str, Json] = self.manifest["figures"]
        return figures

    @property
    def data(self) -> str:
        """The folder of its parts, inside `fs`."""
        return f"{self.path}/{self.manifest['generation']}"

    @property
    def fs(self) -> Any:
        """The `pyarrow.fs.FileSystem` of `data`."""
        return self.files_at.arrow()

    @property
    def is_local(self) -> bool:
        """Whether its files have paths on this machine."""
        return self.files_at.local

    def files(self) -> dict[str, Part]:
        """Name -> part, sorted by name."""
        rows = self._long_list("files", FILES_SIDECAR)
        return {row["name"]: Part.from_json(row) for row in rows}

    def raw(self) -> list[Json] | None:
        """The listing of external input it was made from; None when there was none."""
        return None if self.manifest["raw"] is None else self._long_list("raw", RAW_SIDECAR)

    def result(self) -> Result:
        """What the stage reported when it made this: figures, counts, tables, samples."""
        return result_from_json(json.loads(self.read_bytes(REPORT_SIDECAR)))

    def open(self, name: str) -> Any:
        """A part as a seekable `pyarrow.NativeFile`."""
        return self.fs.open_input_file(f"{self.data}/{name}")

    def read_bytes(self, name: str) -> bytes:
        """A whole part. Raises FileNotFoundError."""
        data = self.files_at.read(f"{self.data}/{name}")
        if data is None:
            raise FileNotFoundError(f"{self.data}/{name} is gone; it belongs to {self.node}")
        return data

    def local_path(self, name: str = "") -> Path:
        """The path of a part (or of the data folder) in a store on this machine.

        Raises ValueError for other stores.
        """
        if not self.is_local:
            raise ValueError(f"{self.path} is not on a local filesystem: use open() or fetch()")
        return Path(self.data) / name

    def fetch(self, folder: Path, names: list[str] | None = None) -> Path:
        """Copy parts (default: all) into a local folder, for libraries that want paths."""
        for name in names if names is not None else self.files():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with self.open(name) as source, target.open("wb") as sink:
                while chunk := source.read(COPY_BYTES):
                    sink.write(chunk)
        return folder

    def damage(self, reads: Callable[[str], bool] = lambda _: True) -> dict[str, str]:
        """Name -> what is wrong with it, of parts whose bytes are not those that were written.

        `reads` says of which parts the bytes are read; of the others only the size is looked at.
        """
        wrong: dict[str, str] = {}
        for name, part in self.files().items():
            size = self.files_at.size(f"{self.data}/{name}")
            if size is None:
                wrong[name] = "missing"
            elif size != part.size:
                wrong[name] = f"{size} bytes instead of {part.size}"
            elif reads(name) and self._sha256(name) != part.sha256:
                wrong[name] = "other bytes than were written"
        return wrong

    def _sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        with self.open(name) as source:
            while chunk := source.read(COPY_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def _long_list(self, key: str, sidecar: str) -> list[Json]:
        value = self.manifest[key]
        if isinstance(value, list):
            return value
        rows: list[Json] = json.loads(self.read_bytes(sidecar))
        return rows


def read_json(data: bytes | None) -> dict[str, Json] | None:
    """A JSON object, or None when there is none or it is not whole."""
    if data is None:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
