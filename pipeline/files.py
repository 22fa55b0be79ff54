"""Whole files on the filesystem of a store: a local one, or any that pyarrow speaks to.

The local branch needs no pyarrow (its import alone takes longer than a `plan`), and makes every
file appear whole: temporary name, then rename. What has to outlive a power cut is synced: a small
file by itself, the parts of an artifact all together before its manifest. Elsewhere a file is one
PUT; where even that can tear, readers check what they read (a manifest that is not whole JSON
counts as none).

Paths are strings with `/`, inside the filesystem.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from pipeline.stage import UserError

# Object stores have no folders; creating one there would leave a marker object.
OBJECT_STORES = ("s3", "gcs", "abfs")
SCHEMES = {"s3": "s3", "gcs": "gs", "hdfs": "hdfs"}
"""Of URIs, by pyarrow's names of filesystems, where the path inside is all that a URI adds."""
COPY_BYTES = 8 << 20
SYNC_THREADS = 8
RETRY_SECONDS = 60
"""Longer than for a corpus: what is written may be hours of work."""
_SYNC_FILE_RANGE_WRITE = 2


class Files(ABC):
    """The few operations that the store needs. Picklable."""

    local: bool

    def shown(self, path: str) -> str:
        """`path` as a person can use it elsewhere: on object stores a URI."""
        return path

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The bytes of a file, or None when it is not there."""

    @abstractmethod
    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Make or replace a small file; its folder need not exist.

        Where it is not `durable`, a power cut may leave the old file, none, or a torn one.
        """

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Bytes of a file, or None when it is not there."""

    @abstractmethod
    def has_folder(self, path: str) -> bool:
        """Whether a folder is there (on object stores: anything under it)."""

    @abstractmethod
    def folders(self, path: str) -> list[str]:
        """Names of the folders directly in `path`, sorted; empty when it is not there."""

    @abstractmethod
    def walk(self, path: str) -> dict[str, int]:
        """Name relative to `path` -> bytes, of all files under it."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it; one that is not there is no error."""

    @abstractmethod
    def spool(self, temporary: str) -> IO[bytes]:
        """A file to write a part to: `temporary` itself, or nameless space on this machine."""

    @abstractmethod
    def place(self, spooled: IO[bytes], temporary: str, path: str) -> None:
        """Make the spooled bytes whole under `path`, at once; close `spooled`.

        Bytes and name are durable once `sync` was called.
        """

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make all files under `path` durable, bytes and names."""

    @abstractmethod
    def arrow(self) -> Any:
        """The `pyarrow.fs.FileSystem` that `path`s are paths of."""


class LocalFiles(Files):
    """A filesystem of this machine, or one mounted on it."""

    local = True

    def read(self, path: str) -> bytes | None:
        """See `Files`."""
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See `Files`."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            # A rename survives a power cut only once its folder is on disk.
            _sync(str(target.parent))

    def size(self, path: str) -> int | None:
        """See `Files`."""
        try:
            return Path(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has_folder(self, path: str) -> bool:
        """See `Files`."""
        return Path(path).is_dir()

    def folders(self, path: str) -> list[str]:
        """See `Files`."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, path: str) -> dict[str, int]:
        """See `Files`."""
        found: dict[str, int] = {}
        for folder, _, names in os.walk(path):
            prefix = os.path.relpath(folder, path)
            for name in names:
                relative = name if prefix == "." else f"{prefix}/{name}"
                size = self.size(f"{folder}/{name}")
                if size is not None:
                    found[relative] = size
        return found

    def remove(self, path: str) -> None:
        """See `Files`."""
        Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """See `Files`."""
        # A worker of a dead attempt may still be writing there: what it adds meanwhile is left.
        shutil.rmtree(path, ignore_errors=True)

    def spool(self, temporary: str) -> IO[bytes]:
        """See `Files`."""
        Path(temporary).parent.mkdir(parents=True, exist_ok=True)
        return Path(temporary).open("wb", buffering=1 << 20)

    def place(self, spooled: IO[bytes], temporary: str, path: str) -> None:
        """See `Files`."""
        spooled.flush()
        _begin_writeback(spooled.fileno())
        spooled.close()
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(temporary).replace(target)

    def sync(self, path: str) -> None:
        """See `Files`."""
        folders, files = [], []
        for folder, _, names in os.walk(path):
            folders.append(folder)
            files += [f"{folder}/{name}" for name in names]
        # Waiting is all that there is to do; a disk that is asked side by side waits once for all.
        with ThreadPoolExecutor(SYNC_THREADS) as threads:
            list(threads.map(_sync, files))
            list(threads.map(_sync, folders))

    def arrow(self) -> Any:
        """See `Files`."""
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem()


