"""The histograms of sizes, against a plain count."""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa

from stages.text.sizes import SENTENCE_BIN, SENTENCE_BINS, document_sizes, sentence_sizes

DOCUMENTS = {
    "It was the best of times, it was the worst of times.": [26, 53],
    "Call me Ishmael.": [16],
    "x" * 5000: [700, 5000],
}


def rows(low: int = 0) -> pa.Table:
    table = pa.table({"text": list(DOCUMENTS), "sentence_ends": list(DOCUMENTS.values())})
    # A slice, whose offsets do not begin with 0.
    return table.slice(low)


def test_documents_by_size() -> None:
    counted = Counter(max(0, math.floor(math.log2(len(t) / 1000)) + 10) for t in DOCUMENTS)
    assert document_sizes(rows()) == [counted[i] for i in range(max(counted) + 1)]


def test_sentences_by_length() -> None:
    for low in range(3):
        counted: Counter[int] = Counter()
        for ends in list(DOCUMENTS.values())[low:]:
            for start, end in zip([0, *ends[:-1]], ends, strict=True):
                counted[min((end - start) // SENTENCE_BIN, SENTENCE_BINS - 1)] += 1
        assert sentence_sizes(rows(low)) == [counted[i] for i in range(SENTENCE_BINS)]
