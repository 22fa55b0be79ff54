"""Byte streams of files: decompressed piece by piece, in UTF-8, cut into lines of bounded length.

Whatever can be read of a damaged file is given; then `DamagedFile` says what is wrong.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from stages.text.folders import regular_file
from stages.text.uris import BUFFER_BYTES, is_remote, open_uri

PIECE_BYTES = 256 * 1024

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    # UTF-32 first: its mark starts with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class DamagedFile(Exception):  # noqa: N818 - says what the file is
    """A file cannot be read to its end.

    Attributes:
        reason: "unreadable" (cannot be opened), "truncated" (ends too early), "damaged" (its
            compression or structure is broken) or "undecodable" (not in the encoding declared).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_pieces(
    path: str, compression: str = "", start: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield a file's content in pieces, decompressed.

    Args:
        path: of a regular file, or the URI of one.
        compression: "gzip", "bz2", "xz", "zstd" or "".
        start: of the bytes to read; only without compression.
        end: of the bytes to read; None: to the end of the file.

    Raises:
        DamagedFile: at the place where reading on fails.
        RemoteFailure: the filesystem of a URI fails.
    """
    try:
        raw = open_raw(path)
    except OSError as error:
        raise DamagedFile("unreadable", error.strerror or str(error)) from error
    with raw, _decompressed(raw, compression) as stream:
        # read1 gives what there is: read would drop it when the rest of its piece fails.
        read = getattr(stream, "read1", stream.read)
        if start:
            stream.seek(start)
        left = sys.maxsize if end is None else end - start
        given = 0
        while left > 0:
            try:
                piece = read(min(PIECE_BYTES, left))
            except EOFError as error:
                raise DamagedFile("truncated", f"{compression} data end too early") from error
            except (OSError, zlib.error, lzma.LZMAError) as error:
                if compression == "zstd":
                    yield from _before_damage(path, given)
                short = "runcated" in str(error)
                raise DamagedFile("truncated" if short else "damaged", str(error)) from error
            if not piece:
                return
            left -= len(piece)
            given += len(piece)
            yield piece


def _before_damage(path: str, given: int) -> Iterator[bytes]:
    """What can be read of a zstd file after its first `given` bytes.

    A read that fails gives nothing of what it had, so smaller ones try again.
    """
    for size in (1024, 1):
        with open_raw(path) as raw, _decompressed(raw, "zstd") as stream:
            try:
                skipped = 0
                while skipped < given:
                    skipped += len(stream.read(min(PIECE_BYTES, given - skipped)))
                while piece := stream.read(size):
                    given += len(piece)
                    yield piece
            except OSError:
                continue


def open_raw(path: str) -> Any:
    """A file as it is stored, seekable: of this machine, or of the filesystem of a URI."""
    if is_remote(path):
        return io.BufferedReader(open_uri(path), BUFFER_BYTES)
    # A FIFO that took the place of a file would be waited for without an end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return io.FileIO(descriptor)


def _decompressed(raw: Any, compression: str) -> Any:
    if compression and isinstance(raw, io.FileIO):
        # The decompressors of the standard library read 8 KB at a time.
        raw = io.BufferedReader(raw, PIECE_BYTES)
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bz2":
        return _Streams(raw, bz2.BZ2Decompressor)
    if compression == "xz":
        return _Streams(raw, lzma.LZMADecompressor)
    if compression == "zstd":
        return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    if compression:
        raise ValueError(f"unknown compression {compression!r}")
    return raw


class _Streams:
    """One compressed stream after another.

    `bz2.BZ2File` and `lzma.LZMAFile` end without a word at a stream whose head is damaged.
    """

    def __init__(self, raw: Any, new: Callable[[], Any]) -> None:
        self._raw = raw
        self._new = new
        self._stream = new()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, b"" at the end.

        Raises:
            EOFError: a stream ends too early.
            OSError, lzma.LZMAError: a stream is damaged.
        """
        while True:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data or self._raw.read(PIECE_BYTES)
                while packed and not packed.strip(b"\0"):  # padding
                    packed = self._raw.read(PIECE_BYTES)
                if not packed:
                    return b""
                self._stream, packed = self._new(), packed.lstrip(b"\0")
            elif self._stream.needs_input:
                packed = self._raw.read(PIECE_BYTES)
                if not packed:
                    raise EOFError
            if piece := self._stream.decompress(packed, size):
                return bytes(piece)


def open_seekable(path: str) -> Any:
    """A file as pyarrow reads it: with `read`, `seek` and `close`, and a context manager.

    Raises:
        DamagedFile: "unreadable" where it cannot be opened.
        RemoteFailure: the filesystem of a URI fails.
    """
    if is_remote(path):
        return pa.PythonFile(open_uri(path), mode="r")
    info, problem = regular_file(Path(path))
    if info is None:
        raise DamagedFile("unreadable", problem)
    try:
        return pa.OSFile(path)
    except OSError as error:
        raise DamagedFile("unreadable", str(error)) from error


def byte_order_mark(head: bytes) -> tuple[bytes, str]:
    """The mark that a text begins with and the encoding that it tells; empty for none."""
    for mark, name in _BOMS:
        if head.startswith(mark):
            return mark, name
    return b"", ""


def to_utf8(
    pieces: Iterable[bytes], encoding: str = "utf-8", from_start: bool = True
) -> Iterator[bytes]:
    """Yield the same text as UTF-8 without a byte order mark; a mark wins over `encoding`.

    UTF-8 is passed on as it is, unchecked. Of other encodings, bytes that cannot be decoded come
    out as invalid UTF-8, so that only the record they stand in is lost. With `from_start` false the
    pieces do not begin a file, so that there is no mark to look for.

    Raises:
        DamagedFile: what follows cannot be decoded at all; or as `pieces` raises.
    """
    remaining = iter(pieces)
    head = b""
    late: DamagedFile | None = None
    try:
        while len(head) < 4 and (piece := next(remaining, b"")):
            head += piece
    except DamagedFile as error:
        late = error
    mark, name = byte_order_mark(head) if from_start else (b"", "")
    head, encoding = head[len(mark) :], name or encoding
    if codecs.lookup(encoding).name in ("utf-8", "ascii", "utf-8-sig"):
        if head:
            yield head
        if late:
            raise late
        yield from remaining
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="surrogateescape")
    try:
        yield decoder.decode(head).encode("utf-8", "surrogatepass")
        if late:
            raise late
        for piece in remaining:
            yield decoder.decode(piece).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
    except UnicodeError as error:
        why = getattr(error, "reason", error)
        raise DamagedFile("undecodable", f"not {encoding}: {why}") from error


