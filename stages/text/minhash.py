"""MinHash signatures of texts (Broder, 1997) over shingles of words, and their bands.

Shingles are runs of `shingle_words` words (`segments.units`: characters, where a script is written
without spaces) of the text in lower case (of ASCII) and without ASCII and general punctuation. Each
has a 64-bit hash whose upper half goes through the permutations h -> a h + b modulo 2^32, a odd,
as datasketch's "affine32" has them. Signatures are the same on every machine, in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.text.buffers import Bytes, Offsets, text_buffer
from stages.text.random import Stream, mix64
from stages.text.segments import Hasher, Hashes, Positions, blocks, units

Signatures = npt.NDArray[np.uint32]

BLOCK_BYTES = 256_000
"""Text hashed at a time; a longer text is cut into pieces of this size, between words."""

MISTAKES, MISSES = 0.1, 0.9
"""What candidates that are none, and near duplicates that are not found, weigh: candidates are
compared again, so that a false one costs only time."""

_SPACE, _NEWLINE = 32, 10
_NEXT = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class NearDuplicateOptions:
    """What counts as a near duplicate. The config group `corpus.near_duplicates` says what each is.

    Attributes:
        threshold: Jaccard similarity of the sets of shingles from which two texts count as one.
        shingle_words: words a shingle.
        permutations: length of a signature.
    """

    threshold: float = 0.8
    shingle_words: int = 5
    permutations: int = 128


def signatures(texts: pa.Array, options: NearDuplicateOptions) -> Signatures:
    """MinHash signature of each text: uint32 [n, permutations].

    A text of fewer words than a shingle has is one shingle. The result of a text does not depend on
    its neighbours.

    Raises:
        ValueError: a text is null, or the column is not of strings.
    """
    data, offsets = text_buffer(texts)
    found = np.full((len(texts), options.permutations), 2**32 - 1, np.uint32)
    cuts, rows = _cut_long(data, offsets)
    for first, last in blocks(cuts, BLOCK_BYTES):
        block = normalised(data[cuts[first] : cuts[last]])
        bounds = cuts[first : last + 1] - cuts[first]
        piece, shingles = _shingles(block, bounds, options.shingle_words)
        _take_minima(found, rows[first + piece], shingles)
    return found


def sketches(signatures: Signatures) -> npt.NDArray[np.uint8]:
    """The low byte of each value: uint8 [n, permutations], for `estimated_similarity`.

    A quarter of the bytes, at hardly any loss (b-bit minwise hashing, Li and Koenig, 2010).
    """
    return signatures.astype(np.uint8)


def estimated_similarity(
    left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float64]:
    """Jaccard similarity estimated from sketches, row by row: float64 [n], 0 to 1."""
    equal = np.mean(left == right, axis=1)
    # Unequal values have an equal low byte once in 256 times.
    found: npt.NDArray[np.float64] = np.maximum(0.0, (equal - 1 / 256) / (1 - 1 / 256))
    return found


@lru_cache
def permutations(number: int) -> tuple[Signatures, Signatures]:
    """Odd multipliers and summands of the permutations: uint32 [number] each, always the same."""
    stream = Stream(0, "minhash")
    return stream.uint32(number) | np.uint32(1), stream.uint32(number)


@lru_cache
def band_shape(options: NearDuplicateOptions) -> tuple[int, int]:
    """Bands and rows a band that miss and mistake least at the threshold.

    Texts of similarity s share a band with probability 1 - (1 - s^rows)^bands. The area under it
    below the threshold (mistakes), and that over it above (misses), are added up with the weights
    `MISTAKES` and `MISSES` (datasketch's rule).
    """
    grid = (np.arange(2000) + 0.5) / 2000
    below, above = grid < options.threshold, grid >= options.threshold
    best, shape = np.inf, (1, 1)
    for bands in range(1, options.permutations + 1):
        for rows in range(1, options.permutations // bands + 1):
            apart = (1 - grid**rows) ** bands
            cost = MISTAKES * float(np.sum(1 - apart[below])) + MISSES * float(np.sum(apart[above]))
            if cost < best:
                best, shape = cost, (bands, rows)
    return shape


def band_keys(signatures: Signatures, options: NearDuplicateOptions) -> Hashes:
    """A hash of each band of each signature: uint64 [n, bands]. Bands have keys of their own."""
    bands, rows = band_shape(options)
    keys = np.zeros((len(signatures), bands), np.uint64)
    for row in range(rows):
        keys = mix64(keys * _NEXT + signatures[:, row : bands * rows : rows])
    return mix64(keys + np.arange(bands, dtype=np.uint64) * _NEXT)


def _folding() -> bytes:
    table = bytearray(range(256))
    for code in range(128):
        character = chr(code)
        table[code] = ord(character.lower()) if character.isalnum() else _SPACE
    return bytes(table)


_FOLDING = _folding()


def normalised(data: Bytes) -> Bytes:
    """Lower case and spaces for punctuation, byte for byte; U+2000 to U+203F count as such."""
    folded = np.frombuffer(bytearray(data.tobytes().translate(_FOLDING)), np.uint8)
    at = np.flatnonzero(folded == 0xE2)
    at = at[folded[at + 1] == 0x80]
    for i in range(3):
        folded[at + i] = _SPACE
    return folded


def _cut_long(data: Bytes, offsets: Offsets) -> tuple[Offsets, Positions]:
    """Offsets with longer texts cut into pieces behind white space, and the text of each piece."""
    lengths = np.diff(offsets)
    rows = np.arange(len(lengths))
    long = np.flatnonzero(lengths > BLOCK_BYTES)
    cuts = [
        _behind_space(data, at, int(offsets[row + 1]))
        for row in long.tolist()
        for at in range(int(offsets[row]) + BLOCK_BYTES, int(offsets[row + 1]), BLOCK_BYTES)
    ]
    if not cuts:
        return offsets, rows
    inner = np.unique(np.array(cuts, np.int64))
    inner = inner[~np.isin(inner, offsets)]
    every = np.sort(np.concatenate((offsets, inner)))
    return every, np.searchsorted(offsets, every[:-1], side="right") - 1


def _behind_space(data: Bytes, at: int, end: int) -> int:
    """Behind the next white space, or at the next character where there is none near."""
    near = data[at : min(at + 1000, end)]
    blank = np.flatnonzero((near == _SPACE) | (near == _NEWLINE))
    if not len(blank):
        blank = np.flatnonzero((near & 0xC0) != 0x80) - 1
    return at + (int(blank[0]) + 1 if len(blank) else len(near))


def _shingles(data: Bytes, offsets: Offsets, size: int) -> tuple[Positions, Signatures]:
    """The text and the 32-bit hash of each shingle, in order of the texts."""
    starts, ends = units(data, offsets)
    row = np.searchsorted(offsets, starts, side="right") - 1
    unit = Hasher(data)(starts, ends)
    if not len(unit):
        return np.zeros(0, np.int64), np.zeros(0, np.uint32)
    behind = np.searchsorted(row, row, side="right")
    at = np.arange(len(row))
    # The first words of a text too short for a shingle, all that there are, make its only one.
    number = np.minimum(size, behind - at)
    is_first = np.append(True, row[1:] != row[:-1])
    at = at[(number == size) | is_first]
    shingle = unit[at]
    for i in range(1, size):
        more = number[at] > i
        following = unit[np.minimum(at + i, len(unit) - 1)]
        shingle = np.where(more, mix64(shingle * _NEXT + following), shingle)
    return row[at], (mix64(shingle) >> np.uint64(32)).astype(np.uint32)


def _take_minima(found: Signatures, row: Positions, shingles: Signatures) -> None:
    """Lower `found[row]` to the least permuted shingle of each row; `row` is rising."""
    if not len(row):
        return
    starts = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
    rows = row[starts]
    multipliers, summands = permutations(found.shape[1])
    permuted = np.empty_like(shingles)
    for i in range(found.shape[1]):
        np.multiply(shingles, multipliers[i], out=permuted)
        np.add(permuted, summands[i], out=permuted)
        found[rows, i] = np.minimum(found[rows, i], np.minimum.reduceat(permuted, starts))
