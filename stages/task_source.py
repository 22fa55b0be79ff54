"""The files of a task, and the encoder that it starts from, found and listed for `plan`.

Nothing is read here but a model's small files and the head of its weights.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.digest import json_digest
from pipeline.stage import RawInput, UserError
from stages.text.folders import WILDCARDS, regular_file, split_glob, walk
from stages.text.listing import InputNotFound, printable, shown
from stages.text.uris import find_remote, is_remote, join_uri, local_path, split_uri

if TYPE_CHECKING:
    from stages.given_weights import GivenWeights
    from stages.text.words import Normalisation

SETS = ("train", "dev")

TOKEN_TABLES = ("word_embeddings.weight", "embeddings.token.weight")
"""Ends of the names of the table of entries, in transformers' files and in ours."""


@dataclass(frozen=True)
class TaskFile:
    """A file of a task.

    Attributes:
        path: as it is opened: a path on this machine, or a URI.
        size: bytes.
        stamp: what says that it is as it was: modification time (ns), or etag.
    """

    path: str
    size: int
    stamp: int | str

    @property
    def name(self) -> str:
        """Without its folders: the same files elsewhere are the same set."""
        return shown(self.path).rpartition("/")[2]


def task_files(task: Mapping[str, Any], name: str, base: Path) -> dict[str, list[TaskFile]]:
    """The files of each set of a task, in the order in which they are read.

    Args:
        task: the lists `train` and `dev`, and the folder `data` that relative paths start from.
        name: of the task.
        base: what a relative `data` is from.

    Raises:
        UserError: a file is not there, or no file.
    """
    folder = base / Path(local_path(task["data"])).expanduser()
    return {
        which: [
            file
            for given in task[which]
            for file in _files(given, folder, task["data"], f"tasks.{name}.{which}")
        ]
        for which in SETS
    }


def _files(given: str, folder: Path, data: str, key: str) -> list[TaskFile]:
    if is_remote(data) and not is_remote(given) and not Path(given).is_absolute():
        given = join_uri(data, given)
    if is_remote(given):
        try:
            found = [file for file in find_remote(given)[1] if not file.problem]
        except InputNotFound as error:
            raise UserError(f"{key}: {error}") from None
        uri = split_uri(given)
        return [
            TaskFile(str(uri._replace(path=file.path)), file.size, file.etag or file.mtime_ns)
            for file in sorted(found, key=lambda file: file.path)
        ]
    path = os.path.normpath(folder / Path(local_path(given)).expanduser())
    if not os.path.lexists(path) and any(c in given for c in WILDCARDS):
        items = [item for item in walk(*split_glob(path)) if item.named]
        matched = sorted(item.path for item in items if not Path(item.path).is_dir())
        if not matched:
            raise UserError(f"{key}: no file matches {printable(given)} ({printable(path)})")
        return [_file(one, printable(one), key) for one in matched]
    if not os.path.lexists(path):
        raise UserError(f"{key}: {_not_there(given, path, data)}")
    return [_file(path, printable(given), key)]


def _file(path: str, given: str, key: str) -> TaskFile:
    if Path(path).is_dir():
        raise UserError(f"{key}: {given} is a folder: name its files, or a glob ({given}/*.tsv)")
    info, problem = regular_file(Path(path))
    if info is None:
        raise UserError(f"{key}: {given} is {problem}")
    return TaskFile(path, info.st_size, info.st_mtime_ns)


def _not_there(given: str, path: str, data: str) -> str:
    parent = Path(path).parent
    there = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    near = difflib.get_close_matches(Path(path).name, there, 1, 0.6)
    said = f"{printable(given)} is not there (looked for {printable(path)})"
    if near:
        return f"{said}: did you mean {printable(near[0])!r}?"
    return f"{said}: relative paths start from finetune.data={data}"


@dataclass(frozen=True)
class GivenTokens:
    """The vocabulary of a model that is given.

    Attributes:
        tokens: by id.
        normalisation: what is done to text.
        max_word_characters: longer words become [UNK].
        positions: rows of the model's position table.
    """

    tokens: tuple[str, ...]
    normalisation: Normalisation
    max_word_characters: int
    positions: int


def given_tokens(given: str, key: str, base: Path) -> tuple[GivenWeights, GivenTokens]:
    """The model of a folder, and its vocabulary.

    Args:
        given: the folder.
        key: of the config, for messages.
        base: what a relative path is from.

    Raises:
        UserError: no such folder, no readable weights in it, or a vocabulary that is not theirs.
    """
    from stages.given_weights import find_weights
    from stages.text.existing import check_case, read_existing
    from stages.text.words import Normalisation

    where = f"{key}={given}"
    found = find_weights(given, base, key)
    rows = _table_rows(found.weights, where)
    if rows != len(found.tokens):
        raise UserError(
            f"{where}: its vocabulary has {len(found.tokens):,} entries, and the table of its "
            f"weights {rows:,}: they do not belong together. Put the model's own vocab.txt (and "
            "tokenizer.json) beside its weights"
        )
    _check_is_bert(found, where)
    existing = read_existing(found.folder)
    uncased = Normalisation(lowercase=True, strip_accents=True)
    cased = Normalisation(lowercase=False, strip_accents=False)
    if existing.lowercase is None:
        # Entries alone: with capital letters they are of cased text.
        normalisation = cased if check_case(existing.tokens, uncased) else uncased
    else:
        normalisation = existing.normalisation(uncased)
    positions = found.shape.get("max_position_embeddings")
    return found, GivenTokens(
        existing.tokens,
        normalisation,
        existing.max_word_characters or 100,
        positions if isinstance(positions, int) else 512,
    )


