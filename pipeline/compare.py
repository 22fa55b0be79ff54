"""What differs between an artifact and what a node would be made from now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.stage import Json, flatten
from pipeline.store import Artifact

ABSENT_TEXT = "nothing differs"
SHORT = 60


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was.

    Attributes:
        path: a config key ("mask.probability"), "version of the stage", "library numpy",
            "input pairs (pairs/128)" or "file books/a.txt".
        old: None when it was not there; new: None when it is not there now.
        because: for an input: what made it another one, where that can be said.
    """

    path: str
    old: Json
    new: Json
    because: tuple[Difference, ...] = field(default=())

    @property
    def text(self) -> str:
        """One line: "mask.probability: 0.15 -> 0.2"."""
        if self.because:
            return f"{self.path} changed ({'; '.join(d.text for d in self.because)})"
        if self.path.startswith("file "):
            if self.old is None or self.new is None:
                return f"{self.path}: {'added' if self.old is None else 'removed'}"
            return f"{self.path}: changed"
        return f"{self.path}: {_short(self.old)} -> {_short(self.new)}"

    def to_json(self) -> dict[str, Json]:
        """As `why --json` prints it."""
        row = {"path": self.path, "old": self.old, "new": self.new}
        return row | ({"because": [d.to_json() for d in self.because]} if self.because else {})


def parts_of(artifact: Artifact) -> dict[str, Json]:
    """What an artifact was made from, as `fingerprint_parts` would give it."""
    manifest = artifact.manifest
    return {
        "stage": manifest["stage"],
        "version": manifest["stage_version"],
        "config": manifest["config"],
        "raw": artifact.raw(),
        "inputs": {role: i["output_digest"] for role, i in manifest["inputs"].items()},
        "libraries": manifest["versions"]["fingerprinted"],
    }


def differences(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[Difference]:
    """What differs between two `fingerprint_parts`; an input that is None counts as unknown."""
    found = []
    if (old["stage"], old["version"]) != (new["stage"], new["version"]):
        found.append(Difference("version of the stage", old["version"], new["version"]))
    found += _leaves(dict(flatten(old["config"])), dict(flatten(new["config"])))
    found += _leaves(old["inputs"], new["inputs"], "input ")
    found += _leaves(old["libraries"], new["libraries"], "library ")
    found += _leaves(_by_file(old["raw"]), _by_file(new["raw"]), "file ")
    return found


def nearest(
    artifacts: Sequence[Artifact], parts: Mapping[str, Json]
) -> tuple[Artifact, list[Difference]] | None:
    """The artifact with the fewest differences, the newest of equals; None without artifacts."""
    compared = [(artifact, differences(parts_of(artifact), parts)) for artifact in artifacts]
    return min(compared, key=lambda pair: _distance(pair[1]), default=None)


def _distance(found: Sequence[Difference]) -> int:
    # Thousands of files of another corpus are one difference; so is a long list of keys not.
    files = [d for d in found if d.path.startswith("file ")]
    return len(found) - len(files) + bool(files)


def _leaves(
    old: Mapping[str, Json], new: Mapping[str, Json], prefix: str = ""
) -> Iterator[Difference]:
    for key in dict.fromkeys([*old, *new]):
        # 1 == 1.0 and 1 == True in Python, but not in a fingerprint.
        if json.dumps(old.get(key), sort_keys=True) != json.dumps(new.get(key), sort_keys=True):
            yield Difference(prefix + key, old.get(key), new.get(key))


def _by_file(entries: Sequence[Json] | None) -> dict[str, Json]:
    return {_name(entry): entry for entry in entries or ()}


def _name(entry: Json) -> str:
    if isinstance(entry, Mapping):
        return str(entry.get("path", entry.get("name", json.dumps(entry, sort_keys=True))))
    return str(entry[0]) if isinstance(entry, Sequence) and entry else str(entry)


def _short(value: Json) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= SHORT else text[: SHORT - 3] + "..."
