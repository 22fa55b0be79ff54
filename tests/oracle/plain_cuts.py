"""Where rows are cut into shards, with all of them in memory and one loop over the cuts."""

from __future__ import annotations

from collections.abc import Mapping


def plain_cuts(sizes: Mapping[int, int], number: int) -> list[int]:
    """First keys of all shards but the first; `sizes` says how many bytes each key has."""
    keys = sorted(sizes)
    total = sum(sizes.values())
    cuts: list[int] = []
    for i in range(1, number):
        aim = total * i / number
        before = at = 0
        while before + sizes[keys[at]] < aim:
            before += sizes[keys[at]]
            at += 1
        if aim - before > before + sizes[keys[at]] - aim:
            at += 1
        low = cuts[-1] + 1 if cuts else 1
        cuts.append(min(max(at, low), len(keys) - (number - i)))
    return [keys[at] for at in cuts]
