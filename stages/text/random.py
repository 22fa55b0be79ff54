"""Counter-based randomness: the same key gives the same draws on every machine and NumPy.

`Stream` is NumPy's Philox-4x64-10 (Salmon et al., 2011) keyed by SHA-256 of (seed, key...). Only
its raw 64-bit words are used, and everything else is derived from them here, because NumPy
promises the raw words of a bit generator for good, but not what `Generator` makes of them.

`Stream.row_keys` with `counter_bits` is the second route: bits that are a function of (stream,
row, counter), so that a row gets the same draws in whatever batch it is read.
"""

from __future__ import annotations

import hashlib
import json
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW_32 = np.uint64(0xFFFFFFFF)


class Stream:
    """A sequence of random words named by a seed and a key.

    Args:
        seed: any integer.
        key: what the stream is for: stage, shard, copy... 1 and "1" are different keys.
    """

    def __init__(self, seed: int, *key: str | int) -> None:
        self.name: tuple[str | int, ...] = (
            operator.index(seed),
            *(part if isinstance(part, str) else operator.index(part) for part in key),
        )
        # JSON keeps ("a", "b") and ("a,b",) apart, and a number from its digits.
        digest = hashlib.sha256(json.dumps(self.name).encode("ascii")).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        self._row_base: UInt64s = np.frombuffer(digest[16:32], dtype="<u8").astype(np.uint64)

    def child(self, *key: str | int) -> Stream:
        """The stream of this one's name followed by `key`, at its beginning."""
        return Stream(int(self.name[0]), *self.name[1:], *key)

    def uint64(self, size: int) -> UInt64s:
        """The next `size` words."""
        words: UInt64s = np.asarray(self._bits.random_raw(size), dtype=np.uint64)
        return words

    def uint32(self, size: int) -> UInt32s:
        """`size` 32-bit words: the low, then the high half of each 64-bit word."""
        return _halves(self.uint64((size + 1) // 2))[:size]

    def uniform(self, size: int) -> NDArray[np.float64]:
        """`size` floats in [0, 1): the upper 53 bits of each word, times 2**-53."""
        return (self.uint64(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bounds: int | NDArray[np.integer[Any]], size: int | None = None) -> Int64s:
        """One integer in [0, bound) for each bound, or `size` of them for a single bound.

        The upper part of word x bound (Lemire, 2019, without rejection): the bias is below
        bound / 2**64.

        Raises:
            ValueError: a bound outside of 1..2**32.
        """
        limits = np.asarray(bounds, dtype=np.int64)
        if size is not None:
            limits = np.broadcast_to(limits, (size,))
        if limits.size and (limits.min() < 1 or limits.max() > 2**32):
            raise ValueError("below() takes bounds from 1 to 2**32")
        words = self.uint64(limits.size).reshape(limits.shape)
        wide = limits.astype(np.uint64)
        carry = ((words & _LOW_32) * wide) >> np.uint64(32)
        product = (words >> np.uint64(32)) * wide + carry
        return (product >> np.uint64(32)).astype(np.int64)

    def permutation(self, size: int) -> Int64s:
        """A uniformly random order of 0..size-1: the argsort of 64-bit keys."""
        return np.argsort(self.uint64(size), kind="stable").astype(np.int64)

    def binomial_half(self, trials: NDArray[np.integer[Any]]) -> Int64s:
        """A Binomial(n, 1/2) draw for each n >= 0: the set bits among n random bits."""
        counts = np.asarray(trials, dtype=np.int64)
        words_each = (counts + 63) // 64
        ends = np.cumsum(words_each)
        words = self.uint64(int(ends[-1]) if ends.size else 0)
        partial = np.flatnonzero(counts % 64)
        spare = (64 - counts[partial] % 64).astype(np.uint64)
        words[ends[partial] - 1] >>= spare
        ones = np.concatenate(([0], np.cumsum(np.bitwise_count(words), dtype=np.int64)))
        total: Int64s = ones[ends] - ones[ends - words_each]
        return total

    def row_keys(self, rows: NDArray[np.integer[Any]]) -> UInt64s:
        """A 64-bit key for each row number; does not move the stream. For `counter_bits`."""
        keys = np.asarray(rows).astype(np.uint64) * _GAMMA + self._row_base[:1]
        return mix64(mix64(keys) + self._row_base[1:])


def mix64(words: UInt64s) -> UInt64s:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014): a bijection that mixes all bits."""
    mixed = words ^ (words >> np.uint64(30))
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def counter_bits(keys: UInt64s, counters: NDArray[np.integer[Any]]) -> UInt64s:
    """Word number `counter` of the SplitMix64 sequence that starts at each key (broadcast)."""
    steps = (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * _GAMMA
    return mix64(keys + steps)


def counter_uint32(keys: UInt64s, width: int) -> UInt32s:
    """[rows, width] 32-bit words, a function of (key, column) alone.

    Columns 2c and 2c + 1 are the low and high half of word c, so `width` changes no column.
    """
    words = counter_bits(keys[:, np.newaxis], np.arange((width + 1) // 2)[np.newaxis, :])
    return _halves(words)[:, :width]


def _halves(words: UInt64s) -> UInt32s:
    return np.ascontiguousarray(words, dtype="<u8").view("<u4").astype(np.uint32, copy=False)
