"""Checkpoints: weights, optimiser state and position, on any filesystem, never half there.

A checkpoint is a folder `step-00000500` of `weights.safetensors`, `optimiser.safetensors` and
`state.json`, which is written last and holds the digests of the others. On a local filesystem the
folder is written under a temporary name and renamed; object stores cannot rename, so there its
name carries the attempt and `state.json` alone says that it is whole. Nothing is unpickled.

The schedule follows from the step and the config; so does the random state, which each step draws
anew from (seed, step, rank): `randomness`. `saving` writes checkpoints beside the training.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

from stages.training.tensor_files import write_tensors

WEIGHTS = "weights.safetensors"
OPTIMISER = "optimiser.safetensors"
STATE = "state.json"
FORMAT = 1

_FOLDER = re.compile(r"step-(\d{8,})(\..+)?")
_TEMPORARY = "tmp-"


class CheckpointMismatchError(ValueError):
    """A checkpoint belongs to another configuration; the message says what differs."""


@dataclass(frozen=True)
class State:
    """Where a run stands.

    Attributes:
        step: finished optimiser steps, which is the index of the next global batch.
        epoch: of the next batch's first row.
        row: of the next batch's first row, in that epoch's order.
        tokens_seen: real tokens of all steps.
        figures: of this step, as logged; those of the last logged step when it was not.
        fingerprint: of the run.
        vocabulary_digest: of the vocabulary.
        config: what the result depends on, nested.
        rounding: what decides the last bits, flat.
        score: held-out loss at this very step, lower is better; None where it was not measured.
        settled: what the run has decided for good as it went, as JSON: the steps that a budget
            of hours came to, and how many were lost to what is not finite.
    """

    step: int
    epoch: int
    row: int
    tokens_seen: int
    figures: Mapping[str, float]
    fingerprint: str
    vocabulary_digest: str
    config: Mapping[str, Any]
    rounding: Mapping[str, Any]
    score: float | None = None
    settled: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint; tensors on CPU."""

    state: State
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


def save(
    filesystem: FileSystem,
    folder: str,
    attempt: str,
    state: State,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    keep: int,
    keep_best: bool = False,
) -> str:
    """Write a checkpoint, then delete older ones.

    Args:
        filesystem: where `folder` lies.
        folder: of the run's checkpoints; made when it is not there.
        attempt: unique for this try.
        state: where the run stands.
        weights: by name.
        moments: the optimiser's tensors, by name.
        keep: number of newest checkpoints that stay.
        keep_best: the one with the lowest score stays too.

    Returns:
        The checkpoint's path.

    Raises:
        OSError: it could not be written; what was begun is deleted as far as that goes.
    """
    local = filesystem.type_name == "local"
    name = f"step-{state.step:08d}"
    path = f"{folder}/{name}" if local else f"{folder}/{name}.{attempt}"
    written = f"{folder}/{_TEMPORARY}{name}.{attempt}" if local else path
    try:
        filesystem.create_dir(written, recursive=True)
        files = {}
        for file, tensors in ((WEIGHTS, weights), (OPTIMISER, moments)):
            with filesystem.open_output_stream(f"{written}/{file}") as stream:
                files[file] = write_tensors(stream, tensors)
        content = {"format": FORMAT, "state": asdict(state), "files": files}
        sealed = {**content, "sha256": _digest(_canonical(content))}
        with filesystem.open_output_stream(f"{written}/{STATE}") as stream:
            stream.write(json.dumps(sealed, indent=1).encode())
    except OSError:
        # A full disk has no room for what is of no use.
        with suppress(OSError):
            filesystem.delete_dir(written)
        raise
    if written != path:
        # One of this name is there only if it was found to be damaged, or is a zombie's.
        if filesystem.get_file_info(path).type != FileType.NotFound:
            filesystem.delete_dir(path)
        filesystem.move(written, path)
    _prune(filesystem, folder, state.step, keep, keep_best)
    return path


def _prune(filesystem: FileSystem, folder: str, step: int, keep: int, keep_best: bool) -> None:
    found = [path for s, path in _newest_first(filesystem, folder) if s <= step]
    best = _best_path(filesystem, found) if keep_best else None
    for path in found[keep:]:
        if path != best:
            filesystem.delete_dir(path)


