"""Files on other filesystems, named by URIs: found and opened through `pyarrow.fs`.

pyarrow is imported only when a URI is looked at. What stands behind the `?` of a URI belongs to its
filesystem: `s3://bucket/folder?region=eu-west-1&endpoint_override=host:9000`. `%20` and the like
are read as the characters they stand for.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from stages.text.folders import WILDCARDS, matches
from stages.text.listing import InputNotFound, shown

BUFFER_BYTES = 4 << 20
"""Read at a time: a request costs much more than on a disk."""

RETRY_SECONDS = 15

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)(.*)", re.DOTALL)


class RemoteFailure(Exception):  # noqa: N818 - says what happened
    """A filesystem failed while a file was read: no damage of the file, so nothing is counted."""


class Uri(NamedTuple):
    """The parts of a URI; `path` is decoded, `query` keeps its `?`."""

    scheme: str
    authority: str
    path: str
    query: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{quote(self.path)}{self.query}"


@dataclass(frozen=True)
class Found:
    """A file on another filesystem.

    Attributes:
        path: as in its URI, decoded.
        etag: stands for the content where the filesystem knows no time of change.
        how: "given" by itself, "named" by a glob, or only "below" a folder.
        problem: why it is not read, or "".
    """

    path: str
    size: int
    mtime_ns: int
    etag: str
    how: Literal["given", "named", "below"]
    problem: str = ""


def is_remote(path: str) -> bool:
    """Whether a path is a URI of another filesystem than the machine's own."""
    return _URI.match(path) is not None and not path.startswith("file://")


def local_path(path: str) -> str:
    """The plain path of a file:// URI; others as they are."""
    return unquote(path.removeprefix("file://")) if path.startswith("file://") else path


def split_uri(uri: str) -> Uri:
    """The parts of a URI."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise ValueError(f"{uri!r} is no URI")
    scheme, authority, path, query = match.groups()
    return Uri(scheme, authority, unquote(path), query)


def join_uri(root: str, path: str) -> str:
    """The URI of `path`, which is relative to the folder `root`."""
    uri = split_uri(root)
    return str(uri._replace(path=f"{uri.path.rstrip('/')}/{path}"))


def find_remote(given: str) -> tuple[str, list[Found]]:
    """The folder that a URI names (of a glob: before its first wildcard), and the files in it.

    Raises:
        InputNotFound: nothing is there, or the filesystem cannot be reached.
    """
    uri = split_uri(given)
    if uri.scheme in ("http", "https"):
        raise InputNotFound(
            f"{given}: a corpus is not read from web pages: download it first, and give the files"
        )
    try:
        return _find(uri, given)
    except InputNotFound:
        raise
    except Exception as error:
        # Each filesystem has its own exceptions, and those of fsspec are anything.
        raise InputNotFound(f"{shown(given)} cannot be reached: {_said(error)}") from None


def _find(uri: Uri, given: str) -> tuple[str, list[Found]]:
    import pyarrow.fs

    filesystem, prefix = _filesystem(uri.scheme, uri.authority, uri.query)
    info = filesystem.get_file_info(prefix + uri.path.rstrip("/"))
    if info.is_file:
        return uri.path.rpartition("/")[0], [_found(filesystem, info, uri.path, "given")]
    folder = uri.path.rstrip("/")
    pattern: tuple[str, ...] = ()
    if info.type == pyarrow.fs.FileType.NotFound:
        parts = tuple(folder.split("/"))
        wild = next((i for i, p in enumerate(parts) if any(c in p for c in WILDCARDS)), None)
        if wild is None:
            raise InputNotFound(f"corpus path does not exist: {shown(given)}")
        folder, pattern = "/".join(parts[:wild]), parts[wild:]
    # In any case all below: a folder that a glob names is read with what it holds.
    selector = pyarrow.fs.FileSelector(prefix + folder, recursive=True, allow_not_found=True)
    inside = len(f"{prefix}{folder}/".lstrip("/"))
    found = []
    for info in filesystem.get_file_info(selector):
        parts = tuple(info.path.lstrip("/")[inside:].split("/"))
        if not info.is_file:
            continue
        named = bool(pattern) and matches(parts, pattern)
        if (
            pattern
            and not named
            and not any(matches(parts[:i], pattern) for i in range(len(parts)))
        ):
            continue
        path = f"{folder}/{'/'.join(parts)}"
        found.append(_found(filesystem, info, path, "named" if named else "below", parts))
    if pattern and not found:
        raise InputNotFound(f"no file matches the corpus path {shown(given)}")
    return folder, found


def _found(
    filesystem: Any,
    info: Any,
    path: str,
    how: Literal["given", "named", "below"],
    parts: tuple[str, ...] = (),
) -> Found:
    hidden = any(part.startswith(".") for part in parts)
    etag = "" if info.mtime_ns else _etag(filesystem, info.path)
    size = int(info.size or 0)
    return Found(path, size, int(info.mtime_ns or 0), etag, how, "hidden" if hidden else "")


def _etag(filesystem: Any, path: str) -> str:
    # What fsspec takes for a key of the content; pyarrow's own filesystems all know the time.
    ukey = getattr(getattr(getattr(filesystem, "handler", None), "fs", None), "ukey", None)
    return str(ukey(path)) if ukey else ""


def open_uri(uri: str) -> io.RawIOBase:
    """A file on another filesystem, seekable. Reading it raises `RemoteFailure`."""
    parts = split_uri(uri)
    try:
        filesystem, prefix = _filesystem(parts.scheme, parts.authority, parts.query)
        return _RemoteFile(filesystem.open_input_file(prefix + parts.path), uri)
    except Exception as error:
        raise RemoteFailure(_FAILED.format(shown(uri), _said(error))) from error


class _RemoteFile(io.RawIOBase):
    """Keeps failures of a filesystem apart from those of decompressors."""

    def __init__(self, file: Any, uri: str) -> None:
        self._file = file
        self._uri = uri

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise RemoteFailure(_FAILED.format(shown(self._uri), _said(error))) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


_FAILED = "{} could not be read: {}. Run again: what was read is kept"


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


@lru_cache(maxsize=64)
def _filesystem(scheme: str, authority: str, query: str) -> tuple[Any, str]:
    """A filesystem, and what stands inside it before the path of a URI (the bucket)."""
    import pyarrow.fs

    if scheme in ("gs", "gcs") and "retry_limit_seconds" not in query:
        # Its own limit is a quarter of an hour, which looks like a hang.
        query += f"{'&' if query else '?'}retry_limit_seconds={RETRY_SECONDS}"
    filesystem, inside = pyarrow.fs.FileSystem.from_uri(f"{scheme}://{authority}/{query}")
    return filesystem, inside.rstrip("/")
