"""Texts with `[MASK]` in them: what a model reads, and the filled-in texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.prediction_rows import MASK
from stages.text.task_pieces import Int64s, encode_texts
from stages.text.wordpiece import CONTINUATION, Tokenizer
from stages.training.examples import Ragged
from stages.training.scoring import Sequences

DIGITS = 6


class MaskedTexts:
    """Texts in which each `[MASK]` is the token.

    A text that is longer than the model reads has a sequence for each of its masks, which stands
    in the middle of it.

    Attributes:
        sequences: of all texts, one after another.
        positions: int64 [M], where the masks stand that are asked for, among all tokens.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> None:
        """Tokenise texts.

        Args:
            texts: each with at least one mask.
            tokenizer: reads what stands between masks.
            max_length: positions that the model has.
        """
        self.texts = texts
        self.tokens = tokenizer.vocab
        mask, cls, sep = (tokenizer.vocab.index(token) for token in (MASK, "[CLS]", "[SEP]"))
        parts = [text.split(MASK) for text in texts]
        ids, ends = encode_texts([part for split in parts for part in split], tokenizer)
        self.truncated: list[bool] = []
        lists: list[NDArray[np.int32]] = []
        positions: list[int] = []
        laid = first = 0
        for split in parts:
            pieces: list[int] = []
            masks: list[int] = []
            for number in range(first, first + len(split)):
                if number > first:
                    masks.append(len(pieces))
                    pieces.append(mask)
                pieces += ids[ends[number] : ends[number + 1]].tolist()
            first += len(split)
            room = max_length - 2
            long = len(pieces) > room
            self.truncated.append(long)
            for begin, asked in _stretches(masks, len(pieces), room):
                row = [cls, *pieces[begin : begin + room], sep]
                lists.append(np.array(row, np.int32))
                positions += [laid + 1 + place - begin for place in asked]
                laid += len(row)
        lengths = np.array([len(row) for row in lists], np.int64)
        values = np.concatenate(lists) if lists else np.zeros(0, np.int32)
        self.sequences = Sequences(Ragged(values, np.append(0, np.cumsum(lengths))), lengths - 2)
        self.positions: Int64s = np.array(positions, np.int64)

    def results(self, ids: Int64s, shares: NDArray[np.float32]) -> Iterator[dict[str, Any]]:
        """The result of each text, from [M, top] ids and probabilities."""
        mask = 0
        for text, truncated in zip(self.texts, self.truncated, strict=True):
            masks, best = [], []
            for found in re.finditer(re.escape(MASK), text):
                offers = [
                    {"token": self.tokens[token], "score": round(share, DIGITS)}
                    for token, share in zip(ids[mask].tolist(), shares[mask].tolist(), strict=True)
                ]
                masks.append({"start": found.start(), "end": found.end(), "tokens": offers})
                best.append(self.tokens[int(ids[mask, 0])])
                mask += 1
            yield {"masks": masks, "filled": filled(text, best), "truncated": truncated}


def _stretches(masks: list[int], size: int, room: int) -> Iterator[tuple[int, list[int]]]:
    """Where sequences begin in a text of `size` pieces, and the masks that each is asked for."""
    if size <= room:
        yield 0, masks
        return
    for place in masks:
        yield min(max(0, place - room // 2), size - room), [place]


def filled(text: str, tokens: Sequence[str]) -> str:
    """The text with a token for each mask; what continues a word is joined to it."""
    parts = text.split(MASK)
    made = parts[0]
    for token, part in zip(tokens, parts[1:], strict=True):
        if token.startswith(CONTINUATION):
            made = made.rstrip() + token.removeprefix(CONTINUATION)
        else:
            made += token
        made += part
    return made
