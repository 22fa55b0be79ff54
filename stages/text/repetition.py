"""How much of a text repeats itself: lines, paragraphs and n-grams (Rae et al., 2021, table A1).

Shares are of characters that are no white space, or of lines and paragraphs. The first of several
equal stretches is no repetition. A stretch is known by a 64-bit hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes, Offsets
from stages.text.random import mix64
from stages.text.segments import Counts, Flags, Hasher, Hashes, Positions, units

Shares = npt.NDArray[np.float64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_NEXT = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class Repeated:
    """Of each text, what share of its stretches, and of their characters, came before: [n]."""

    stretches: Shares
    characters: Shares


def repeated(
    hasher: Hasher, offsets: Offsets, starts: Positions, ends: Positions, characters: Counts
) -> Repeated:
    """Shares of repeated stretches (lines, paragraphs) of each text.

    Args:
        hasher: of the texts end to end.
        offsets: n + 1, where each begins.
        starts: of the stretches, ascending.
        ends: of the stretches, ascending.
        characters: int32 [len(data) + 1], how many characters stand before each byte.
    """
    row = np.searchsorted(offsets, starts, side="right") - 1
    again = repeats(_keys(hasher(starts, ends), row))
    size = characters[ends] - characters[starts]
    texts = len(offsets) - 1
    return Repeated(
        share(np.bincount(row[again], minlength=texts), np.bincount(row, minlength=texts)),
        share(
            np.bincount(row[again], size[again], minlength=texts),
            np.bincount(row, size, minlength=texts),
        ),
    )


def share(part: npt.NDArray[np.generic], whole: npt.NDArray[np.generic]) -> Shares:
    """part / whole, 0 where there is nothing: float64."""
    found: Shares = np.asarray(part, np.float64) / np.maximum(np.asarray(whole, np.float64), 1)
    return found


def repeats(keys: Hashes) -> Flags:
    """Whether an equal key stands before each: bool [n]."""
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), np.bool_)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again


def _keys(stretch: Hashes, row: Positions) -> Hashes:
    """Keys that are equal for equal stretches of the same text only."""
    return mix64(stretch + (row.astype(np.uint64) + np.uint64(1)) * _GAMMA)


def ngram_shares(
    data: Bytes,
    hasher: Hasher,
    offsets: Offsets,
    characters: Counts,
    top: tuple[int, ...],
    again: tuple[int, ...],
) -> dict[int, Shares]:
    """For each n: the share of characters in the most frequent n-gram, or in repeated ones.

    N-grams are of `segments.units`. The most frequent one is the longest of several; it counts for
    nothing when it occurs once, and overlapping occurrences count each for itself. A character in
    several repeated n-grams counts once.

    Args:
        data: uint8, the texts end to end.
        hasher: of the same.
        offsets: n + 1, where each begins.
        characters: int32 [len(data) + 1], how many characters stand before each byte.
        top: lengths of which the most frequent n-gram is looked at, all below those of `again`.
        again: lengths of which repeated n-grams are looked at.

    Returns:
        length -> float64 [n].
    """
    starts, ends = units(data, offsets)
    texts = len(offsets) - 1
    row = np.searchsorted(offsets, starts, side="right") - 1
    size = characters[ends] - characters[starts]
    before = np.concatenate(([0], np.cumsum(size)))
    whole = np.bincount(row, size, minlength=texts)
    last = np.searchsorted(row, row, side="right")  # where the units of each unit's text end
    unit = hasher(starts, ends)
    at, key = np.arange(len(starts)), _keys(unit, row)
    found = {}
    for n in range(2, max((*top, *again)) + 1):
        fits = at + n <= last[at]
        at, key = at[fits], key[fits]
        key = mix64(key * _NEXT + unit[at + n - 1])
        # An n-gram occurs twice only where its first n - 1 units do: the rest is left out.
        at, key, counts = _more_than_once(at, key)
        first = np.cumsum(counts) - counts
        if n in top:
            length = before[at[first] + n] - before[at[first]]
            best = np.zeros(texts, np.int64)
            np.maximum.at(best, row[at[first]], (counts << 32) + length)
            found[n] = share((best >> 32) * (best & 0xFFFFFFFF), whole)
        elif n in again:
            later = np.ones(len(at), np.bool_)
            later[first] = False
            edges = np.zeros(len(starts) + 1, np.int64)
            np.add.at(edges, at[later], 1)
            np.add.at(edges, at[later] + n, -1)
            inside = np.cumsum(edges[:-1]) > 0
            found[n] = share(np.bincount(row[inside], size[inside], minlength=texts), whole)
    return found


def _more_than_once(at: Positions, key: Hashes) -> tuple[Positions, Hashes, Positions]:
    """Positions with keys that occur more than once, key by key, rising in each; and how many."""
    order = np.argsort(key)
    at, key = at[order], key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    counts = np.diff(np.append(first, len(key)))
    stays = np.repeat(counts > 1, counts)
    at, key, counts = at[stays], key[stays], counts[counts > 1]
    group = np.repeat(np.arange(len(counts)), counts)
    # Sorting is not stable: it is twice as fast so, and few are left to put in order.
    order = np.lexsort((at, group))
    return at[order], key, counts
