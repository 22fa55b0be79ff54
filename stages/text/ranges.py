"""Where the records of a range of a file begin and end, so that several tasks read one file.

A range owns the records that begin in it. Its own start and the start of the next one are found by
the same rule, so no record is lost, doubled or cut.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from stages.text.splitting import ascii_white_space
from stages.text.streams import DamagedFile, byte_order_mark, open_raw

SCAN_BYTES = 64 * 1024


def own_range(
    path: str, start: int, end: int, encoding: str, blank_lines: bool
) -> tuple[int, int, str]:
    """What a task reads that was given the bytes [start, end) of a file.

    Args:
        path: of an uncompressed file, or its URI.
        encoding: as declared or detected; a byte order mark wins over it.
        blank_lines: records end at blank lines, else at every newline.

    Returns:
        First byte, the byte after the last, and the encoding of the file. The first two are equal
        where no record begins in the range. A file in an encoding that cannot be cut without
        reading from its start (UTF-16...) belongs to its first range as a whole.

    Raises:
        DamagedFile: it cannot be opened or read.
        RemoteFailure: the filesystem of a URI fails.
    """
    try:
        with open_raw(path) as file:
            encoding = byte_order_mark(file.read(4))[1] or encoding
            size = file.seek(0, os.SEEK_END)
            if not ascii_white_space(encoding):
                return (0 if start == 0 < end else size), size, encoding
            return *record_range(file, size, start, end, blank_lines), encoding
    except OSError as error:
        raise DamagedFile("unreadable", error.strerror or str(error)) from error


def record_range(
    file: BinaryIO, size: int, start: int, end: int, blank_lines: bool
) -> tuple[int, int]:
    """The bytes [first, last) of the records that begin in [start, end); equal where none does."""
    first = _border(file, start, end, blank_lines)
    if first >= end:
        return end, end
    return first, size if end >= size else _border(file, end, size, blank_lines)


def _border(file: BinaryIO, offset: int, stop: int, blank_lines: bool) -> int:
    """The first place at or after `offset` where a record may begin; `stop` where none is before.

    A place behind `stop` may be given instead of `stop`.
    """
    if offset == 0:
        return 0
    # A line that ends just before the offset makes the offset itself a place.
    position = offset - 1
    white = not blank_lines or _white_before(file, position)
    file.seek(position)
    while position < stop and (piece := file.read(SCAN_BYTES)):
        begin = 0
        while (newline := piece.find(b"\n", begin)) >= 0:
            if not blank_lines or (white and not piece[begin:newline].strip()):
                return position + newline + 1
            white, begin = True, newline + 1
        white = white and not piece[begin:].strip()
        position += len(piece)
    return stop


def _white_before(file: BinaryIO, position: int) -> bool:
    """Whether the line that `position` lies in holds only white space before it."""
    while position > 0:
        begin = max(0, position - 256)
        file.seek(begin)
        before = file.read(position - begin)
        newline = before.rfind(b"\n")
        if before[newline + 1 :].strip():
            return False
        if newline >= 0:
            return True
        position = begin
    return True
