"""Slow, plain twins of the vocabulary trainer and of the tokeniser, to be read and believed."""

from __future__ import annotations

import itertools
from collections import Counter

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train(
    word_counts: dict[str, int], size: int, limit_alphabet: int = 1000, min_frequency: int = 2
) -> list[str]:
    """WordPiece by byte-pair merging; every pair is counted anew for every merge."""
    characters: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            characters[character] += count
    by_mass = sorted(characters, key=lambda c: (-characters[c], c))
    alphabet = sorted(by_mass[:limit_alphabet])
    spelled = [
        ([word[0]] + ["##" + c for c in word[1:]], count)
        for word, count in word_counts.items()
        if set(word) <= set(alphabet)
    ]
    inside = sorted({symbol for symbols, _ in spelled for symbol in symbols[1:]})
    tokens = [*SPECIAL, *alphabet, *inside]
    while len(tokens) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, count in spelled:
            for pair in occurrences(symbols):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] < min_frequency:
            break
        token = best[0] + best[1][2:]
        if token not in tokens:
            tokens.append(token)
        spelled = [(merge(symbols, best, token), count) for symbols, count in spelled]
    return tokens


def occurrences(symbols: list[str]) -> list[tuple[str, str]]:
    """All neighbouring pairs, overlapping ones too."""
    return list(itertools.pairwise(symbols))


def merge(symbols: list[str], pair: tuple[str, str], token: str) -> list[str]:
    """Replace a pair wherever it stands, from the left."""
    merged: list[str] = []
    i = 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            merged.append(token)
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


def pieces(word: str, vocab: set[str], max_word_characters: int = 100) -> list[str]:
    """Greedy longest match from the left; [UNK] when a rest cannot be spelled."""
    if len(word) > max_word_characters:
        return ["[UNK]"]
    found: list[str] = []
    begin = 0
    while begin < len(word):
        prefix = "##" if begin else ""
        for end in range(len(word), begin, -1):
            if prefix + word[begin:end] in vocab:
                found.append(prefix + word[begin:end])
                begin = end
                break
        else:
            return ["[UNK]"]
    return found