class ArrowFiles(Files):
    """Any filesystem of pyarrow; meant for object stores."""

    local = False

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    def shown(self, path: str) -> str:
        """See `Files`."""
        scheme = SCHEMES.get(self._fs.type_name)
        return path if scheme is None else f"{scheme}://{path}"

    def read(self, path: str) -> bytes | None:
        """See `Files`."""
        try:
            with self._fs.open_input_stream(path) as stream:
                data: bytes = stream.read()
                return data
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See `Files`."""
        self._make_parent(path)
        with self._fs.open_output_stream(path) as stream:
            stream.write(data)

    def size(self, path: str) -> int | None:
        """See `Files`."""
        info = self._fs.get_file_info(path)
        return int(info.size) if info.is_file else None

    def has_folder(self, path: str) -> bool:
        """See `Files`."""
        return bool(self._fs.get_file_info(path).type.name == "Directory")

    def folders(self, path: str) -> list[str]:
        """See `Files`."""
        found = self._list(path, recursive=False)
        return sorted(info.base_name for info in found if not info.is_file)

    def walk(self, path: str) -> dict[str, int]:
        """See `Files`."""
        root = path.rstrip("/") + "/"
        found = self._list(path, recursive=True)
        return {i.path.removeprefix(root): int(i.size) for i in found if i.is_file}

    def remove(self, path: str) -> None:
        """See `Files`."""
        try:
            self._fs.delete_file(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        """See `Files`."""
        try:
            self._fs.delete_dir(path)
        except FileNotFoundError:
            return

    def spool(self, temporary: str) -> IO[bytes]:
        """See `Files`."""
        # Not straight to the store: closing a half-written upload would complete it.
        return tempfile.TemporaryFile()

    def place(self, spooled: IO[bytes], temporary: str, path: str) -> None:
        """See `Files`."""
        self._make_parent(path)
        spooled.seek(0)
        with self._fs.open_output_stream(path) as stream:
            while chunk := spooled.read(COPY_BYTES):
                stream.write(chunk)
        spooled.close()

    def sync(self, path: str) -> None:
        """See `Files`: a PUT is durable."""

    def arrow(self) -> Any:
        """See `Files`."""
        return self._fs

    def _list(self, path: str, recursive: bool) -> list[Any]:
        import pyarrow.fs

        selector = pyarrow.fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        return list(self._fs.get_file_info(selector))

    def _make_parent(self, path: str) -> None:
        if self._fs.type_name not in OBJECT_STORES:
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)


def open_files(location: str) -> tuple[Files, str]:
    """The filesystem of a URI or local path, and the path inside it.

    A plain path is local and made absolute from the current folder. Raises UserError.
    """
    if "://" not in location:
        return LocalFiles(), str(Path(location).expanduser().absolute())
    if location.startswith("file://"):
        from urllib.parse import unquote, urlparse

        return LocalFiles(), unquote(urlparse(location).path)
    import pyarrow.fs

    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(_with_retry_limit(location))
    except (ValueError, OSError, NotImplementedError) as error:
        raise UserError(
            f"{location} cannot be opened: {error}. A folder, or a URI such as s3://bucket/prefix, "
            "was expected"
        ) from None
    return ArrowFiles(filesystem), path.rstrip("/")


def _with_retry_limit(location: str) -> str:
    """A `gs://` URI that gives up in time: its own limit of a quarter of an hour looks like a
    hang."""
    if not location.startswith(("gs://", "gcs://")) or "retry_limit_seconds" in location:
        return location
    return f"{location}{'&' if '?' in location else '?'}retry_limit_seconds={RETRY_SECONDS}"


def _sync(path: str) -> None:
    """Wait until a file or folder is on disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begin_writeback(descriptor: int) -> None:
    """Have the system write a file to disk from now on, where it can be told; does not wait."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        # Only sooner: `sync` is what makes it sure, so an error says nothing.
        call(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
