"""Columns of text as one byte buffer and offsets: what the kernels of cleaning and cutting use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; unlike `combine_chunks`, copies only where there are several."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def text_buffer(texts: pa.Array) -> tuple[Bytes, Offsets]:
    """The bytes of a column of texts, without copying.

    Args:
        texts: string or large_string [n], no nulls.

    Returns:
        uint8 bytes of all texts end to end, and int64 [n + 1] where each begins in them.

    Raises:
        ValueError: a null, or a column that is not text.
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = whole(texts)
    if pa.types.is_string(texts.type):
        width: type[np.int32] | type[np.int64] = np.int32
    elif pa.types.is_large_string(texts.type):
        width = np.int64
    else:
        raise ValueError(f"texts are of type {texts.type}, not string")
    if texts.null_count:
        row = pc.index(texts.is_null(), True).as_py()
        raise ValueError(f"text {row} is null: leave nulls out, and count them, before this")
    if len(texts) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, width)[texts.offset : texts.offset + len(texts) + 1]
    offsets = offsets.astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets - offsets[0]


def text_array(data: Bytes, offsets: Offsets) -> pa.StringArray:
    """The column whose `text_buffer` is (data, offsets). Does not copy `data`.

    Raises:
        ValueError: 2 GiB or more, which a column of Arrow strings cannot hold.
    """
    if len(data) >= 2**31:
        raise ValueError(f"{len(data)} bytes do not fit one column of strings: use smaller batches")
    buffers: list[Any] = [pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.StringArray.from_buffers(len(offsets) - 1, *buffers)


def byte_table(*groups: bytes | range) -> Flags:
    """bool [256]: which bytes are in one of the groups."""
    table = np.zeros(256, np.bool_)
    for group in groups:
        table[list(group)] = True
    return table


class Rank:
    """How many flags are set before a position, in constant time.

    A bitmap with a count a word (Jacobson 1989): several times faster than a running sum.
    """

    def __init__(self, flags: Flags) -> None:
        """`flags`: bool [n]; positions 0 to n can be asked for."""
        packed = np.packbits(flags, bitorder="little")
        # A word more than needed, so that position n has one.
        words = np.zeros(len(packed) // 8 + 2, "<u8")
        words.view(np.uint8)[: len(packed)] = packed
        self._words = words
        self._before = np.zeros(len(words), np.int64)
        np.cumsum(np.bitwise_count(words[:-1]), out=self._before[1:])

    def __call__(self, at: Positions) -> Positions:
        """int64, for each of `at`: the number of flags set in [0, at)."""
        word = at >> 6
        below = (np.uint64(1) << (at & 63).astype(np.uint64)) - np.uint64(1)
        count: Positions = self._before[word] + np.bitwise_count(self._words[word] & below)
        return count
