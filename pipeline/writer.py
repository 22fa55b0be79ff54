"""Writing an artifact so that a kill at any moment leaves nothing that looks like a result.

A node's folder while `data` (or, forced, `data-1`...) is being made:

    attempt.json                    who makes it now; workers of older attempts find out here
    data/NAME                       finished parts
    data.making/parts/NAME.json     a part's record: it exists from this moment on
    data.making/tmp/ATTEMPT/NAME.*  parts being written
    data.making/work/               the stage's own resumable state (checkpoints)
    manifest.json                   last; then `data.making` goes
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifact import (
    FILES_SIDECAR,
    FORMAT,
    LONG_LIST,
    MANIFEST,
    RAW_SIDECAR,
    REPORT_SIDECAR,
    Artifact,
    Part,
    output_digest,
    read_json,
)
from pipeline.digest import canonical_json
from pipeline.files import Files
from pipeline.part import PartWriter
from pipeline.stage import Json, StageError

ATTEMPT = "attempt.json"


class SupersededError(StageError):
    """Another attempt makes this node now; what this one writes no longer counts."""


class NotDeterministicError(StageError):
    """A forced data stage came to other content than before."""


def unfinished_node(folder: Path) -> str | None:
    """The node that a folder on this machine is of, while no result lies in it: its training is
    under way, or ended too early. None for any other folder, a copy for example.

    Args:
        folder: of a node's fingerprint, or a data folder in it.
    """
    folder = folder.resolve()
    for node in (folder, folder.parent):
        attempt = _row(node / ATTEMPT)
        if attempt is None:
            continue
        made = _row(node / MANIFEST)
        # Forced anew beside a result, only the new generation is unfinished.
        if made is None or (
            made.get("generation") != folder.name == attempt.get("generation") and node != folder
        ):
            return str(attempt.get("node") or "/".join(node.parts[-3:-1]))
    return None


def _row(path: Path) -> dict[str, Json] | None:
    return (read_json(path.read_bytes()) or {}) if path.is_file() else None


@dataclass(frozen=True)
class ArtifactWriter:
    """Writes the parts of one node. Picklable: parts are written in Ray workers, `commit` in the
    driver.

    Attributes:
        path: `<store>/<node>/<fingerprint>` inside `files`.
        generation: the data folder that is being made, relative to `path`.
        resumed_run_id: tracking id of the unfinished attempt that this one carries on.
    """

    files: Files
    path: str
    node: str
    fingerprint: str
    attempt: str
    generation: str
    resumed_run_id: str | None = None

    @property
    def data(self) -> str:
        """The folder of the finished parts, inside `fs`."""
        return f"{self.path}/{self.generation}"

    @property
    def work(self) -> str:
        """A folder for what lets the stage resume (checkpoints), inside `fs`; not made yet.

        It outlives a kill and goes when the artifact is committed. A forced run has a new one.
        """
        return f"{self.making}/work"

    @property
    def run_name(self) -> str:
        """A name for Ray Train that no other configuration and no other forced run has."""
        return f"{self.node.replace('/', '-')}-{self.fingerprint[:16]}-{self.generation}"

    @property
    def is_local(self) -> bool:
        """Whether `data` and `work` are paths on this machine."""
        return self.files.local

    @property
    def shown(self) -> str:
        """`data` as a person can use it: on object stores a URI."""
        return self.files.shown(self.data)

    @property
    def fs(self) -> Any:
        """The `pyarrow.fs.FileSystem` of `data` and `work`."""
        return self.files.arrow()

    def finished(self) -> dict[str, Part]:
        """Name -> part, of all parts that exist, whichever attempt made them; sorted by name."""
        sizes = self.files.walk(self.data)
        records = self.files.walk(f"{self.making}/parts")
        found: dict[str, Part] = {}
        for record in sorted(records):
            row = read_json(self.files.read(f"{self.making}/parts/{record}"))
            # Also false when the machine lost power between the two.
            if row is not None and sizes.get(row["name"]) == row["size"]:
                found[row["name"]] = Part.from_json(row)
        return dict(sorted(found.items()))

    def part(self, name: str, content: bool = True) -> PartWriter:
        """A context manager that writes one part; see `PartWriter`.

        `content=False` marks side files, which stand outside the output digest.
        """
        pieces = name.split("/")
        if not all(pieces) or ".." in pieces or "." in pieces or name[0] == "_":
            raise ValueError(f"{name!r} cannot be the name of a part")
        return PartWriter(self, name, content)

    def write_bytes(
        self,
        name: str,
        data: bytes,
        *,
        digest: str | None = None,
        rows: int | None = None,
        figures: Mapping[str, Json] | None = None,
        content: bool = True,
    ) -> Part:
        """Write a small part at once. Without `digest` its bytes are its content."""
        with self.part(name, content) as part:
            part.stream.write(data)
            part.finish(digest=digest, rows=rows, figures=figures)
        assert part.result is not None
        return part.result

    def note_run(self, run_id: str | None) -> None:
        """Remember the tracking run, so that a later attempt can continue it."""
        self.check_current()
        row = read_json(self.files.read(f"{self.path}/{ATTEMPT}")) or {}
        row["tracking_run_id"] = run_id
        self.files.write(f"{self.path}/{ATTEMPT}", canonical_json(row), durable=False)

    def check_current(self) -> None:
        """Raise `SupersededError` when another attempt has taken over."""
        row = read_json(self.files.read(f"{self.path}/{ATTEMPT}"))
        if row is None or row["attempt"] != self.attempt:
            raise SupersededError(f"{self.node}: another run took over; this one leaves it alone")

    def commit(
        self,
        body: Mapping[str, Json],
        *,
        raw: list[Json] | None = None,
        report: Json = None,
        expect: str | None = None,
    ) -> Artifact:
        """Write the manifest, which makes the artifact exist; then clear what is left over.

        Args:
            body: what the runner knows: stage, stage_version, config, settings, inputs, versions,
                source_hash, figures, counts, tracking_run_id, created, seconds.
            raw: the listing of external input.
            report: what `show` prints; see `results.result_to_json`.
            expect: the output digest that has to come out; None: any.

        Raises:
            NotDeterministicError: another digest than `expect`; nothing is swapped.
            SupersededError: another attempt has taken over.
        """
        parts = self.finished()
        digest = output_digest(parts)
        if expect is not None and digest != expect:
            raise NotDeterministicError(
                f"{self.node} is not deterministic: forced, it came to {digest[:12]} instead of "
                f"{expect[:12]}. The old result stays; the other one lies in {self.data}"
            )
        self.check_current()
        for stray in self.files.walk(self.data).keys() - parts.keys():
            self.files.remove(f"{self.data}/{stray}")
        schemas: list[Json] = []
        for part in parts.values():
            if part.schema and dict(part.schema) not in schemas:
                schemas.append(dict(part.schema))
        manifest: dict[str, Json] = {
            "format": FORMAT,
            "node": self.node,
            "fingerprint": self.fingerprint,
            "output_digest": digest,
            "generation": self.generation,
            "attempt": self.attempt,
            "rows": sum(p.rows or 0 for p in parts.values() if p.digest is not None),
            "bytes": sum(p.size for p in parts.values()),
            "schema": schemas,
            **body,
            "raw": self._long_list(raw, RAW_SIDECAR),
            "report": self._sidecar(report, REPORT_SIDECAR),
            "files": self._long_list([p.to_json() for p in parts.values()], FILES_SIDECAR),
        }
        # Before the manifest, or a power cut could leave it without its files.
        self.files.sync(self.data)
        text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False, default=dict)
        self.files.write(f"{self.path}/{MANIFEST}", text.encode() + b"\n")
        # From here on a worker that is still busy with a lost part of this attempt changes nothing.
        row = {"attempt": None, "generation": self.generation}
        self.files.write(f"{self.path}/{ATTEMPT}", canonical_json(row), durable=False)
        self.files.remove_tree(self.making)
        # An older generation stays until the node is next made: another run may be reading it.
        return Artifact(self.files, self.path, json.loads(text))

    @property
    def making(self) -> str:
        """Where everything lies that goes with the commit."""
        return f"{self.data}.making"

    def _long_list(self, rows: list[Json] | None, sidecar: str) -> Json:
        if rows is None or len(rows) <= LONG_LIST:
            return rows
        return {"count": len(rows), **self._sidecar(rows, sidecar)}

    def _sidecar(self, value: Json, name: str) -> dict[str, Json]:
        data = canonical_json(value)
        # `commit` syncs all of the folder.
        self.files.write(f"{self.data}/{name}", data, durable=False)
        return {"sidecar": name, "sha256": hashlib.sha256(data).hexdigest()}
