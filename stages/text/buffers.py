"""Columns of text as one byte buffer and offsets: what the kernels of cleaning and cutting use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


def text_buffer(texts: pa.Array) -> tuple[Bytes, Offsets]:
    """UTF-8 bytes of all texts end to end (a view, read only), and n + 1 offsets from 0.

    Raises:
        ValueError: a text is null, or the column is not of strings.
    """
    if pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.string())
    if not pa.types.is_string(texts.type):
        raise ValueError(f"texts must be strings, not {texts.type}")
    if texts.null_count:
        raise ValueError("texts must not be null")
    _, offset_buffer, data_buffer = texts.buffers()
    if len(texts) == 0 or data_buffer is None:
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    raw = np.frombuffer(offset_buffer, np.int32, len(texts) + 1, offset=4 * texts.offset)
    offsets = raw.astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
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