def whole(pieces: Iterable[bytes], max_bytes: int) -> tuple[bytes | None, DamagedFile | None]:
    """All pieces as one (None where they exceed `max_bytes`), and what stopped them if anything."""
    # It grows where it is: pieces and what is joined of them would be all of it twice.
    held = io.BytesIO()
    try:
        for piece in pieces:
            if held.tell() + len(piece) > max_bytes:
                return None, None
            held.write(piece)
    except DamagedFile as error:
        return held.getvalue(), error
    return held.getvalue(), None


def lines(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes | None]:
    r"""Yield lines at `\n` alone, without it; None stands for a line longer than `max_bytes`.

    An unfinished line before the place where a damaged file fails is not given.

    Raises:
        DamagedFile: as `pieces` raises, after the lines before.
    """
    held = io.BytesIO()
    size = 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            size += len(line)
            if size > max_bytes:
                # What came of it before is not kept, only counted.
                held = io.BytesIO()
                yield None
            elif held.tell():
                held.write(line)
                yield _taken(held)
            else:
                yield line
            size = 0
        size += len(rest)
        if size > max_bytes:
            held = io.BytesIO()
        else:
            held.write(rest)
    if size > max_bytes:
        yield None
    elif size:
        yield _taken(held)


def _taken(held: io.BytesIO) -> bytes:
    """What is held, which is then held no more: it may be most of what memory holds."""
    content = held.getvalue()
    held.seek(0)
    held.truncate()
    return content
