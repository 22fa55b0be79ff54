"""What a corpus consists of, found without reading it.

`plan` fingerprints these listings, so this module uses the standard library alone and looks only
at names, sizes and times. Distributions are listed by `python_docs.list_python_docs`.

The corpus root is the deepest folder that holds everything given: a folder given alone is its own
root, a file given alone has its folder as root. Paths in listings are relative to it, so a corpus
that is moved as a whole stays the same corpus.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stages.text.folders import WILDCARDS, regular_file, split_glob, walk

Format = Literal[
    "text",
    "sentences",
    "blank_lines",
    "jsonl",
    "csv",
    "tsv",
    "parquet",
    "arrow",
    "mediawiki",
    "wikiextractor",
    "wikitext",
    "python",
]

ENDINGS: Mapping[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".xml": "mediawiki",
    ".tokens": "wikitext",
}
"""Endings that `auto` reads. `.json` is read as JSON lines."""

NAMES: Mapping[str, Format] = {
    r"wiki_\d{2,}": "wikiextractor",
    r".*\.xml-p\d+p\d+": "mediawiki",
    r"wiki\.(?:train|valid|test)\.raw": "wikitext",
}
"""Names (all of one, lower-case, without a compression's ending) that tell a format."""

TEXT_FORMATS: frozenset[str] = frozenset({"sentences", "blank_lines", "wikitext", "wikiextractor"})
"""Formats whose files may end as plain text."""

COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
"""Endings that may follow those of `ENDINGS`."""

FILE_SPLIT_BYTES = 8_000_000
PYTHON_SPLIT_BYTES = 2_000_000


class InputNotFound(ValueError):  # noqa: N818 - "not found" says that it is an error
    """The corpus is not there or holds nothing readable; the message says what to do."""


@dataclass(frozen=True)
class FileEntry:
    """A file of the corpus.

    Attributes:
        path: relative to the corpus root, with `/`.
        size: bytes as stored (compressed).
        mtime_ns: time of last change.
        format: how its content is read.
        compression: "gzip", "bz2", "xz", "zstd" or "" for none.
    """

    path: str
    size: int
    mtime_ns: int
    format: Format
    compression: str


@dataclass(frozen=True)
class Skipped:
    """Something in a folder that is not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class FileListing:
    """Files of a corpus in the order of their paths; `root` is absolute and not fingerprinted."""

    root: str
    entries: tuple[FileEntry, ...]
    skipped: tuple[Skipped, ...]

    def fingerprint_entries(self) -> list[Any]:
        """JSON that stands for the content: path, size and mtime of each file."""
        return [
            {"path": e.path, "size": e.size, "mtime_ns": e.mtime_ns, "format": e.format}
            for e in self.entries
        ]

    def description(self) -> str:
        """One line for a person."""
        size = sum(e.size for e in self.entries)
        return f"{len(self.entries)} files, {size / 1e6:.1f} MB in {self.root}"


@dataclass(frozen=True)
class Distribution:
    """An installed distribution whose modules are read.

    Attributes:
        name: as given; `python` is the standard library.
        version: of the distribution, or of Python ("3.12.4").
        record: SHA-256 over path, hash and size of the modules in RECORD (over path and size for
            the standard library). Lines of scripts and compiled files stay out: they differ
            between installers.
        root: folder that `modules` are relative to; not fingerprinted.
        modules: (path with `/`, bytes of source), sorted by path.
    """

    name: str
    version: str
    record: str
    root: str
    modules: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DocsListing:
    """Distributions that are read, and those of the list that cannot be (with the reason)."""

    distributions: tuple[Distribution, ...]
    missing: tuple[Skipped, ...]

    def fingerprint_entries(self) -> list[Any]:
        """JSON that stands for the content: name, version and RECORD hash of each."""
        return [
            {"name": d.name, "version": d.version, "record": d.record} for d in self.distributions
        ]

    def description(self) -> str:
        """One line for a person."""
        names = ", ".join(f"{d.name} {d.version}" for d in self.distributions)
        count = sum(len(d.modules) for d in self.distributions)
        absent = ", ".join(f"{m.path} ({m.reason})" for m in self.missing)
        return f"{count} modules of {names}" + (f"; left out: {absent}" if absent else "")


@dataclass(frozen=True)
class Split:
    """A work item of the first pass: files that one task reads. JSON-able with `to_json`.

    Attributes:
        source: name of the distribution; "" for files (their source is their path).
        root: folder that `files` are relative to.
        bytes: stored size of all files, for progress and balance.
    """

    source: str
    root: str
    files: tuple[str, ...]
    format: Format
    compression: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """A plain dict that `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Split:
        """The split that `to_json` was called on."""
        return cls(**{**value, "files": tuple(value["files"])})


def file_format(name: str, wanted: str = "auto") -> tuple[Format | None, str]:
    """Format and compression of a file by the ending of its name; None where it has no known one.

    With a format named (`wanted` is not "auto"), a file without a known ending has that format, and
    one whose ending belongs to another format has None.
    """
    path = Path(name.lower())
    compression = COMPRESSIONS.get(path.suffix, "")
    if compression:
        path = path.with_suffix("")
    named = (format for name, format in NAMES.items() if re.fullmatch(name, path.name))
    known = next(named, None) or ENDINGS.get(path.suffix)
    if wanted == "auto":
        return known, compression
    belongs = known is None or known == wanted or (known == "text" and wanted in TEXT_FORMATS)
    return (wanted if belongs else None), compression  # type: ignore[return-value]


def list_files(
    paths: Sequence[str], base: str | os.PathLike[str] = ".", format: str = "auto"
) -> FileListing:
    """List the files of `paths`: files, folders (with all below) and globs (`*`, `?`, `[]`, `**`).

    Args:
        paths: absolute, or relative to `base`.
        base: an absolute folder, or one relative to the current folder.
        format: "auto" or a format. Files named one by one or by a glob are read in a named format
            whatever their ending; in folders, files that end as another format are skipped.

    Hidden names in folders, what has no known ending (with "auto") and what is not a regular file
    are skipped and listed. A file reachable in several ways is listed once; links are followed,
    loops are not. FIFOs and sockets are never opened.

    Raises:
        InputNotFound: a path does not exist or is not readable as said, or nothing is left.
    """
    gathered = _Gathered(format)
    roots: list[str] = []
    for given in sorted(paths):
        path = os.path.normpath(Path(base).absolute() / Path(given).expanduser())
        pattern: tuple[str, ...] = ()
        if not os.path.lexists(path) and any(c in given for c in WILDCARDS):
            path, pattern = split_glob(path)
        if not Path(path).exists():
            raise InputNotFound(f"corpus path does not exist: {given} (looked at {path})")
        if not Path(path).is_dir():
            roots.append(str(Path(path).parent))
            gathered.add_given(path, given)
            continue
        roots.append(path)
        matched = False
        for file, named, problem in walk(path, pattern):
            matched = True
            gathered.add_found(file, named, problem)
        if pattern and not matched:
            raise InputNotFound(f"no file matches the corpus path {given} (looked under {path})")
    if not gathered.files:
        raise InputNotFound(_nothing_readable(paths, format, gathered.skipped))
    root = os.path.commonpath(roots)
    entries = [
        FileEntry(relative_path(file, root), info.st_size, info.st_mtime_ns, kind, compression)
        for file, (info, kind, compression) in gathered.files.items()
    ]
    skipped = [Skipped(relative_path(file, root), why) for file, why in gathered.skipped.items()]
    return FileListing(
        root,
        tuple(sorted(entries, key=lambda e: e.path)),
        tuple(sorted(skipped, key=lambda s: s.path)),
    )


def splits(listing: FileListing | DocsListing, target_bytes: int | None = None) -> list[Split]:
    """Cut a listing into work items of about `target_bytes` of stored bytes, in a fixed order.

    Small files of one format share an item; a large file is an item of its own.
    """
    if isinstance(listing, DocsListing):
        target = target_bytes or PYTHON_SPLIT_BYTES
        return [
            Split(d.name, d.root, tuple(path for path, _ in group), "python", "", size)
            for d in listing.distributions
            for group, size in _groups(d.modules, target)
        ]
    target = target_bytes or FILE_SPLIT_BYTES
    kinds: dict[tuple[Format, str], list[tuple[str, int]]] = {}
    for e in listing.entries:
        kinds.setdefault((e.format, e.compression), []).append((e.path, e.size))
    return [
        Split("", listing.root, tuple(path for path, _ in group), kind, compression, size)
        for (kind, compression), files in sorted(kinds.items())
        for group, size in _groups(files, target)
    ]


def _groups(
    files: Iterable[tuple[str, int]], target: int
) -> Iterator[tuple[list[tuple[str, int]], int]]:
    group: list[tuple[str, int]] = []
    total = 0
    for item in files:
        if group and total + item[1] > target:
            yield group, total
            group, total = [], 0
        group.append(item)
        total += item[1]
    if group:
        yield group, total


def relative_path(file: str, root: str) -> str:
    """`file` relative to `root`, with `/` on every system."""
    return os.path.relpath(file, root).replace(os.sep, "/")


class _Gathered:
    """Files found so far, each under the first of its names, and what was skipped and why."""

    def __init__(self, format: str) -> None:
        self.format = format
        self.files: dict[str, tuple[os.stat_result, Format, str]] = {}
        self.skipped: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add_given(self, path: str, given: str) -> None:
        """Add a file that was named by itself: that it cannot be read is an error."""
        info, problem = regular_file(path)
        if info is None:
            raise InputNotFound(f"corpus path {given} is {problem}: name a file or a folder")
        kind, compression = file_format(path, self.format)
        if self.format != "auto":
            kind = self.format  # type: ignore[assignment]
        if kind is None:
            raise InputNotFound(
                f"cannot tell the format of {given} by its ending: set corpus.format "
                f"(known endings: {_known_endings()})"
            )
        if self._first_name(path) == path:
            self.files[path] = (info, kind, compression)

    def add_found(self, path: str, named: bool, problem: str) -> None:
        """Add a file found in a folder, `named` by a glob or not."""
        info = None
        if not problem:
            info, problem = regular_file(path)
        if info is None:
            self.skipped[path] = problem
            return
        kind, compression = file_format(path, self.format)
        if kind is None and named and self.format != "auto":
            kind = self.format  # type: ignore[assignment]
        if kind is None:
            auto = self.format == "auto"
            self.skipped[path] = "unknown ending" if auto else f"does not end as {self.format}"
            return
        first = self._first_name(path)
        if first == path:
            self.files[path] = (info, kind, compression)
        else:
            self.skipped[path] = f"the same file as {Path(first).name}"

    def _first_name(self, path: str) -> str:
        """The name under which the file at `path` was met first."""
        # Folders hold many files: following a folder's links once is faster than for each file.
        folder, name = os.path.split(path)
        if Path(path).is_symlink():
            real = os.path.realpath(path)
        else:
            if folder not in self._folders:
                self._folders[folder] = os.path.realpath(folder)
            real = f"{self._folders[folder]}{os.sep}{name}"
        return self._names.setdefault(real, path)


def _known_endings() -> str:
    return f"{' '.join(ENDINGS)}, also with {' '.join(COMPRESSIONS)} behind"


def _nothing_readable(paths: Sequence[str], format: str, skipped: Mapping[str, str]) -> str:
    where = ", ".join(paths) or "corpus.paths is empty"
    what = f"files ending in {_known_endings()}" if format == "auto" else f"{format} files"
    saw = ""
    if skipped:
        name, why = next(iter(sorted(skipped.items())))
        saw = f"; {len(skipped)} skipped, e.g. {Path(name).name} ({why})"
    hint = "; for other endings set corpus.format" if format == "auto" else ""
    return f"no readable file in {where}: read are {what}{hint}{saw}"
