"""Answers as results: probabilities beside the scores, and no answer where none is better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.text.task_answers import Answers, Found, best_answers
from stages.text.task_pieces import Features

DIGITS = 6


def answer_results(
    features: Features,
    scores: NDArray[np.float32],
    contexts: Sequence[str],
    truncated: Sequence[bool],
    max_answer_length: int,
    null_threshold: float | None,
    top: int,
) -> Iterator[dict[str, Any]]:
    """Results of whole rows, in order.

    Args:
        features: of `span_features`.
        scores: [T, 2] of start and end.
        contexts: by number of the row.
        truncated: likewise, whether the question lost its end.
        max_answer_length: pieces of an answer.
        null_threshold: of the null margin; None: every question has an answer.
        top: how many are listed, where above 1.
    """
    starts, ends = scores[:, 0], scores[:, 1]
    for found in best_answers(features, starts, ends, contexts, max_answer_length, top):
        listed = [_listed(best, features, scores, found.row) for best in found.best]
        yield _result(found, listed, null_threshold, top) | {"truncated": truncated[found.row]}


def _listed(
    found: Found, features: Features, scores: NDArray[np.float32], row: int
) -> dict[str, Any]:
    share = answer_share(found, features, scores, row)
    return {
        "answer": found.text,
        "start": found.start,
        "end": found.end,
        "score": round(share, DIGITS),
    }


def _result(
    found: Answers, listed: list[dict[str, Any]], threshold: float | None, top: int
) -> dict[str, Any]:
    nothing = {"answer": None, "start": None, "end": None, "score": None}
    result = dict(nothing if found.answer(threshold) is None else listed[0])
    margin = found.null_margin
    result["null_margin"] = round(margin, DIGITS) if np.isfinite(margin) else None
    return result | ({"answers": listed} if top > 1 else {})


def answer_share(found: Found, features: Features, scores: NDArray[np.float32], row: int) -> float:
    """Probability of the answer's start times that of its end, in the window that scores it.

    Both softmaxes run over `[CLS]` and the context's pieces in that window (as in transformers,
    which masks the question and `[SEP]`).
    """
    assert features.own is not None and features.char_starts is not None
    offsets = features.input_ids.offsets
    low, high = np.searchsorted(features.rows, [row, row + 1])
    for window in range(low, high):
        here = slice(int(offsets[window]), int(offsets[window + 1]))
        begins = features.own[here] & (features.char_starts[here] == found.start)
        if not begins.any():
            continue
        counted = features.char_starts[here] >= 0
        counted[0] = True  # [CLS]
        logits = scores[here][counted].astype(np.float64)
        most = logits.max(0)
        totals = most + np.log(np.exp(logits - most).sum(0))
        return float(np.exp(found.score - totals.sum()))
    raise ValueError(f"no window of row {row} scores an answer that begins at {found.start}")
