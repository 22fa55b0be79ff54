"""How well lengths tell the label of a pair: a boosted classifier on rows that it has not seen.

The figures of many corpora, with their intervals:

    python -m tests.oracle.label_leak [KIND ...] [--rows 40000] [--copies 12] [--lengths 64 128 512]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.text.chunks import Sentences
from stages.text.pairing import NoPairsError, PairPlan, make_pairs
from stages.text.random import Stream
from tests.oracle.pair_corpora import from_documents, from_lengths, made_up, real_documents

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """What a classifier sees.

    Attributes:
        rows: [n, 4] tokens of A and B after truncation, sentences of A and B before it.
        is_next: [n] the labels.
        groups: [n] rows of one shard or stretch of text, which are learned from or tested on
            together.
    """

    rows: Int64s
    is_next: NDArray[np.bool_]
    groups: Int64s

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Accuracy:
    """Share of rows that were told right, each by a classifier that had not seen their text.

    `error` is the standard error: of rows drawn by themselves, or of whole groups, if that is more.
    """

    mean: float
    error: float
    rows: int

    def __str__(self) -> str:
        low, high = self.mean - 1.96 * self.error, self.mean + 1.96 * self.error
        return f"{self.mean:.4f}  ({low:.4f} to {high:.4f})  {self.rows:7,} rows"


def features(plan: PairPlan) -> Int64s:
    """[n, 4] tokens of A and B after truncation, sentences of A and B before it."""
    a_tokens, b_tokens = np.diff(plan.a, axis=1), np.diff(plan.b, axis=1)
    return np.column_stack([a_tokens, b_tokens, plan.a_sentences, plan.b_sentences])


def labelled(
    shards: Iterable[Sentences],
    length: int,
    *,
    least_rows: int | None = None,
    copies: int = 1,
    stretch: int | None = None,
    seed: int = 5,
    **options: Any,
) -> Labelled:
    """Rows of shards and copies; shards without pairs have none.

    Args:
        shards: any number, or without end.
        length: tokens of a row at most.
        least_rows: no further shard once there are so many.
        copies: of each shard.
        stretch: tokens of a group; none: a shard is a group.
        seed: of the pairs.
        options: of `make_pairs`.
    """
    rows, is_next, groups = [], [], []
    total = 0
    for number, shard in enumerate(shards):
        for copy in range(copies):
            stream = Stream(seed, number, copy)
            try:
                plan = make_pairs(shard, max_seq_length=length, stream=stream, **options)
            except NoPairsError:
                continue
            rows.append(features(plan))
            is_next.append(plan.is_next)
            places = plan.a_before[:, 0] // stretch if stretch else np.zeros(len(plan), np.int64)
            groups.append(places + 10**6 * number)
            total += len(plan)
        if least_rows is not None and total >= least_rows:
            break
    return Labelled(np.concatenate(rows), np.concatenate(is_next), np.concatenate(groups))


def accuracy(seen: Labelled, folds: int = 5) -> Accuracy:
    """Cross-validated by groups."""
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    names, place = np.unique(seen.groups, return_inverse=True)
    fold = np.random.default_rng(0).permutation(len(names))[place] % folds
    right = np.zeros(len(seen), dtype=np.bool_)
    for k in range(folds):
        model = ensemble.HistGradientBoostingClassifier(max_iter=60, random_state=k)
        model.fit(seen.rows[fold != k], seen.is_next[fold != k])
        right[fold == k] = model.predict(seen.rows[fold == k]) == seen.is_next[fold == k]
    mean = float(right.mean())
    apart = np.bincount(place, weights=right - mean)
    error = max(np.sqrt((apart**2).sum()) / len(seen), np.sqrt(mean * (1 - mean) / len(seen)))
    return Accuracy(mean, float(error), len(seen))


def sentences_of(rng: np.random.Generator, mean: float, count: int) -> list[int]:
    """Lengths as they are in prose."""
    return np.maximum(1, rng.lognormal(np.log(mean), 0.5, count)).astype(int).tolist()


def _two_small(rng: np.random.Generator, length: int) -> Sentences:
    """About ten chunks each, of one style."""
    return from_lengths([sentences_of(rng, 18, 10 * length // 20) for _ in range(2)])


def _two_small_unlike(rng: np.random.Generator, length: int) -> Sentences:
    """About ten chunks each; sentences of one are twice as long."""
    return from_lengths([sentences_of(rng, mean, 10 * length // mean) for mean in (14, 28)])


def _two_similar(rng: np.random.Generator, length: int) -> Sentences:
    """Some hundred chunks each, of one style."""
    return from_lengths([sentences_of(rng, 20, 150 * length // 20) for _ in range(2)])


def _two_unlike(rng: np.random.Generator, length: int) -> Sentences:
    """Some hundred chunks each; sentences of one are twice as long."""
    return from_lengths([sentences_of(rng, mean, 300 * length // mean) for mean in (14, 28)])


def _two_uniform(rng: np.random.Generator, length: int) -> Sentences:
    """Two documents of any size up to some eighty chunks, sentences of 1 to 39 tokens."""
    return made_up("two", int(rng.integers(10**9)), scale=length / 64)


def _two_styles(rng: np.random.Generator, length: int) -> Sentences:
    """Documents of short sentences and of long ones."""
    sizes = rng.integers(2, 20, 300)
    return from_lengths([sentences_of(rng, 9 if d % 2 else 35, n) for d, n in enumerate(sizes)])


def _short(rng: np.random.Generator, length: int) -> Sentences:
    """Documents of one or two sentences."""
    return made_up("short", int(rng.integers(10**9)), scale=2)


def _giant(rng: np.random.Generator, length: int) -> Sentences:
    """One giant with small ones."""
    sizes = rng.integers(1, 12, 170)
    small = [sentences_of(rng, rng.uniform(12, 30), n) for n in sizes]
    return from_lengths([sentences_of(rng, 22, 1500), *small])


def _normal(rng: np.random.Generator, length: int) -> Sentences:
    """Documents of sizes as on the web."""
    return made_up("normal", int(rng.integers(10**9)), scale=2)


def _small_normal(rng: np.random.Generator, length: int) -> Sentences:
    """Some twenty such documents."""
    return made_up("normal", int(rng.integers(10**9)), scale=0.3)


CORPORA = {
    "two small": _two_small,
    "two small unlike": _two_small_unlike,
    "two similar": _two_similar,
    "two uniform": _two_uniform,
    "two unlike": _two_unlike,
    "two styles": _two_styles,
    "short": _short,
    "giant": _giant,
    "normal": _normal,
    "small normal": _small_normal,
}


REAL = ("wikitext2-valid.txt", "gum-en.txt", "pud-de.txt")

STRETCH = 3000
"""Tokens of real text that are never parted: the copies of a pair stand in one stretch."""


def shards_of(kind: str, length: int, seed: int) -> Iterator[Sentences]:
    """Shards of a kind of corpus without end, each of other documents."""
    for number in itertools.count():
        yield CORPORA[kind](np.random.default_rng([seed, number]), length)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=[*CORPORA, *REAL], metavar="KIND")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 512])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=12, help="of real text")
    given = parser.parse_args()
    for kind in given.kinds:
        for length in given.lengths:
            if kind in CORPORA:
                shards = shards_of(kind, length, given.seed)
                seen = labelled(shards, length, least_rows=given.rows)
            else:
                shard = from_documents(real_documents(kind))
                seen = labelled(
                    [shard], length, copies=given.copies, stretch=STRETCH, seed=given.seed
                )
            count = len(np.unique(seen.groups))
            print(f"{kind:20} {length:4}  {accuracy(seen)}  {count:6,} groups", flush=True)


if __name__ == "__main__":
    main()