def _check_is_bert(found: GivenWeights, where: str) -> None:
    """Refuse what config.json and the head of the weights tell to be no whole BERT."""
    kind = found.shape.get("model_type", "bert")
    if kind != "bert":
        raise UserError(
            f"{where}: config.json says model_type={kind}, and only BERT's encoder is known here: "
            "give a BERT"
        )
    head, data_bytes = _head(found.weights)
    layers = found.shape.get("num_hidden_layers", found.shape.get("num_layers"))
    if head is None or not isinstance(layers, int):
        return
    tensors = [value for name, value in head.items() if name != "__metadata__"]
    wanted = max((value["data_offsets"][1] for value in tensors), default=0)
    if wanted > data_bytes:
        raise UserError(
            f"{where}: {found.weights.name} ends too early, {wanted - data_bytes:,} bytes of its "
            "tensors are missing: fetch it again"
        )
    last = (f"layer.{layers - 1}.", f"layers.{layers - 1}.")
    if not any(part in name for name in head for part in last):
        raise UserError(
            f"{where}: {found.weights.name} has not the {layers} blocks that its config says: the "
            "two files do not belong together"
        )


def _head(weights: Path) -> tuple[dict[str, Any] | None, int]:
    """The head of a safetensors file, None where there is none, and how many bytes follow it.

    Its length stands in 8 bytes, then comes JSON (the format's own page).
    """
    whole = weights.stat().st_size
    try:
        with weights.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(size)) if 0 < size < whole else None
    except (OSError, ValueError):
        head = None
    return (head, whole - 8 - size) if isinstance(head, dict) else (None, 0)


def _table_rows(weights: Path, where: str) -> int:
    """Rows of the table of entries."""
    head, _ = _head(weights)
    if head is None:
        raise UserError(f"{where}: {weights.name} is no whole safetensors file: fetch it again")
    for name, value in head.items():
        if name.endswith(TOKEN_TABLES):
            return int(value["shape"][0])
    raise UserError(
        f"{where}: {weights.name} has no table of word embeddings: is it a BERT? (It holds "
        f"{', '.join(sorted(head.keys() - {'__metadata__'})[:3])}, ...)"
    )


def list_task(task: Mapping[str, Any], name: str, base: Path) -> RawInput:
    """What is fingerprinted of a task's files, and of the vocabulary of a model that is given.

    Args:
        task: the node's settings: `train`, `dev`, `data`, `init_from` with `init_from_key`, and
            `max_length` and `freeze_layers` to be held against the given model's shape.
        name: of the task.
        base: what relative paths are from.

    Raises:
        UserError: a file is not there, or the given model cannot be used.
    """
    files = task_files(task, name, base)
    entries: list[Any] = [
        {"set": which, "name": file.name, "size": file.size, "stamp": file.stamp}
        for which, found in files.items()
        for file in found
    ]
    size = sum(file.size for found in files.values() for file in found)
    said = f"{_counted(files['train'])} of train, {_counted(files['dev'])} of dev"
    description = f"{said}, {size / 1e6:,.1f} MB"
    given = task["init_from"]
    if given is not None:
        found, vocabulary = given_tokens(given, task["init_from_key"], base)
        _check_shape(task, found, vocabulary, name)
        entries.append(
            {
                "name": "vocabulary",
                "entries": len(vocabulary.tokens),
                "tokens": json_digest(list(vocabulary.tokens)),
                "max_word_characters": vocabulary.max_word_characters,
                "positions": vocabulary.positions,
                **dataclasses.asdict(vocabulary.normalisation),
            }
        )
        description += f"; {len(vocabulary.tokens):,} entries of {shown(given)}"
    return RawInput(entries, description)


def _check_shape(
    task: Mapping[str, Any], found: GivenWeights, vocabulary: GivenTokens, name: str
) -> None:
    where = f"{task['init_from_key']}={task['init_from']}"
    if task["max_length"] > vocabulary.positions:
        raise UserError(
            f"tasks.{name}.max_length={task['max_length']} is longer than the "
            f"{vocabulary.positions} positions of {where}: shorten it"
        )
    layers = found.shape.get("num_hidden_layers", found.shape.get("num_layers"))
    if isinstance(layers, int) and task["freeze_layers"] > layers:
        raise UserError(
            f"tasks.{name}.freeze_layers={task['freeze_layers']} is more than the {layers} blocks "
            f"of {where}: lower it"
        )


def _counted(files: Sequence[TaskFile]) -> str:
    return f"{len(files)} file{'' if len(files) == 1 else 's'}"
