"""Masking row by row in plain Python, from the same random words as the fast kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.text.masking import MaskOptions
from stages.text.random import Stream, counter_bits, counter_uint32

Row = tuple[list[int], list[int], list[int]]
"""ids with replacements, positions, labels."""


def mask_row(ids: list[int], row: int, options: MaskOptions, stream: Stream) -> Row:
    key = stream.row_keys(np.array([row]))
    words = row_words(ids, options)
    quota = min(options.max_predictions, max(1, round(len(ids) * options.probability)))
    decides: dict[int, int] = {}
    if options.strategy == "span":
        for span in row_spans(words, quota, key, options):
            columns = [column for word in span for column in word]
            for column in columns:
                decides[column] = columns[0] if options.span_together else column
    else:
        lots = counter_uint32(key, len(ids))[0].tolist()
        for word in sorted(words, key=lambda word: (lots[word[0]], word[0])):
            if len(decides) + len(word) <= quota:
                decides |= {column: column for column in word}
    chosen = sorted(decides)
    output = list(ids)
    for column in chosen:
        share = bits_at(key, 2**32 + decides[column]) / 2**32
        place = int(counter_bits(key, np.array([2**32 + column]))[0]) & 0xFFFFFFFF
        if share < options.mask_share:
            output[column] = options.mask_id
        elif share < options.mask_share + options.random_share:
            others = [e for e in np.flatnonzero(options.ordinary).tolist() if e != ids[column]]
            output[column] = others[place * len(others) >> 32]
    return output, chosen, [ids[column] for column in chosen]


def bits_at(key: NDArray[np.uint64], counter: int) -> int:
    """The upper half of a word."""
    return int(counter_bits(key, np.array([counter]))[0]) >> 32


def row_words(ids: list[int], options: MaskOptions) -> list[list[int]]:
    """Columns of each word that may be predicted; of each token for per_token."""
    words: list[list[int]] = []
    for column, token in enumerate(ids):
        if token in (options.cls_id, options.sep_id):
            continue
        continues = options.strategy != "per_token" and bool(options.continuation[token])
        if continues and words and words[-1][-1] == column - 1:
            words[-1].append(column)
        else:
            words.append([column])
    if options.never is None:
        return words
    return [word for word in words if not any(options.never[ids[column]] for column in word)]


def row_spans(
    words: list[list[int]], quota: int, key: NDArray[np.uint64], options: MaskOptions
) -> list[list[list[int]]]:
    """Spans of words, in the order in which they are drawn."""
    spans: list[list[list[int]]] = []
    taken: set[int] = set()
    left, attempt, failed, length = quota, 0, 0, 0
    bounds = [int(sum(options.span_law[: k + 1]) * 2**32) for k in range(options.span_words - 1)]

    def fits(start: int, length: int) -> bool:
        part = range(start, start + length)
        return (
            part[-1] < len(words)
            and not taken.intersection(part)
            and all(words[w][-1] + 1 == words[w + 1][0] for w in part[:-1])
        )

    while left > 0 and words:
        word = int(counter_bits(key, np.array([2**33 + attempt]))[0])
        attempt += 1
        if failed == 0:
            length = 1 + sum(bound <= (word & 0xFFFFFFFF) for bound in bounds)
        start = (word >> 32) * len(words) >> 32
        if failed >= 16:
            starts: list[int] = []
            while length and not starts:
                starts = [w for w in range(len(words)) if fits(w, length) and len(words[w]) <= left]
                length -= not starts
            if not starts:
                break
            start = starts[(word >> 32) * len(starts) >> 32]
        span = words[start : start + length]
        if not fits(start, length) or len(span[0]) > left:
            failed += 1
            continue
        failed = 0
        while sum(map(len, span)) > left:
            span = span[:-1]
        taken |= set(range(start, start + len(span)))
        spans.append(span)
        left -= sum(map(len, span))
        if len(span) < length:
            break
    return spans
