"""The files of one source: found by path, folder or glob, here or on another filesystem.

Nothing is opened, and nothing but the standard library is imported unless a URI is given.

The root is the deepest folder that holds everything given: a folder given alone is its own root, a
file given alone has its folder as root. Paths in listings are relative to it, so a corpus that is
moved as a whole stays the same corpus.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.text.folders import WILDCARDS, Item, regular_file, split_glob, walk
from stages.text.listing import (
    COMPRESSIONS,
    ENDINGS,
    FileEntry,
    FileListing,
    Format,
    InputNotFound,
    Skipped,
    file_format,
    is_dump_index,
    printable,
    relative_path,
)
from stages.text.uris import Found, find_remote, is_remote, local_path, split_uri


def list_files(
    paths: Sequence[str], base: str | os.PathLike[str] = ".", format: str = "auto"
) -> FileListing:
    """List the files of `paths`: files, folders (with all below) and globs (`*`, `?`, `[]`, `**`).

    Args:
        paths: absolute, relative to `base`, or URIs of one filesystem (s3://, gs://, hdfs://...;
            file:// is as a plain path).
        base: an absolute folder, or one relative to the current folder.
        format: "auto" or a format. Files named one by one or by a glob are read in a named format
            whatever their ending; in folders, files that end as another format are skipped.

    Hidden names in folders, what has no known ending (with "auto") and what is not a regular file
    are skipped and listed. A file reachable in several ways is listed once; links are followed,
    loops are not. FIFOs and sockets are never opened.

    Raises:
        InputNotFound: a path does not exist or is not readable as said, or nothing is left.
    """
    if any(is_remote(given) for given in paths):
        return _list_remote(paths, format)
    gathered = _Gathered(format)
    roots: list[str] = []
    for given in sorted(map(local_path, paths)):
        path = os.path.normpath(Path(base).absolute() / Path(given).expanduser())
        pattern: tuple[str, ...] = ()
        if not os.path.lexists(path) and any(c in given for c in WILDCARDS):
            path, pattern = split_glob(path)
        if not Path(path).exists():
            raise InputNotFound(
                f"corpus path does not exist: {printable(given)} (looked at {printable(path)})"
            )
        if not Path(path).is_dir():
            roots.append(str(Path(path).parent))
            gathered.add_given(path, given)
            continue
        roots.append(path)
        matched = False
        for item in walk(path, pattern):
            matched = True
            gathered.add_found(item)
        if pattern and not matched:
            raise InputNotFound(f"no file matches the corpus path {given} (looked under {path})")
    return gathered.listing(os.path.commonpath(roots) if roots else "", paths)


def _list_remote(paths: Sequence[str], format: str) -> FileListing:
    strange = next((given for given in paths if not is_remote(given)), None)
    roots = {split_uri(given)._replace(path="") for given in paths if is_remote(given)}
    if strange is not None or len(roots) > 1:
        raise InputNotFound(_ONE_FILESYSTEM)
    gathered = _Gathered(format)
    folders = []
    for given in sorted(paths):
        folder, found = find_remote(given)
        folders.append(folder or "/")
        for file in found:
            gathered.add_remote(file, given)
    folder = os.path.commonpath(folders)
    return gathered.listing(folder, paths, str(roots.pop()._replace(path=folder)))


_ONE_FILESYSTEM = (
    "the paths of one source have to lie on one filesystem (and in one bucket): give each of them "
    "a source of its own, corpus.sources=[{paths: [...]}, {paths: [...]}]"
)


class _Gathered:
    """Files found so far, each under the first of its names, and what was skipped and why."""

    def __init__(self, format: str) -> None:
        self.format = format
        self.files: dict[str, tuple[int, int, Format, str, str]] = {}
        self.skipped: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def listing(self, root: str, paths: Sequence[str], uri: str = "") -> FileListing:
        """All of it, with paths relative to the folder `root`, which is called `uri`."""
        if not self.files:
            raise InputNotFound(_nothing_readable(paths, self.format, self.skipped))
        entries = [FileEntry(relative_path(path, root), *e) for path, e in self.files.items()]
        skipped = [
            Skipped(printable(relative_path(path, root)), why) for path, why in self.skipped.items()
        ]
        return FileListing(
            uri or root,
            tuple(sorted(entries, key=lambda e: e.path)),
            tuple(sorted(skipped, key=lambda s: s.path)),
        )

    def add_given(self, path: str, given: str) -> None:
        """Add a file that was named by itself: that it cannot be read is an error."""
        info, problem = regular_file(Path(path))
        if info is None:
            raise InputNotFound(f"corpus path {given} is {problem}: name a file or a folder")
        if self._first_name(path, Path(path).is_symlink()) == path:
            self._add(path, info.st_size, info.st_mtime_ns, self._given_format(path, given))

    def add_found(self, item: Item) -> None:
        """Add a file found in a folder."""
        info, problem = None, item.problem
        if not problem and item.entry is not None:
            info, problem = regular_file(item.entry)
        kind = self._found_format(item.path, item.named, problem)
        if kind is None or info is None or item.entry is None:
            return
        first = self._first_name(item.path, item.entry.is_symlink())
        if first == item.path:
            self._add(item.path, info.st_size, info.st_mtime_ns, kind)
        else:
            self.skipped[item.path] = f"the same file as {printable(Path(first).name)}"

    def add_remote(self, file: Found, given: str) -> None:
        """Add a file of another filesystem."""
        if file.how == "given":
            kind: tuple[Format, str] | None = self._given_format(file.path, given)
        else:
            kind = self._found_format(file.path, file.how == "named", file.problem)
        if kind is not None:
            self._add(file.path, file.size, file.mtime_ns, kind, file.etag)

    def _add(
        self, path: str, size: int, mtime_ns: int, kind: tuple[Format, str], etag: str = ""
    ) -> None:
        self.files[path] = (size, mtime_ns, *kind, etag)

    def _given_format(self, path: str, given: str) -> tuple[Format, str]:
        kind, compression = file_format(path, self.format)
        if self.format != "auto":
            kind = self.format  # type: ignore[assignment]
        if kind is None:
            raise InputNotFound(
                f"cannot tell the format of {given} by its ending: set corpus.format "
                f"(known endings: {_known_endings()})"
            )
        return kind, compression

    def _found_format(self, path: str, named: bool, problem: str) -> tuple[Format, str] | None:
        """Format and compression, or None for a file that is noted as skipped."""
        kind, compression = file_format(path, self.format)
        if kind is None and named and self.format != "auto":
            kind = self.format  # type: ignore[assignment]
        if not problem and self.format == "auto" and not named and is_dump_index(path):
            problem = "the index of a dump, no text"
        if not problem and kind is None:
            problem = (
                "unknown ending" if self.format == "auto" else f"does not end as {self.format}"
            )
        if problem or kind is None:
            self.skipped[path] = problem
            return None
        return kind, compression

    def _first_name(self, path: str, link: bool) -> str:
        """The name under which the file at `path` was met first."""
        if link:
            real = os.path.realpath(path)
        else:
            # Folders hold many files: following a folder's links once is faster than for each file.
            folder, _, name = path.rpartition(os.sep)
            if folder not in self._folders:
                self._folders[folder] = os.path.realpath(folder or os.sep)
            real = path if self._folders[folder] == folder else f"{self._folders[folder]}/{name}"
        return self._names.setdefault(real, path)


def _known_endings() -> str:
    return f"{' '.join(ENDINGS)}, also with {' '.join(COMPRESSIONS)} behind"


def _nothing_readable(paths: Sequence[str], format: str, skipped: Mapping[str, str]) -> str:
    where = printable(", ".join(paths)) or "corpus.paths is empty"
    what = f"files ending in {_known_endings()}" if format == "auto" else f"{format} files"
    saw = ""
    if skipped:
        name, why = next(iter(sorted(skipped.items())))
        saw = f"; {len(skipped)} skipped, e.g. {printable(Path(name).name)} ({why})"
    hint = "; for other endings set corpus.format" if format == "auto" else ""
    return f"no readable file in {where}: read are {what}{hint}{saw}"
