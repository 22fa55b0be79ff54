"""The vocabulary on one core: counting words, and training on counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.documents import read_lines
from bench.rounds import Times, alternate, timed
from bench.settings import Settings
from bench.variation import Variation
from stages.text.vocabulary import train
from stages.text.word_counts import merge_counts
from stages.text.words import Normalisation, count_words

SIZE = 30_522
Counted = tuple[pa.StringArray, npt.NDArray[np.int64]]


def measure(settings: Settings) -> dict[str, Any]:
    """MB/s/core of counting; seconds from `distinct_words` to 30,522 entries."""
    texts = read_lines(settings.documents)
    column = pa.array(texts, pa.large_string())
    megabytes = column.nbytes / 1e6
    counting = alternate({"count": lambda: count_words(column, Normalisation())}, settings.rounds)[
        "count"
    ]
    words, counts = varied_words(texts, settings.distinct_words)
    training = Times()
    # Once: what it takes half a minute for does not hang on a cache.
    timed(lambda: train(words, counts, SIZE), training)
    return {
        "megabytes": megabytes,
        "counting_mb_per_second_core": megabytes / counting.seconds,
        "distinct_words": len(words),
        "training_seconds": training.seconds,
        "entries": SIZE,
    }


def varied_words(texts: list[str], distinct: int) -> Counted:
    """Counts of so many distinct words: those of the text, and those of varied copies of it.

    What copies of the text would be counted as, without writing and counting them.
    """
    variation = Variation(texts)
    words, counts = count_words(pa.array(texts, pa.large_string()), Normalisation())
    parts: list[Counted] = [(words, counts)]
    rare = np.array([variation.counts[word] for word in variation.respelled], np.int64)
    size, copy = len(words), 0
    while size < distinct and len(rare):
        copy += 1
        parts.append((pa.array(variation.spellings(copy), pa.string()), rare))
        size += len(rare)
    # The frequent words stand in every copy.
    parts += [(words, counts * copy)] if copy else []
    merged, total = merge_counts(parts)
    if len(merged) <= distinct:
        return merged, total
    kept = np.sort(np.argsort(-total, kind="stable")[:distinct])
    return merged.take(pa.array(kept)), total[kept]