def _best_path(filesystem: FileSystem, paths: Sequence[str]) -> str | None:
    """The checkpoint with the lowest score, the first of equals; None when none has a score."""
    scores = {path: _score(filesystem, path) for path in paths}
    known = {path: score for path, score in scores.items() if score is not None}
    return min(known, key=known.__getitem__) if known else None


def best_checkpoint(filesystem: FileSystem, folder: str) -> Checkpoint | None:
    """The checkpoint of a run with the lowest held-out loss; None when none was measured, or when
    it is damaged."""
    path = _best_path(filesystem, [path for _, path in _newest_first(filesystem, folder)])
    try:
        return None if path is None else _load(filesystem, path)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _score(filesystem: FileSystem, path: str) -> float | None:
    try:
        score: float | None = json.loads(_read(filesystem, f"{path}/{STATE}"))["state"]["score"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # Half written or damaged: no candidate.
    return score


def load_latest(
    filesystem: FileSystem, folder: str, notice: Callable[[str], None]
) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; what is damaged or half written goes.

    Called when a run begins, by one process: a worker of a dead attempt that still writes finds
    its folder gone, and nothing that this attempt writes is ever cleared by it.

    Args:
        filesystem: where `folder` lies.
        folder: of the run's checkpoints; need not be there.
        notice: told of each damaged checkpoint that is passed over.
    """
    selector = FileSelector(folder, allow_not_found=True)
    for info in filesystem.get_file_info(selector):
        if info.type == FileType.Directory and info.base_name.startswith(_TEMPORARY):
            filesystem.delete_dir(info.path)
    for _, path in _newest_first(filesystem, folder):
        try:
            return _load(filesystem, path)
        # Other OSErrors are the storage's: a checkpoint that cannot be read now may be whole.
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError) as error:
            notice(f"checkpoint {path} is damaged ({error}): passed over")
            filesystem.delete_dir(path)
    return None


def check_same_run(state: State, fingerprint: str, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another configuration.

    Raises:
        CheckpointMismatchError: the fingerprints differ.
    """
    if state.fingerprint == fingerprint:
        return
    changed = differences(state.config, config)
    raise CheckpointMismatchError(
        f"the checkpoint of step {state.step} belongs to another run "
        f"({state.fingerprint[:12]}, this one is {fingerprint[:12]}): "
        + ("; ".join(changed) if changed else "same configuration, other inputs or versions")
        + ". Go back to that configuration, or start in another checkpoint folder"
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line "a.b was 1, is 2" for each leaf that differs, sorted by name."""
    # Through JSON, so that tuples equal the lists that a checkpoint gives back.
    before, after = (dict(_leaves(json.loads(json.dumps(tree)))) for tree in (old, new))
    return [
        f"{name} was {before.get(name, 'absent')!r}, is {after.get(name, 'absent')!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
    ]


_ABSENT = object()


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _newest_first(filesystem: FileSystem, folder: str) -> list[tuple[int, str]]:
    infos = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
    found = []
    for info in infos:
        match = _FOLDER.fullmatch(info.base_name)
        if info.type == FileType.Directory and match:
            found.append((int(match[1]), info.path))
    return sorted(found, reverse=True)


def _load(filesystem: FileSystem, path: str) -> Checkpoint:
    sealed = json.loads(_read(filesystem, f"{path}/{STATE}"))
    if not isinstance(sealed, dict) or sealed.get("format") != FORMAT:
        raise ValueError(f"{STATE} is not of format {FORMAT}")
    seal = sealed.pop("sha256", None)
    if seal != _digest(_canonical(sealed)):
        raise ValueError(f"{STATE} does not match its digest")
    tensors = {}
    for name, expected in sealed["files"].items():
        content = _read(filesystem, f"{path}/{name}")
        if len(content) != expected["bytes"] or _digest(content) != expected["sha256"]:
            raise ValueError(f"{name} does not match its digest")
        tensors[name] = tensors_from_bytes(content)
    return Checkpoint(State(**sealed["state"]), tensors[WEIGHTS], tensors[OPTIMISER])


def _read(filesystem: FileSystem, path: str) -> bytes:
    with filesystem.open_input_file(path) as source:
        content: bytes = source.read()
        return content
