"""How large documents and sentences are, as histograms that add up."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SENTENCE_BIN, SENTENCE_BINS = 20, 25
"""Bytes a bar, and bars, of the histogram of sentences; the last bar takes all longer ones."""


def document_sizes(rows: pa.Table) -> list[int]:
    """How many rows have 2**(i - 10) to 2**(i - 9) kB of text, by i."""
    sizes = pc.binary_length(rows["text"]).to_numpy()
    doublings = np.floor(np.log2(np.maximum(sizes, 1) / 1000)).astype(np.int64)
    return list(np.bincount(np.maximum(doublings + 10, 0)).tolist())


def sentence_sizes(rows: pa.Table) -> list[int]:
    """[SENTENCE_BINS] how many sentences have i * SENTENCE_BIN bytes and more, white space too."""
    ends = rows["sentence_ends"].combine_chunks()
    values = ends.flatten().to_numpy().astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), values[:-1]])[: len(values)]
    offsets = ends.offsets.to_numpy()
    firsts = (offsets - offsets[0])[:-1]
    # A row without sentences would name the first sentence of the next one, which is as well.
    starts[firsts[firsts < len(values)]] = 0
    bins = np.minimum((values - starts) // SENTENCE_BIN, SENTENCE_BINS - 1)
    return list(np.bincount(bins, minlength=SENTENCE_BINS).tolist())


def summed(*histograms: list[int]) -> list[int]:
    """Bar by bar; the shorter ones have none at the end."""
    return [sum(bins) for bins in itertools.zip_longest(*histograms, fillvalue=0)]
