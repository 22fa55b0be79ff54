"""Walking folders: globs, hidden names, links and loops. Nothing is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

WILDCARDS = "*?["


def split_glob(path: str) -> tuple[str, tuple[str, ...]]:
    """The folder before the first wildcard, and the parts of the pattern below it."""
    parts = Path(path).parts
    first = next(i for i, part in enumerate(parts) if any(c in part for c in WILDCARDS))
    return str(Path(*parts[:first])), parts[first:]


def matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path are what the parts of a glob name."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])


def _leads_to_match(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a folder is, or may hold, something that the pattern names."""
    if not parts or not pattern or pattern[0] == "**":
        return True
    return fnmatchcase(parts[0], pattern[0]) and _leads_to_match(parts[1:], pattern[1:])


class Item(NamedTuple):
    """Something found below a folder.

    Attributes:
        named: a glob names it, not only a folder above it.
        problem: why it is not read, or "".
        entry: as the folder tells; None for a folder.
    """

    path: str
    named: bool
    problem: str
    entry: os.DirEntry[str] | None


def walk(top: str, pattern: tuple[str, ...]) -> Iterator[Item]:
    """Yield what is below `top`, each folder once; folders only where they are not looked into."""
    seen: set[str] = set()
    stack: list[tuple[str, tuple[str, ...]]] = [(top, ())]
    while stack:
        folder, above = stack.pop()
        real = os.path.realpath(folder)
        if real in seen:
            yield Item(folder, False, "a link to a folder that is listed already", None)
            continue
        seen.add(real)
        try:
            with os.scandir(folder) as scan:
                items = sorted(scan, key=lambda item: item.name)
        except OSError as error:
            yield Item(folder, False, f"cannot be opened: {error.strerror}", None)
            continue
        deeper = []
        for item in items:
            parts = (*above, item.name)
            is_folder = _is_folder(item)
            if is_folder and not _leads_to_match(parts, pattern):
                continue
            if item.name.startswith("."):
                yield Item(item.path, False, "hidden", item)
            elif is_folder:
                deeper.append((item.path, parts))
            elif not pattern:
                yield Item(item.path, False, "", item)
            elif matches(parts, pattern):
                yield Item(item.path, True, "", item)
            elif any(matches(parts[:i], pattern) for i in range(1, len(parts))):
                yield Item(item.path, False, "", item)
        stack.extend(reversed(deeper))


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself
        return False


def regular_file(file: Path | os.DirEntry[str]) -> tuple[os.stat_result | None, str]:
    """What `stat` says of a regular file, or None and the reason why it is not read."""
    try:
        info = file.stat()
    except OSError as error:
        link = file.is_symlink()
        return None, "a broken link" if link else f"cannot be opened: {error.strerror}"
    if not stat.S_ISREG(info.st_mode):
        return None, "not a regular file"
    return info, ""
