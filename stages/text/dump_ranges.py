"""Ranges of a MediaWiki dump, so that several tasks read one: plain, or bzip2 of many streams.

A range owns the pages whose `<page>` begins in it: in a compressed dump, in the streams that begin
in it. What is given is a dump by itself, with the head that names the wiki. A dump of one stream
belongs to its first range as a whole.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from typing import BinaryIO

from stages.text.streams import PIECE_BYTES, DamagedFile, open_raw, read_pieces

OPEN, END = b"<page>", b"</mediawiki>"
HEAD_BYTES = 1_000_000
"""The first page begins within these."""

_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_BYTES = 10
_KEPT = len(OPEN) - 1


def page_pieces(path: str, compression: str, start: int, end: int) -> Iterator[bytes]:
    """The pages of a range of a dump, in pieces, between the head and the end of a dump.

    Args:
        path: of a dump, or its URI.
        compression: "" or "bz2".
        start: first byte of the range, as stored.
        end: the byte after it.

    Raises:
        DamagedFile: at the place where reading on fails.
        RemoteFailure: the filesystem of a URI fails.
    """
    try:
        with open_raw(path) as file:
            pieces = _unpacked(file, start, end) if compression else _plain(file, start, end)
            pages = _own_pages(pieces, start == 0)
            first = next(pages, None)
            if first is None:
                return
            if start:
                yield _head(path, compression)
            yield first
            yield from pages
    except OSError as error:
        raise DamagedFile("damaged", str(error)) from error


def _head(path: str, compression: str) -> bytes:
    head = b""
    for piece in read_pieces(path, compression):
        head += piece
        if OPEN in head or len(head) > HEAD_BYTES:
            break
    return head.partition(OPEN)[0]


def _own_pages(pieces: Iterator[tuple[bool, bytes]], begun: bool) -> Iterator[bytes]:
    """From the first page that begins in own pieces to the first that begins in others."""
    tail, own_bytes = b"", 0
    for own, piece in pieces:
        # A tag may be cut by the border of two pieces, so the last bytes wait for the next one.
        data = tail + piece
        if own:
            own_bytes = len(data)
        if not begun:
            at = data.find(OPEN)
            begun = 0 <= at < own_bytes
            dropped = at if begun else max(0, len(data) - _KEPT)
            data, own_bytes = data[dropped:], max(0, own_bytes - dropped)
            if not begun:
                if not own and not own_bytes:
                    return
                tail = data
                continue
        other = data.find(OPEN, own_bytes)
        if other >= 0:
            yield data[:other]
            yield END
            return
        ready = max(0, len(data) - _KEPT)
        yield data[:ready]
        tail, own_bytes = data[ready:], max(0, own_bytes - ready)
    if begun:
        yield tail


def _plain(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bool, bytes]]:
    file.seek(start)
    position = start
    while piece := file.read(min(PIECE_BYTES, end - position) if position < end else PIECE_BYTES):
        yield position < end, piece
        position += len(piece)


def _unpacked(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bool, bytes]]:
    position = _next_stream(file, start, end)
    if position is None:
        return
    file.seek(position)
    read = position
    packed = b""
    while True:
        own = position < end
        stream = bz2.BZ2Decompressor()
        while not stream.eof:
            if not packed:
                packed = file.read(PIECE_BYTES)
                read += len(packed)
            if not packed:
                raise DamagedFile("truncated", "bz2 data end too early")
            # In pieces: a file of a megabyte may unpack to many gigabytes.
            yield own, stream.decompress(packed, PIECE_BYTES)
            while not (stream.eof or stream.needs_input):
                yield own, stream.decompress(b"", PIECE_BYTES)
            packed = stream.unused_data
        if not packed:
            packed = file.read(PIECE_BYTES)
            read += len(packed)
        if not packed:
            return
        position = read - len(packed)


def _next_stream(file: BinaryIO, start: int, end: int) -> int | None:
    """Where the first stream begins at or after `start` and before `end`."""
    if start == 0:
        return 0
    position = start
    before = b""
    file.seek(start)
    while position - len(before) < end and (piece := file.read(PIECE_BYTES)):
        data = before + piece
        match = _STREAM.search(data)
        if match:
            found = position - len(before) + match.start()
            return found if found < end else None
        before, position = data[1 - _STREAM_BYTES :], position + len(piece)
    return None
