"""What became of every document, sentence and token that pairing was given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stages.text.chunks import Sentences

Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]
Counts = Mapping[str, Mapping[str, int]]
"""unit ("documents", "sentences", "tokens") -> "in", "used" and reasons; in = used + reasons."""


def pair_counts(
    sentences: Sentences,
    filled: Sentences,
    *,
    used_sentences: Int64s,
    spans_before: Int64s,
    spans: Int64s,
    lost: Int64s,
) -> Counts:
    """Account for a shard's pairs; the reasons are described at `pairing.PairPlan`.

    Args:
        sentences, filled: the shard with and without empty sentences.
        used_sentences: [m, 2] ranges of sentences (of `filled`) that rows take from.
        spans_before, spans: [m, 2] token ranges of the rows before and after truncation; they
            may overlap (a token counts once).
        lost: sentences (of `filled`) that stand alone and cannot be cut.
    """
    total = len(filled.lengths)
    used = _covered(used_sentences[:, 0], used_sentences[:, 1], total)
    single = np.zeros(total, dtype=np.bool_)
    single[lost] = True
    unpaired = ~used & ~single
    tokens_in = int(filled.offsets[-1])
    tokens_before = _union_size(spans_before)
    tokens_used = _union_size(spans)
    tokens_single = int(filled.lengths[lost].sum())
    documents = {
        name: _documents_with(filled, flags)
        for name, flags in (("used", used), ("no_partner", unpaired), ("single_sentence", single))
    }
    document_used = documents["used"]
    document_unpaired = documents["no_partner"] & ~document_used
    document_single = documents["single_sentence"] & ~document_used & ~document_unpaired
    document_count = len(sentences.origins)
    found = int(np.count_nonzero(document_used | document_unpaired | document_single))
    return {
        "documents": {
            "in": document_count,
            "used": int(np.count_nonzero(document_used)),
            "empty": document_count - found,
            "single_sentence": int(np.count_nonzero(document_single)),
            "no_partner": int(np.count_nonzero(document_unpaired)),
        },
        "sentences": {
            "in": len(sentences.lengths),
            "used": int(np.count_nonzero(used)),
            "empty": len(sentences.lengths) - total,
            "single_sentence": len(lost),
            "no_partner": int(np.count_nonzero(unpaired)),
        },
        "tokens": {
            "in": tokens_in,
            "used": tokens_used,
            "truncated": tokens_before - tokens_used,
            "single_sentence": tokens_single,
            "no_partner": tokens_in - tokens_before - tokens_single,
        },
    }


def _covered(starts: Int64s, ends: Int64s, size: int) -> NDArray[np.bool_]:
    """[size] whether any [start, end) holds a position."""
    steps = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    covered: NDArray[np.bool_] = np.cumsum(steps[:size]) > 0
    return covered


def _union_size(spans: Int64s) -> int:
    """Positions that lie in at least one of the [start, end) rows of `spans`."""
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    before = np.concatenate((ordered[:1, 0], reached[:-1]))
    return int(np.maximum(0, ordered[:, 1] - np.maximum(ordered[:, 0], before)).sum())


def _documents_with(sentences: Sentences, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[D] whether any sentence of a document is flagged."""
    before = np.concatenate(([0], np.cumsum(flags, dtype=np.int64)))
    return before[sentences.documents[1:]] > before[sentences.documents[:-1]]
