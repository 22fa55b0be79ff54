"""NotNext by exchange: half of a shard's chunks swap their B segments among like chunks.

Every B is used once, and who is NotNext is drawn without regard to lengths, so that neither
lengths nor sentence counts tell the label.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from stages.text.random import Stream

Int64s = NDArray[np.int64]

BLOCK_CHUNKS = 32
"""Chunks of like length among which B segments are exchanged."""

DROPPED = -1


def exchange(
    kinds: NDArray[np.int64], likeness: tuple[Int64s, ...], origins: Int64s, stream: Stream
) -> Int64s:
    """Choose for each chunk whose B follows its A.

    Chunks of one kind are sorted by likeness, cut into blocks of about `BLOCK_CHUNKS`, and each
    block exchanges within itself (`_exchange_block`). The running difference of IsNext and
    NotNext is carried from block to block and never exceeds one.

    Args:
        kinds: [n] chunks of different kinds never exchange.
        likeness: columns [n] to sort by, the most important first.
        origins: [n] chunks of equal origin never exchange.
        stream: where the draws come from.

    Returns:
        [n] the chunk whose B is used: the chunk itself (IsNext), one of another origin (NotNext,
        each B once), or `DROPPED`, where no partner of another origin was left for a chunk.
    """
    count = len(kinds)
    ties = stream.uint64(count)
    order = np.lexsort((ties, *likeness[::-1], kinds))
    lots = stream.uint32(count).tolist()
    coins = (stream.uint32(count) & 1).tolist()
    origin_list = origins[order].tolist()
    chosen = np.full(count, DROPPED, dtype=np.int64)
    surplus = 0
    for low, high in _blocks(kinds[order]):
        block, surplus = _exchange_block(
            origin_list[low:high], lots[low:high], coins[low:high], surplus
        )
        partners = np.asarray(block, dtype=np.int64)
        chosen[order[low:high]] = np.where(partners < 0, DROPPED, order[low + partners])
    return chosen


def _blocks(sorted_kinds: NDArray[np.int64]) -> list[tuple[int, int]]:
    """[low, high) of blocks of `BLOCK_CHUNKS` to twice that, or all of a smaller kind."""
    edges = np.concatenate(
        ([0], np.flatnonzero(np.diff(sorted_kinds)) + 1, [len(sorted_kinds)])
    ).tolist()
    blocks = []
    for first, last in itertools.pairwise(edges):
        parts = max(1, (last - first) // BLOCK_CHUNKS)
        cuts = [first + (last - first) * k // parts for k in range(parts + 1)]
        blocks += [(low, high) for low, high in itertools.pairwise(cuts) if low < high]
    return blocks


def _exchange_block(
    origins: list[int], lots: list[int], coins: list[int], surplus: int
) -> tuple[list[int], int]:
    """Partners within one block, as positions in it, and the new surplus of IsNext.

    An origin may hold half of the block at most, or its chunks could not all find a partner; the
    surplus, drawn by lot, is dropped. So is what would make the labels differ by more than one.
    """
    partner = [DROPPED] * len(origins)
    members, dominated = _cap_dominant(origins, lots)
    for i in members:
        partner[i] = i
    # Neighbours in `drawn` are alike, and one of each two becomes NotNext: in length as a rule,
    # and in origin where one is so frequent that chance could choose too many of it.
    drawn = sorted(members, key=origins.__getitem__) if dominated else members
    chosen = [drawn[k + coins[drawn[k]]] for k in range(0, len(drawn) - 1, 2)]
    if len(drawn) % 2 and (
        surplus > 0 or len(drawn) == 3 or (surplus == 0 and coins[drawn[-1]] == 1)
    ):
        chosen.append(drawn[-1])
    for cycle in _cycles(sorted(chosen), origins):
        for i, j in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            partner[i] = j
    followed = [i for i in members if partner[i] == i]
    surplus += len(followed) - (len(members) - len(followed))
    if surplus > 1:
        for i in sorted(followed, key=lots.__getitem__)[: surplus - 1]:
            partner[i] = DROPPED
        surplus = 1
    elif surplus < -1:
        exchanged = [i for i in members if partner[i] != i]
        for i in sorted(exchanged, key=lots.__getitem__)[: -surplus - 1]:
            partner[i] = DROPPED
        surplus = -1
    return partner, surplus


def _cap_dominant(origins: list[int], lots: list[int]) -> tuple[list[int], bool]:
    """Positions that take part, ascending, and whether one origin holds over a quarter of them."""
    origin, held = Counter(origins).most_common(1)[0]
    others = len(origins) - held
    if held > others:
        own = [i for i, other in enumerate(origins) if other == origin]
        left_out = set(sorted(own, key=lots.__getitem__)[others:])
        return [i for i in range(len(origins)) if i not in left_out], True
    return list(range(len(origins))), 4 * held > len(origins)


def _cycles(chosen: list[int], origins: list[int]) -> list[list[int]]:
    """Cycles over `chosen` in which neighbours differ in origin: two, seldom three long.

    Each chunk pairs with the nearest one before it that still waits and has another origin. All
    that wait have one origin, so what is left over at the end has too: two of them are solved
    with a finished pair that does not hold that origin, the last one joins such a pair. This
    solves everything unless one origin holds more than half (or only one chunk was chosen); the
    rest is in no cycle.
    """
    waiting: list[int] = []
    pairs: list[list[int]] = []
    for i in chosen:
        if waiting and origins[waiting[-1]] != origins[i]:
            pairs.append([waiting.pop(), i])
        else:
            waiting.append(i)
    if not waiting:
        return pairs
    own = origins[waiting[-1]]
    cycles = [pair for pair in pairs if own in (origins[pair[0]], origins[pair[1]])]
    free = [pair for pair in pairs if own not in (origins[pair[0]], origins[pair[1]])]
    while waiting and free:
        first, second = free.pop()
        if len(waiting) >= 2:
            cycles += [[first, waiting.pop()], [second, waiting.pop()]]
        else:
            cycles.append([first, second, waiting.pop()])
    return cycles + free
