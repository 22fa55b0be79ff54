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
Counts = npt.NDArray[np.int32]

CHUNK_BYTES = 1 << 16
"""Bytes hashed at a time: what the caches hold."""

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
    return _runs(np.flatnonzero((data == _SPACE) | (data == _NEWLINE)), offsets)


def lines(data: Bytes, offsets: Offsets) -> tuple[Positions, Positions]:
    """Starts and ends of the lines that are not empty."""
    return _runs(np.flatnonzero(data == _NEWLINE), offsets)


def paragraphs(data: Bytes, offsets: Offsets) -> tuple[Positions, Positions]:
    """Starts and ends of what stands between blank lines; cleaned text has two newlines there."""
    newlines = np.flatnonzero(data == _NEWLINE)
    double = np.zeros(len(newlines) + 1, np.bool_)  # whether one stands right before each
    double[1:-1] = newlines[1:] == newlines[:-1] + 1
    return _runs(newlines[double[1:] | double[:-1]], offsets)


def _runs(borders: Positions, offsets: Offsets) -> tuple[Positions, Positions]:
    """Runs of bytes, none of them a border, inside of texts."""
    # Each border ends a run and starts the next, and so does each text: in order they pair up.
    starts = np.sort(np.concatenate((offsets[:-1], borders + 1)))
    ends = np.sort(np.concatenate((borders, offsets[1:])))
    filled = starts < ends
    return starts[filled], ends[filled]


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
    starts, ends = _runs(np.flatnonzero(blank), offsets)
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


class Hasher:
    """64-bit hashes of stretches of a buffer: equal for equal bytes, wherever they stand.

    A polynomial over the bytes modulo 2^64, by prefix sums, and SplitMix64's finaliser: no call a
    stretch. It is made for counting text, not against an adversary. Holds 8 bytes a byte.
    """

    def __init__(self, data: Bytes) -> None:
        powers, inverses = _powers()
        self._prefix = np.zeros(len(data) + 1, np.uint64)
        self._chunk_inverses = np.ones(len(data) // CHUNK_BYTES + 1, np.uint64)
        base = inverse = 1  # of the position where a chunk begins
        for low in range(0, len(data), CHUNK_BYTES):
            chunk = data[low : low + CHUNK_BYTES]
            terms = _BYTE_VALUES[chunk]
            terms *= powers[: len(chunk)]
            if low:
                terms *= np.uint64(base)
            terms[:1] += self._prefix[low : low + 1]
            np.cumsum(terms, out=self._prefix[low + 1 : low + 1 + len(chunk)])
            self._chunk_inverses[low // CHUNK_BYTES] = inverse
            base = base * int(powers[-1]) & _MASK
            inverse = inverse * int(inverses[-1]) & _MASK

    def __call__(self, starts: Positions, ends: Positions) -> Hashes:
        """The hash of each stretch [start, end)."""
        found = self._prefix[ends] - self._prefix[starts]
        # Taken back to where it would be at position 0.
        found *= _powers()[1][starts % CHUNK_BYTES]
        found *= self._chunk_inverses[starts // CHUNK_BYTES]
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
