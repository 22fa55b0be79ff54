"""Back from scores of features to texts: answers as parts of their contexts, a tag for each word.

Answers are cut out of the original context by offsets, never put together from pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.text.task_pieces import Features, Int64s

Scores = NDArray[np.floating[Any]]

MAX_ANSWER_LENGTH = 30
"""Pieces of an answer, as google-research/bert has it."""


@dataclass(frozen=True)
class Found:
    """An answer: `context[start:end]`, in code points.

    `score` is the sum of the scores of its first and its last piece.
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answers:
    """What was found for a row.

    Attributes:
        row: its number.
        best: different parts of the context, best first; empty where the context has no piece.
        null_score: of no answer: the least that a window gives to `[CLS]`, as start plus end.
    """

    row: int
    best: tuple[Found, ...]
    null_score: float

    @property
    def null_margin(self) -> float:
        """How much better no answer is than the best one: what a threshold is tuned on."""
        return self.null_score - self.best[0].score if self.best else float("inf")

    def answer(self, null_threshold: float | None = None) -> Found | None:
        """The best answer; None where there is none, or its null margin is above the threshold.

        Without a threshold every question has an answer (SQuAD 1).
        """
        if not self.best or (null_threshold is not None and self.null_margin > null_threshold):
            return None
        return self.best[0]


def best_answers(
    features: Features,
    start_scores: Scores,
    end_scores: Scores,
    contexts: Mapping[int, str] | Sequence[str],
    max_answer_length: int = MAX_ANSWER_LENGTH,
    n_best: int = 20,
) -> Iterator[Answers]:
    """The best answers of each row, over all of its windows.

    An answer begins at a piece that its window scores, and ends at that piece or behind it in the
    same window. All of these are looked at. Equal scores: the one that begins first, then the
    shorter one.

    Args:
        features: whole rows (a chunk of `span_features`, or several).
        start_scores, end_scores: float [T], at each position.
        contexts: the texts by number of the row.
        max_answer_length: pieces of an answer at most.
        n_best: how many a row at most.

    Yields:
        One for each row, in order.

    Raises:
        ValueError: features without offsets, scores of another length or not finite.
    """
    own, char_starts, char_ends = features.own, features.char_starts, features.char_ends
    if own is None or char_starts is None or char_ends is None:
        raise ValueError("features of classification hold no answers")
    offsets = features.input_ids.offsets
    for name, scores in (("start", start_scores), ("end", end_scores)):
        if scores.shape != (offsets[-1],):
            raise ValueError(f"{scores.shape} {name} scores for {offsets[-1]} positions")
        if not np.isfinite(scores).all():
            raise ValueError(f"some {name} scores are not finite numbers")
    for low, high in _runs_of(features.rows):
        row = int(features.rows[low])
        candidates: list[tuple[float, int, int]] = []
        null_score = float("inf")
        for number in range(low, high):
            begin, end = int(offsets[number]), int(offsets[number + 1])
            starts, ends = start_scores[begin:end], end_scores[begin:end]
            null_score = min(null_score, float(starts[0]) + float(ends[0]))
            own_places = np.flatnonzero(own[begin:end])
            # The last position is [SEP].
            found = best_spans(starts, ends[:-1], own_places, max_answer_length, n_best)
            candidates += [
                (score, int(char_starts[begin + first]), int(char_ends[begin + last]))
                for score, first, last in found
            ]
        yield Answers(row, _distinct(candidates, contexts[row], n_best), null_score)


def best_spans(
    starts: Scores, ends: Scores, places: Int64s, max_length: int, n_best: int
) -> list[tuple[float, int, int]]:
    """The best [first, last] of a window, as (score, first, last).

    Args:
        starts, ends: float, at each position; a span ends inside of `ends`.
        places: rising positions where a span may begin.
        max_length: positions of a span at most.
        n_best: how many.
    """
    if not len(places):
        return []
    width = max(1, min(max_length, len(ends) - int(places[0])))
    padded = np.concatenate([ends, np.full(width, -np.inf)]).astype(np.float64)
    views = np.lib.stride_tricks.sliding_window_view(padded, width)
    scores = (starts[places].astype(np.float64)[:, None] + views[places]).ravel()
    if scores.size > n_best:
        worst = np.partition(scores, -n_best)[-n_best]
        better = np.flatnonzero(scores > worst)
        # Of those as good as the last one, the first.
        equal = np.flatnonzero(scores == worst)[: n_best - len(better)]
        chosen = np.sort(np.concatenate([better, equal]))
    else:
        chosen = np.arange(scores.size)
    chosen = chosen[np.isfinite(scores[chosen])]
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    first = places[chosen // width]
    last = first + chosen % width
    return list(zip(scores[chosen].tolist(), first.tolist(), last.tolist(), strict=True))


def _distinct(
    candidates: list[tuple[float, int, int]], context: str, n_best: int
) -> tuple[Found, ...]:
    """The best ones as texts, of equals the first. Pieces of one character give a text twice."""
    found: dict[tuple[int, int], Found] = {}
    for score, start, end in sorted(candidates, key=lambda candidate: -candidate[0]):
        if len(found) == n_best:
            break
        found.setdefault((start, end), Found(context[start:end], start, end, score))
    return tuple(found.values())


def fill_class(classes: Sequence[str], counts: Mapping[str, int] | None = None) -> int:
    """The class of a word that has no piece: `O`, or without one the most frequent.

    Args:
        classes: the tags by number.
        counts: how often each stands in the training data; of equal ones the first class.
    """
    if "O" in classes:
        return list(classes).index("O")
    known = counts or {}
    return max(range(len(classes)), key=lambda number: (known.get(classes[number], 0), -number))


def stitched(
    parts: Iterable[tuple[Features, NDArray[Any]]],
    word_counts: Iterable[int],
    fill: Any,
) -> Iterator[NDArray[Any]]:
    """Values of words from values of pieces, row by row; holds the words of one row.

    Args:
        parts: chunks of `word_features` in order, each with [T] or [T, K] values of any kind
            (classes, logits) at its positions.
        word_counts: how many words each row has, in order.
        fill: the value of a word that has no piece, see `fill_class`.

    Yields:
        [words] or [words, K] for each row, in order.

    Raises:
        ValueError: rows that are missing, values of another length.
    """
    sizes = iter(word_counts)
    row, values = -1, np.zeros(0)
    for features, scores in parts:
        own, words = features.own, features.char_starts
        if own is None or words is None:
            raise ValueError("features of classification hold no words")
        offsets = features.input_ids.offsets
        if len(scores) != offsets[-1]:
            raise ValueError(f"{len(scores)} values for {offsets[-1]} positions")
        for low, high in _runs_of(features.rows):
            if features.rows[low] != row:
                if row >= 0:
                    yield values
                row += 1
                size = next(sizes, None)
                if features.rows[low] != row or size is None:
                    raise ValueError(f"features of row {features.rows[low]} instead of row {row}")
                values = np.full((size, *scores.shape[1:]), fill, scores.dtype)
            here = slice(int(offsets[low]), int(offsets[high]))
            scored = own[here]
            values[words[here][scored]] = scores[here][scored]
    if row >= 0:
        yield values
    if next(sizes, None) is not None:
        raise ValueError(f"no features of row {row + 1}")


def _runs_of(rows: Int64s) -> list[tuple[int, int]]:
    """[first, last) of the features of each row."""
    edges = np.flatnonzero(np.diff(rows)) + 1
    starts = np.concatenate([[0], edges]) if len(rows) else edges
    ends = np.append(edges, len(rows)) if len(rows) else edges
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
