"""Corpora for tests of pairs and masks: made up, and real ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.text.chunks import Sentences
from tests.oracle.google_pairs import Document, read_documents

KINDS = ("normal", "two", "short", "giant", "single", "twins")


def made_up(kind: str, seed: int, scale: float = 1.0) -> Sentences:
    """A shard of one of `KINDS`, with sentences and documents without tokens among the others."""
    rng = np.random.default_rng(seed)

    def documents(count: int, low: int, high: int, words: tuple[int, int]) -> list[list[int]]:
        sizes = rng.integers(low, high, max(1, int(count * scale)))
        return [rng.integers(*words, size).tolist() for size in sizes]

    if kind == "normal":
        parts = [
            (rng.lognormal(2.9, 0.6, int(rng.lognormal(2.5, 1.0)) + 1).astype(int)).tolist()
            for _ in range(max(2, int(60 * scale)))
        ]
    elif kind == "two":
        sizes = rng.integers(3, int(200 * scale) + 4, 2)
        parts = [rng.integers(1, 40, size).tolist() for size in sizes]
    elif kind == "short":
        parts = documents(150, 1, 3, (1, 60))
    elif kind == "giant":
        parts = [*documents(30, 1, 6, (2, 40)), rng.integers(2, 40, int(600 * scale) + 1).tolist()]
    elif kind == "single":
        parts = documents(80, 1, 2, (1, 80))
    else:
        parts = documents(40, 1, 12, (1, 40))
    order = rng.permutation(len(parts))
    parts = [parts[i] for i in order]
    parts.insert(int(rng.integers(0, len(parts) + 1)), [])
    origins = np.arange(len(parts))
    if kind == "twins":
        origins //= 5
    return from_lengths(parts, origins, rng.random)


def from_lengths(
    parts: list[list[int]], origins: NDArray[np.int64] | None = None, flags: object = None
) -> Sentences:
    lengths = np.asarray([n for part in parts for n in part], dtype=np.int64)
    starts = np.ones(int(lengths.sum()), dtype=np.bool_)
    if callable(flags):
        starts = flags(len(starts)) < 0.75
    return Sentences(
        lengths=lengths,
        documents=np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64),
        origins=np.arange(len(parts)) if origins is None else origins,
        word_starts=starts,
    )


def from_documents(documents: list[Document]) -> Sentences:
    """Whitespace tokens; those with `##` start no word."""
    shard = from_lengths([[len(sentence) for sentence in document] for document in documents])
    tokens = [token for document in documents for sentence in document for token in sentence]
    shard.word_starts[:] = [not token.startswith("##") for token in tokens]
    return shard


def real_documents(name: str) -> list[Document]:
    """A corpus in google-research/bert format from the data folder beside the repository."""
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared/data/corpora/bert-format" / name
        if path.is_file():
            return read_documents(path.read_text("utf-8"))
    pytest.skip(f"no ../shared/data with {name} beside the repository")
