"""Cutting oversized documents into parts at sentence ends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from stages.text.buffers import Bytes, text_array, text_buffer

PARTS_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("part", pa.uint32(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("sentence_ends", pa.list_(pa.uint32()), nullable=False),
    ]
)

LONGEST_CHARACTER = 4
_BLANK = b" \t\n\v\f\r"


def cut_documents(texts: pa.Array, sentence_ends: pa.ListArray, max_bytes: int) -> pa.RecordBatch:
    """Cut each text of more than `max_bytes` into parts; the others are one part each.

    As many whole sentences as fit make a part. A sentence longer than the limit is cut at the last
    white space that fits, or where there is none between two characters. White space at the ends
    of parts goes; everything else of the text is in exactly one of them.

    Args:
        texts: n cleaned texts.
        sentence_ends: list<uint32>, as `sentences.sentence_ends` gives them.
        max_bytes: 4 or more (the longest character of UTF-8).

    Returns:
        Columns row (index of the text), part (0, 1...), text and sentence_ends (relative to the
        part), rows in order.

    Raises:
        ValueError: `max_bytes` is below 4.
    """
    if max_bytes < LONGEST_CHARACTER:
        raise ValueError(f"max_bytes={max_bytes} must be at least {LONGEST_CHARACTER}")
    data, offsets = text_buffer(texts)
    first = sentence_ends.offsets.to_numpy().astype(np.int64)
    ends = sentence_ends.values.to_numpy(zero_copy_only=False).astype(np.int64)
    large = np.flatnonzero(np.diff(offsets) > max_bytes)
    if not len(large):
        rows = pa.array(np.arange(len(texts)))
        part = pa.array(np.zeros(len(texts), np.uint32))
        if pa.types.is_large_string(texts.type):
            texts = texts.cast(pa.string())
        return pa.RecordBatch.from_arrays([rows, part, texts, sentence_ends], schema=PARTS_SCHEMA)
    row: list[int] = []
    part_number: list[int] = []
    # Views: the texts may be most of what memory holds.
    pieces: list[memoryview] = []
    piece_ends: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    is_large = set(large.tolist())
    for i in range(len(texts)):
        text = data[offsets[i] : offsets[i + 1]]
        inner = ends[first[i] : first[i + 1]]
        if i not in is_large:
            row.append(i)
            part_number.append(0)
            pieces.append(text.data)
            piece_ends.append(inner)
            continue
        for number, (start, stop, part_ends) in enumerate(_parts(text, inner, max_bytes)):
            row.append(i)
            part_number.append(number)
            pieces.append(text[start:stop].data)
            piece_ends.append(np.asarray(part_ends, np.int64) - start)
    lengths = np.array([len(e) for e in piece_ends])
    list_offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    values = np.concatenate(piece_ends).astype(np.uint32)
    starts = np.concatenate(([0], np.cumsum([len(p) for p in pieces])))
    joined = np.frombuffer(b"".join(pieces), np.uint8)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.array(row, np.int64)),
            pa.array(np.array(part_number, np.uint32)),
            text_array(joined, starts),
            pa.ListArray.from_arrays(pa.array(list_offsets), pa.array(values)),
        ],
        schema=PARTS_SCHEMA,
    )


def _parts(
    text: Bytes, ends: np.ndarray[tuple[int], np.dtype[np.int64]], max_bytes: int
) -> list[tuple[int, int, list[int]]]:
    """(start, stop, ends of its sentences) of each part of one text, in bytes."""
    parts: list[tuple[int, int, list[int]]] = []
    start = stop = 0
    inside: list[int] = []
    raw = text.tobytes()
    for sentence_start, sentence_end in pairwise([0, *ends.tolist()]):
        if inside and sentence_end - start > max_bytes:
            parts.append((start, stop, inside))
            inside = []
        if not inside:
            start = _skip_blank(raw, sentence_start)
            for cut in _cuts_of_long_sentence(raw, start, sentence_end, max_bytes):
                parts.append((start, cut, [cut]))
                start = _skip_blank(raw, cut)
        stop = sentence_end
        inside.append(sentence_end)
    if inside:
        parts.append((start, stop, inside))
    return parts


def _skip_blank(raw: bytes, at: int) -> int:
    while at < len(raw) and raw[at] in _BLANK:
        at += 1
    return at


def _cuts_of_long_sentence(raw: bytes, start: int, end: int, max_bytes: int) -> list[int]:
    """Where a sentence has to be cut, so that no piece is longer than the limit."""
    cuts = []
    while end - start > max_bytes:
        limit = start + max_bytes
        # White space right behind the limit counts too: then all of the limit is used.
        cut = max(raw.rfind(blank, start, limit + 1) for blank in (b" ", b"\n", b"\t"))
        if cut <= start:
            cut = limit
            while raw[cut] & 0xC0 == 0x80:
                cut -= 1
        while raw[cut - 1] in _BLANK:
            cut -= 1
        cuts.append(cut)
        start = _skip_blank(raw, cut)
    return cuts
