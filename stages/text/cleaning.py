"""Cleaning on whole columns: characters, NFC, hard-wrapped lines, white space.

All steps work on the byte buffer of a column with NumPy, in two kinds: comparisons of all bytes,
which cost next to nothing, and work on the few places that they find. While a block is worked on, a
byte 0 is one to be deleted (the NULs of the input are to go anyway), and a carriage return one to
be deleted that is white space: it stands before a newline, or behind a space or newline that took
more bytes in the input.

Cleaned text holds no control character but the newline, no white space but single spaces inside
lines and at most two newlines in a row, and no white space at either end.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stages.text.buffers import Bytes, Offsets, text_array, text_buffer
from stages.text.characters import multi_bytes, single_bytes
from stages.text.composing import compose
from stages.text.stretches import LONG_BYTES, stretches
from stages.text.white_space import layout

BLOCK_BYTES = 800_000
"""Text cleaned at a time: what the processor's caches hold is done faster."""

COUNTED = (
    "controls",
    "spaces",
    "line_breaks",
    "invisible",
    "nfc_documents",
    "joined_lines",
    "white_space",
)


@dataclass(frozen=True)
class CleaningOptions:
    """What may be switched.

    Attributes:
        unwrap: join hard-wrapped lines (`unwrapping.wrapped_breaks`). Off where a line break has a
            meaning, as in the sentence format.
        nfc: compose characters (Unicode NFC), so that the same word has one spelling.
        invisible: remove soft hyphens, zero-width spaces, direction marks and byte order marks.
        line_breaks: make form feeds, vertical tabs, NEL, LS and PS newlines; else they are spaces.
        white_space: single spaces, at most one blank line. Off, runs stay as they are; but all
            white space is still spaces and newlines, and that at both ends of a text still goes.
    """

    unwrap: bool = True
    nfc: bool = True
    invisible: bool = True
    line_breaks: bool = True
    white_space: bool = True


@dataclass(frozen=True)
class Cleaned:
    """Cleaned texts, one a text given (empty ones stay, as ""), and how often each step acted.

    `counts` holds: line_breaks (CR, CRLF, NEL, LS, PS, VT, FF made newlines), controls and
    invisible (characters removed), spaces (tabs, no-break and other spaces made plain ones),
    nfc_documents (texts that NFC changed), joined_lines, white_space (bytes of it removed).
    """

    texts: pa.StringArray
    counts: dict[str, int]


def clean(texts: pa.Array, options: CleaningOptions | None = None) -> Cleaned:
    """Clean a column of strings. The result of a text does not depend on its neighbours.

    Raises:
        ValueError: a text is null, or the column is not of strings.
    """
    options = options or CleaningOptions()
    text_buffer(texts[:0])  # refuses other columns, empty ones too
    counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    cleaned = [_clean_block(block, options, counts) for block in _blocks(texts)]
    # A column of one long text is not copied.
    column = cleaned[0] if len(cleaned) == 1 else pa.concat_arrays(cleaned or [texts[:0]])
    return Cleaned(column, dict(counts))


def _blocks(texts: pa.Array) -> Iterator[pa.Array]:
    """Slices of about `BLOCK_BYTES`, or of one text that is larger."""
    _, offsets = text_buffer(texts)
    start = 0
    while start < len(texts):
        end = int(np.searchsorted(offsets, offsets[start] + BLOCK_BYTES, side="right")) - 1
        end = max(end, start + 1)
        yield texts[start:end]
        start = end


def _clean_block(texts: pa.Array, options: CleaningOptions, counts: Counter[str]) -> pa.Array:
    source, offsets = text_buffer(texts)
    if not len(source):
        return text_array(source, offsets)
    if len(texts) == 1 and len(source) > LONG_BYTES:
        data = _clean_long(source, options, counts)
        return text_array(data, np.array([0, len(data)]))
    return text_array(*_clean_bytes(source, offsets, options, counts))


def _clean_long(source: Bytes, options: CleaningOptions, counts: Counter[str]) -> Bytes:
    """A long text, stretch by stretch. It grows where it is, so that it is there once."""
    joined = bytearray()
    own: Counter[str] = Counter()
    wait = b""
    for start, end, after in stretches(source):
        data = _clean_one(source[start:end], options, own)
        if len(data):
            joined += wait if joined else b""
            joined += data.data
            wait = b""
        blank = source[end:after].tobytes()
        # A line of megabytes ends here: what looks at one line is to hold no more.
        wait += b"\n" if blank == b" " else _between(blank, options, own)
    counts.update(own | {"nfc_documents": min(own["nfc_documents"], 1)})
    return np.frombuffer(joined, np.uint8)


def _clean_one(text: Bytes, options: CleaningOptions, counts: Counter[str]) -> Bytes:
    return _clean_bytes(text, np.array([0, len(text)]), options, counts)[0]


def _between(blank: bytes, options: CleaningOptions, counts: Counter[str]) -> bytes:
    """White space between two stretches, as it is cleaned between two words."""
    # A line end where a stretch was cut stays one.
    options = dataclasses.replace(options, unwrap=False)
    words = np.frombuffer(b"x" + blank + b"x", np.uint8)
    return _clean_one(words, options, counts).tobytes()[1:-1]


def _clean_bytes(
    source: Bytes, offsets: Offsets, options: CleaningOptions, counts: Counter[str]
) -> tuple[Bytes, Offsets]:
    ascii_only = int(source.max()) < 0x80
    data = source.copy()
    deleted = single_bytes(data, offsets, options.line_breaks, counts)
    if not ascii_only:
        deleted |= multi_bytes(data, options.invisible, options.line_breaks, counts)
    if deleted:
        data, offsets = _delete(data, offsets)
    if options.nfc and not ascii_only:
        data, offsets = compose(data, offsets, counts)
    return layout(data, offsets, options.unwrap, options.white_space, counts)


def _delete(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """Take out the bytes that are 0."""
    keep = data != 0
    deleted = np.flatnonzero(~keep)
    return data[keep], offsets - np.searchsorted(deleted, offsets)
