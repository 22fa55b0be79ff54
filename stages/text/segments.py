"""Stretches of a text buffer (words, lines, paragraphs) and a 64-bit hash of each.

Everything here is a function of bytes and positions alone, so that a stretch has the same hash
wherever it stands, on every machine and under every version of NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes, Offsets
from stages.text.random import mix64

Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

CHUNK_BYTES = 1 << 16
"""Bytes hashed at a time: what the caches hold, so that memory does not follow a text's length."""

_SPACE, _NEWLINE = 32, 10
_MASK = 2**64 - 1
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, 2**64)
_LENGTH = np.uint64(0xD6E8FEB86659FD93)
_BYTE_VALUES = mix64(np.arange(1, 257, dtype=np.uint64) * np.uint64(_BASE))


def blocks(offsets: Offsets, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of texts of about `block_bytes`, or of one text that is larger."""
    first, texts = 0, len(offsets) - 1
    while first < texts:
        last = int(np.searchsorted(offsets, offsets[first] + block_bytes, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def words(data: Bytes, offsets: Offsets) -> tuple[Positions, Positions]:
    """Starts and ends of what stands between spaces, newlines and the ends of texts."""
    return _runs(data, offsets, (data == _SPACE) | (data == _NEWLINE))


def lines(data: Bytes, offsets: Offsets) -> tuple[Positions, Positions]:
    """Starts and ends of the lines that are not empty."""
    return _runs(data, offsets, data == _NEWLINE)


def paragraphs(data: Bytes, offsets: Offsets) -> tuple[Positions, Positions]:
    """Starts and ends of what stands between blank lines; cleaned text has two newlines there."""
    newline = data == _NEWLINE
    double = newline[:-1] & newline[1:]
    border = np.append(double, False)
    border[1:] |= double
    return _runs(data, offsets, border)


def _runs(data: Bytes, offsets: Offsets, border: Flags) -> tuple[Positions, Positions]:
    """Runs of bytes that are no border and stand in one text."""
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    inside = offsets[1:-1]
    inside = inside[(inside > 0) & (inside < len(data))]
    starts, ends = ~border, ~border
    starts[1:] &= border[:-1]
    starts[inside] = ~border[inside]
    ends[:-1] &= border[1:]
    ends[inside - 1] = ~border[inside - 1]
    return np.flatnonzero(starts), np.flatnonzero(ends) + 1


def _without_spaces() -> Flags:
    """By lead byte: scripts written without spaces fill it (E0 and E1 are looked at closer)."""
    table = np.zeros(256, np.bool_)
    table[0xE3:0xEA] = True  # kana, CJK ideographs and their punctuation
    return table


_WITHOUT_SPACES = _without_spaces()


def units(data: Bytes, offsets: Offsets) -> tuple[Positions, Positions]:
    """Words; where a script is written without spaces, its characters one by one.

    These are kana and CJK ideographs (as in BERT's tokeniser), Thai, Lao, Burmese and Khmer.
    """
    blank = (data == _SPACE) | (data == _NEWLINE)
    starts, ends = _runs(data, offsets, blank)
    at = np.flatnonzero(data >= 0xE0)
    if not len(at):
        return starts, ends
    lead, second = data[at], data[np.minimum(at + 1, len(data) - 1)]
    single = _WITHOUT_SPACES[lead]
    single |= (lead == 0xE0) & (second >= 0xB8) & (second <= 0xBB)  # Thai, Lao
    single |= (lead == 0xE1) & ((second == 0x80) | (second == 0x81))  # Burmese
    single |= (lead == 0xE1) & ((second == 0x9E) | (second == 0x9F))  # Khmer
    single |= (lead == 0xEF) & (second >= 0xA4) & (second <= 0xAB)  # compatibility ideographs
    wide = (lead == 0xF0) & (second >= 0xA0) & (second <= 0xB3)  # further ideographs
    single |= wide
    if not single.any():
        return starts, ends
    # A border stands before and behind each such character.
    first = at[single]
    behind = first + np.where(wide[single], 4, 3)
    inner = behind[behind < len(data)]
    inner = inner[~blank[inner]]
    starts = np.union1d(starts, np.union1d(first, inner))
    before = first[first > 0]
    before = before[~blank[before - 1]]
    ends = np.union1d(ends, np.union1d(behind, before))
    return starts, ends


def hashes(data: Bytes, starts: Positions, ends: Positions) -> Hashes:
    """A 64-bit hash of each stretch [start, end): equal for equal bytes.

    A polynomial over the bytes modulo 2^64, by prefix sums, and SplitMix64's finaliser: no call a
    stretch. It is made for counting text, not against an adversary.

    Args:
        data: uint8 [n].
        starts: int64 [m], ascending.
        ends: int64 [m], ascending.
    """
    found = np.zeros(len(starts), np.uint64)
    scale = np.zeros(len(starts), np.uint64)
    powers, inverses = _powers()
    total, base, inverse = 0, 1, 1  # of what stands before the chunk
    for low in range(0, len(data) + 1, CHUNK_BYTES):
        chunk = data[low : low + CHUNK_BYTES]
        prefix = np.zeros(len(chunk) + 1, np.uint64)
        np.cumsum(_BYTE_VALUES[chunk] * powers[: len(chunk)], out=prefix[1:])
        prefix *= np.uint64(base)
        prefix += np.uint64(total)
        # Positions at the chunk's end belong to the next one, which may be empty.
        first, last = np.searchsorted(ends, (low, low + CHUNK_BYTES))
        found[first:last] += prefix[ends[first:last] - low]
        first, last = np.searchsorted(starts, (low, low + CHUNK_BYTES))
        found[first:last] -= prefix[starts[first:last] - low]
        scale[first:last] = inverses[starts[first:last] - low] * np.uint64(inverse)
        total = int(prefix[-1])
        base = base * int(powers[-1]) & _MASK
        inverse = inverse * int(inverses[-1]) & _MASK
    found *= scale
    return mix64(found + (ends - starts).astype(np.uint64) * _LENGTH)


@lru_cache
def _powers() -> tuple[Hashes, Hashes]:
    """Powers of the base and of its inverse, 0 to CHUNK_BYTES."""
    one = np.ones(1, np.uint64)
    return tuple(  # type: ignore[return-value]
        np.concatenate((one, np.cumprod(np.full(CHUNK_BYTES, np.uint64(factor)))))
        for factor in (_BASE, _INVERSE)
    )


def rows_with(raw: bytes, phrase: bytes, offsets: Offsets) -> Iterator[int]:
    """Rows of the texts that hold `phrase`, rising, each once."""
    at = raw.find(phrase)
    while at >= 0:
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        if at + len(phrase) <= offsets[row + 1]:
            yield row
            at = raw.find(phrase, int(offsets[row + 1]))
        else:  # across the border of two texts
            at = raw.find(phrase, at + 1)
