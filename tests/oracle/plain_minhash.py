"""Shingles, similarity and clusters, with Python sets: slow and plain."""

from __future__ import annotations

from tests.oracle.plain_quality import units


def folded(text: str) -> str:
    """Lower case of ASCII; ASCII and general punctuation made spaces."""
    return "".join(
        " "
        if (c.isascii() and not c.isalnum()) or "\u2000" <= c <= "\u203f"
        else c.lower()
        if c.isascii()
        else c
        for c in text
    )


def shingles(text: str, size: int) -> set[tuple[str, ...]]:
    words = units(folded(text))
    if not words:
        return set()
    return {tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1))}


def jaccard(left: str, right: str, size: int) -> float:
    a, b = shingles(left, size), shingles(right, size)
    return len(a & b) / len(a | b) if a | b else 0.0


def clusters(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Each node but the smallest of its component -> that smallest one."""
    component: dict[bytes, set[bytes]] = {}
    for a, b in pairs:
        merged = component.get(a, {a}) | component.get(b, {b})
        for node in merged:
            component[node] = merged
    return {node: min(nodes) for node, nodes in component.items() if node != min(nodes)}
