"""Artifacts on any filesystem: `<store>/<node>/<fingerprint>/`, parts first, the manifest last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from pipeline.artifact import FORMAT, MANIFEST, Artifact, Part, output_digest, read_json
from pipeline.digest import canonical_json
from pipeline.files import Files, open_files
from pipeline.part import PartWriter
from pipeline.stage import Json, UserError
from pipeline.writer import ATTEMPT, ArtifactWriter

__all__ = ["Artifact", "ArtifactWriter", "Part", "PartWriter", "Store", "output_digest"]

FAILURE = "failure.json"
FIRST_GENERATION = "data"


class Store:
    """Where artifacts lie.

    Args:
        location: a folder (relative ones from the current folder) or a URI: s3://bucket/prefix,
            gs://..., file:///...
        files: the filesystem and, in `location`, the path inside it, when already open.
    """

    def __init__(self, location: str, files: Files | None = None) -> None:
        self.location = location
        self.files, self.root = open_files(location) if files is None else (files, location)

    def folder(self, node: str, fingerprint: str) -> str:
        """The folder of an artifact, inside `files`; it need not exist."""
        return f"{self.root}/{node}/{fingerprint}"

    def find(self, node: str, fingerprint: str) -> Artifact | None:
        """The finished artifact, or None. A manifest that is not whole counts as none."""
        path = self.folder(node, fingerprint)
        manifest = read_json(self.files.read(f"{path}/{MANIFEST}"))
        if manifest is None:
            return None
        if manifest.get("format", 0) > FORMAT:
            raise UserError(
                f"{path} was made by a newer version (manifest format {manifest['format']}, this "
                f"one knows {FORMAT}): upgrade clozeline or use another store"
            )
        artifact = Artifact(self.files, path, manifest)
        same = (artifact.node, artifact.fingerprint) == (node, fingerprint)
        # A node without parts has no data folder; otherwise a missing one is no result either.
        whole = not manifest["files"] or self.files.has_folder(artifact.data)
        return artifact if same and whole else None

    def artifacts(self, node: str) -> list[Artifact]:
        """All finished artifacts of a node, newest first."""
        found = (self.find(node, name) for name in self._fingerprints(node))
        whole = [artifact for artifact in found if artifact is not None]
        return sorted(whole, key=lambda a: (str(a.manifest.get("created")), a.path), reverse=True)

    def at(self, path: str) -> Artifact | None:
        """The artifact whose folder (or something in it) `path` is, for `lineage PATH`."""
        location = path if "://" not in path else open_files(path)[1]
        if "://" not in path and self.files.local:
            location = open_files(path)[1]
        inside = location.removeprefix(self.root + "/")
        pieces = inside.split("/")
        for i, piece in enumerate(pieces):
            if i and is_fingerprint(piece):
                return self.find("/".join(pieces[:i]), piece)
        return None

    def unfinished(self, node: str, fingerprint: str) -> int:
        """How many parts an unfinished attempt left that a rerun need not make."""
        path = self.folder(node, fingerprint)
        attempt = read_json(self.files.read(f"{path}/{ATTEMPT}"))
        if attempt is None or self.find(node, fingerprint) is not None:
            return 0
        return len(self.files.walk(f"{path}/{attempt['generation']}.making/parts"))

    def begin(
        self,
        node: str,
        fingerprint: str,
        attempt: str,
        *,
        source_hash: str = "",
        same_source: bool = False,
        force: bool = False,
    ) -> ArtifactWriter:
        """Start to make an artifact; the caller holds its lease.

        An unfinished attempt is carried on: its parts count as made. Not so when `force`d (all is
        made anew, beside a finished one if there is one), nor when `same_source` is asked for and
        the code was another then: parts of two versions must not mix under one digest.
        """
        path = self.folder(node, fingerprint)
        committed = self.find(node, fingerprint)
        last = read_json(self.files.read(f"{path}/{ATTEMPT}")) or {}
        used = committed.manifest["generation"] if committed else None
        resume = not force and last.get("generation") not in (None, used)
        if same_source and last.get("source_hash") != source_hash:
            resume = False
        there = [n for n in self.files.folders(path) if n.startswith(FIRST_GENERATION)]
        names = {str(name) for name in (*there, last.get("generation"), used) if name}
        generation = last["generation"] if resume else _next_generation(names)
        for name in there:
            if name not in (used, generation, f"{generation}.making"):
                self.files.remove_tree(f"{path}/{name}")
        self.files.remove_tree(f"{path}/{generation}.making/tmp")
        run_id = last.get("tracking_run_id") if resume else None
        row = {
            "attempt": attempt,
            "node": node,
            "generation": generation,
            "source_hash": source_hash,
            "tracking_run_id": run_id,
            "started": time.time(),
        }
        # Lost in a power cut, the node is begun anew.
        self.files.write(f"{path}/{ATTEMPT}", canonical_json(row), durable=False)
        self.files.remove(f"{path}/{FAILURE}")
        return ArtifactWriter(self.files, path, node, fingerprint, attempt, generation, run_id)

    def record_failure(self, node: str, fingerprint: str, failure: dict[str, Json]) -> str:
        """Leave a record of a failed attempt beside; returns its path. The next attempt clears it.

        `failure` holds at least `message`, `traceback` and `attempt`.
        """
        path = f"{self.folder(node, fingerprint)}/{FAILURE}"
        self.files.write(path, canonical_json({"node": node, "time": time.time(), **failure}))
        return path

    def failure(self, node: str, fingerprint: str) -> dict[str, Json] | None:
        """The record of the last attempt's failure; None when there is none."""
        return read_json(self.files.read(f"{self.folder(node, fingerprint)}/{FAILURE}"))

    def nodes(self) -> Iterator[str]:
        """Names of the nodes that have any folder in the store."""
        for top in self.files.folders(self.root):
            for below in self.files.folders(f"{self.root}/{top}"):
                if not is_fingerprint(below):
                    yield f"{top}/{below}"
            if self._fingerprints(top):
                yield top

    def _fingerprints(self, node: str) -> list[str]:
        names = self.files.folders(f"{self.root}/{node}")
        return [name for name in names if is_fingerprint(name)]


def is_fingerprint(name: str) -> bool:
    """Whether a folder's name is one: 64 hexadecimal digits."""
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _next_generation(names: Iterable[str]) -> str:
    """`data`, then `data-1`, `data-2`...: never a name that was used before.

    A worker of a dead attempt could otherwise still put a part into it.
    """
    numbers = [int(n.partition(".")[0].partition("-")[2] or 0) for n in names]
    return f"{FIRST_GENERATION}-{max(numbers) + 1}" if numbers else FIRST_GENERATION
