"""The way back from a result to its raw input: which artifact was read to make which."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from pipeline.artifact import MANIFEST, Artifact, read_json
from pipeline.commands.text import flow
from pipeline.digest import json_digest
from pipeline.files import Files, open_files
from pipeline.stage import Json
from pipeline.store import Store, is_fingerprint

NAMES_SHOWN = 10
"""Of raw input, in a lineage."""


@dataclass(frozen=True)
class Step:
    """An artifact that a result was made from.

    Attributes:
        node, fingerprint, output_digest: as they were when it was read.
        state: "here" in the store; "other": made anew there since, with another output; "gone".
        created: when it was made (UTC, ISO 8601); of these and the following only what is known.
        flow: what came in and went out, in words.
        run_id: of the MLflow run that made it.
        inputs: role -> node of what it was made from.
        raw: of external input: {"entries": how many, "digest": of the listing, "names": of the
            first ones}.
        path: where it is.
    """

    node: str
    fingerprint: str
    output_digest: str
    state: Literal["here", "other", "gone"]
    created: str | None = None
    flow: str = ""
    run_id: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, Json] | None = None
    path: str = ""

    def to_json(self) -> dict[str, Json]:
        """As in `clozeline lineage --json` and beside a registered model."""
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Json]) -> Step:
        """The reverse of `to_json`."""
        return Step(**row)


def lineage(artifact: Artifact) -> list[Step]:
    """The artifact and all that it was made from, each once, what is nearest first."""
    return [_step(artifact, artifact.output_digest), *lineage_of(artifact.manifest, artifact)]


def lineage_of_inputs(inputs: Mapping[str, Artifact]) -> list[Step]:
    """As `lineage`, for a node that is being made: what it reads, and all behind that."""
    found: dict[tuple[str, str], Step] = {}
    for artifact in inputs.values():
        for step in lineage(artifact):
            found.setdefault((step.node, step.fingerprint), step)
    return list(found.values())


def lineage_of(manifest: Mapping[str, Json], at: Artifact) -> list[Step]:
    """What is behind a manifest, by the store that `at` lies in."""
    store = store_of(at)
    waiting = deque(manifest["inputs"].values())
    found: dict[tuple[str, str], Step] = {}
    while waiting:
        read = waiting.popleft()
        key = (read["node"], read["fingerprint"])
        if key in found:
            continue
        artifact = store.find(*key)
        if artifact is None:
            found[key] = Step(*key, read["output_digest"], "gone")
            continue
        found[key] = _step(artifact, read["output_digest"])
        # Behind another output of the same fingerprint stands the same input.
        waiting.extend(artifact.manifest["inputs"].values())
    return list(found.values())


def store_of(artifact: Artifact) -> Store:
    """The store that an artifact lies in."""
    root = artifact.path.removesuffix(f"/{artifact.node}/{artifact.fingerprint}")
    return Store(root, artifact.files_at)


def artifact_at(path: str) -> Artifact | None:
    """The artifact whose folder, or something in it, lies at a path or URI; None for others."""
    files, location = open_files(path)
    pieces = location.rstrip("/").split("/")
    for i in range(len(pieces), 0, -1):
        if is_fingerprint(pieces[i - 1]):
            return _artifact(files, "/".join(pieces[:i]))
    return None


def _artifact(files: Files, folder: str) -> Artifact | None:
    manifest = read_json(files.read(f"{folder}/{MANIFEST}"))
    if manifest is None:
        return None
    found = Artifact(files, folder, manifest)
    # Through the store, which says no to formats that it does not know.
    return store_of(found).find(found.node, found.fingerprint)


def _step(artifact: Artifact, read: str) -> Step:
    manifest = artifact.manifest
    key = (artifact.node, artifact.fingerprint)
    inputs = {role: str(row["node"]) for role, row in manifest["inputs"].items()}
    entries = artifact.raw()
    raw = None
    if entries is not None:
        named = [str(row["name"]) for row in entries if isinstance(row, Mapping) and "name" in row]
        raw = {
            "entries": len(entries),
            "digest": json_digest(entries),
            "names": list(dict.fromkeys(named))[:NAMES_SHOWN],
        }
    if read != artifact.output_digest:
        return Step(*key, read, "other", inputs=inputs, raw=raw, path=artifact.path)
    return Step(
        *key,
        read,
        "here",
        created=manifest.get("created"),
        flow=flow(manifest),
        run_id=manifest.get("tracking_run_id"),
        inputs=inputs,
        raw=raw,
        path=artifact.path,
    )
