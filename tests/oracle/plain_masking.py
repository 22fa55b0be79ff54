"""Masking row by row in plain Python, from the same random words as the fast kernel."""

from __future__ import annotations

import numpy as np

from stages.text.masking import MaskOptions
from stages.text.random import Stream, counter_bits, counter_uint32

Row = tuple[list[int], list[int], list[int]]
"""ids with replacements, positions, labels."""


def mask_row(ids: list[int], row: int, options: MaskOptions, stream: Stream) -> Row:
    key = stream.row_keys(np.array([row]))
    lots = counter_uint32(key, len(ids))[0].tolist()
    words: list[list[int]] = []
    for column, token in enumerate(ids):
        if token in (options.cls_id, options.sep_id):
            continue
        continues = options.strategy == "whole_word" and bool(options.continuation[token])
        if continues and words and words[-1][-1] == column - 1:
            words[-1].append(column)
        else:
            words.append([column])
    quota = min(options.max_predictions, max(1, round(len(ids) * options.probability)))
    chosen: list[int] = []
    for word in sorted(words, key=lambda word: (lots[word[0]], word[0])):
        if len(chosen) + len(word) <= quota:
            chosen += word
    chosen.sort()
    output = list(ids)
    for column in chosen:
        bits = int(counter_bits(key, np.array([2**32 + column]))[0])
        share, place = (bits >> 32) / 2**32, bits & 0xFFFFFFFF
        if share < options.mask_share:
            output[column] = options.mask_id
        elif share < options.mask_share + options.random_share:
            others = [e for e in np.flatnonzero(options.ordinary).tolist() if e != ids[column]]
            output[column] = others[place * len(others) >> 32]
    return output, chosen, [ids[column] for column in chosen]
