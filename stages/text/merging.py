"""Byte-pair merging over words with counts, as NumPy works best: all places of a pair at once."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.text.wordpiece import CONTINUATION
from stages.text.words import Int32Array, Int64Array

Places = npt.NDArray[np.int32]
_PAIR_BITS = 32
_PAIR_MASK = (1 << _PAIR_BITS) - 1


@dataclass(frozen=True)
class Spelling:
    """Words as symbols, end to end.

    Attributes:
        symbols: "c" for each character of the alphabet, then "##c" for those inside of words.
        symbol: int32 [P], index into `symbols` at each place.
        begins: bool [P], whether a word begins there.
        weight: int64 [P], the count of the word.
    """

    symbols: list[str]
    symbol: Int32Array
    begins: npt.NDArray[np.bool_]
    weight: Int64Array


class Merger:
    """Byte-pair merging with counts of pairs kept up to date.

    Words are one doubly linked list of places with a gap between words. `places` knows for each
    pair where it was seen; places that another merge has changed since are found stale when they
    are read. A place never returns to an old pair, since its symbols only grow.
    """

    def __init__(self, spelling: Spelling, tokens: list[str]) -> None:
        """Begin with `tokens`, which hold all symbols of the spelling."""
        self.tokens = list(tokens)
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        ids = np.array([self._ids[symbol] for symbol in spelling.symbols], np.int64)
        n = spelling.symbol.size
        self._end = n  # stands for "no neighbour"; its symbol is none
        self._symbol = np.append(ids[spelling.symbol], -1)
        self._weight = spelling.weight
        place = np.arange(n, dtype=np.int32)
        last = np.append(spelling.begins[1:], np.ones(min(n, 1), bool))
        self._next = np.append(np.where(last, n, place + 1), n).astype(np.int32)
        self._previous = np.append(np.where(spelling.begins, n, place - 1), n).astype(np.int32)
        self._is_second = np.zeros(n + 1, bool)
        self._count: dict[int, int] = {}
        self._places: dict[int, list[Places]] = {}
        self._queue: list[tuple[int, str, str, int]] = []
        at = np.flatnonzero(~last).astype(np.int32)
        self._add(_pair(self._symbol[at], self._symbol[at + 1]), at)

    def run(self, size: int, min_frequency: int) -> list[int]:
        """Merge until there are `size` tokens; returns the count of each merged pair."""
        merged: list[int] = []
        while self._queue and len(self.tokens) < size:
            negative, left, right, pair = heapq.heappop(self._queue)
            count = self._count.get(pair, 0)
            if count < min_frequency:
                continue
            if count != -negative:
                heapq.heappush(self._queue, (-count, left, right, pair))
                continue
            token = left + right.removeprefix(CONTINUATION)
            # A token that was asked for beforehand keeps its id. Two merges never spell one token.
            if token not in self._ids:
                self._ids[token] = len(self.tokens)
                self.tokens.append(token)
            self._merge(pair, self._ids[token])
            merged.append(count)
        return merged

    def _merge(self, pair: int, new: int) -> None:
        """Replace every occurrence of a pair by one symbol."""
        symbol, following, previous = self._symbol, self._next, self._previous
        left, right = pair >> _PAIR_BITS, pair & _PAIR_MASK
        del self._count[pair]
        seen = self._places.pop(pair)
        first = seen[0] if len(seen) == 1 else np.concatenate(seen)
        first = first[(symbol[first] == left) & (symbol[following[first]] == right)]
        if left == right:
            first = _without_overlap(np.sort(first), following)
        second = following[first]
        after = following[second]
        has_after = after != self._end
        # Where merges touch ("abab"), what lies between belongs to the merge on its left.
        self._is_second[second] = True
        before = previous[first]
        has_before = (before != self._end) & ~self._is_second[before]
        self._is_second[second] = False
        before, after_inside = before[has_before], after[has_after]

        edges = np.concatenate([before, second[has_after]])
        self._subtract(_pair(symbol[edges], symbol[following[edges]]), self._weight[edges])
        symbol[first] = new
        symbol[second] = -1
        following[first] = after
        previous[after_inside] = first[has_after]
        edges = np.concatenate([before, first[has_after]])
        self._add(_pair(symbol[edges], symbol[following[edges]]), edges)

    def _subtract(self, pairs: Int64Array, weight: Int64Array) -> None:
        """Take occurrences away. The queue learns of it when it hands the pair out."""
        if not pairs.size:
            return
        order, starts = _group(pairs)
        sums = np.add.reduceat(weight[order], starts)
        for pair, total in zip(pairs[order[starts]].tolist(), sums.tolist(), strict=True):
            if pair in self._count:
                self._count[pair] -= total

    def _add(self, pairs: Int64Array, places: Places) -> None:
        """Enter new occurrences of pairs at `places`."""
        if not pairs.size:
            return
        order, starts = _group(pairs)
        places = places[order]
        sums = np.add.reduceat(self._weight[places], starts)
        ends = np.append(starts[1:], order.size)
        for pair, total, start, end in zip(
            pairs[order[starts]].tolist(),
            sums.tolist(),
            starts.tolist(),
            ends.tolist(),
            strict=True,
        ):
            if pair in self._count:
                total += self._count[pair]
                self._places[pair].append(places[start:end])
            else:
                self._places[pair] = [places[start:end]]
            self._count[pair] = total
            left, right = self.tokens[pair >> _PAIR_BITS], self.tokens[pair & _PAIR_MASK]
            heapq.heappush(self._queue, (-total, left, right, pair))


def _pair(left: Int64Array, right: Int64Array) -> Int64Array:
    """Two symbols as one integer."""
    return (left << _PAIR_BITS) | right


def _group(keys: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The order that sorts `keys`, stable, and where each distinct key begins in it. Not empty."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    return order, np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))


def _without_overlap(first: Places, following: Places) -> Places:
    """Of occurrences of "aa", ascending: every other one in an unbroken run ("aaa" has one)."""
    touches = np.zeros(first.size, bool)
    touches[1:] = following[first[:-1]] == first[1:]
    run_start = np.maximum.accumulate(np.where(touches, 0, np.arange(first.size)))
    kept: Places = first[(np.arange(first.size) - run_start) % 2 == 0]
    return kept
