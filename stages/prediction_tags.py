"""A tagged text as a result: arrays inside, dicts one by one, so that long texts stay small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.text.tasks.tags import Entity, entities
from stages.text.text_words import TextWords

BLOCK_WORDS = 20_000


@dataclass(frozen=True)
class Tagged:
    """The tags of the words of a text.

    Attributes:
        words: of raw text, or as they were given.
        values: float32 [W, 2], the class of each word and its probability; NaN where a word has
            no piece, so that its tag is by rule.
        labels: the tags by number.
        scheme: of these; "plain" ones mark no entities.
    """

    words: Sequence[str]
    values: NDArray[np.float32]
    labels: Sequence[str]
    scheme: str

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64 [W] start and end of each word: code points of the text, or of given words with
        one space between."""
        if isinstance(self.words, TextWords):
            return self.words.starts.astype(np.int64), self.words.ends.astype(np.int64)
        lengths = np.array([len(word) for word in self.words], np.int64)
        ends = np.cumsum(lengths + 1) - 1
        return ends - lengths, ends

    def word_dicts(self) -> Iterator[dict[str, Any]]:
        """{"word", "start", "end", "tag", "score"} of each word; null score: tagged by rule."""
        all_starts, all_ends = self.places()
        for first in range(0, len(self.words), BLOCK_WORDS):
            # Lists of a block: numbers one by one out of an array are slow.
            block = slice(first, first + BLOCK_WORDS)
            values = self.values[block].tolist()
            starts, ends = all_starts[block].tolist(), all_ends[block].tolist()
            found = zip(self.words[block], starts, ends, values, strict=True)
            for word, start, end, (kind, score) in found:
                yield {
                    "word": word,
                    "start": start,
                    "end": end,
                    "tag": self.labels[int(kind)],
                    "score": None if score != score else round(score, 6),  # NaN
                }

    def entity_dicts(self) -> Iterator[dict[str, Any]]:
        """{"type", "text", "start", "end", "score"} of each entity; the score is the mean."""
        starts, ends = self.places()
        scores = self.values[:, 1]
        for entity in self._entities():
            start, end = int(starts[entity.start]), int(ends[entity.end - 1])
            own = scores[entity.start : entity.end]
            known = own[~np.isnan(own)]
            yield {
                "type": entity.type,
                "text": self._part(entity, start, end),
                "start": start,
                "end": end,
                "score": round(float(known.mean()), 6) if len(known) else None,
            }

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"words": list(self.word_dicts()), "entities": list(self.entity_dicts())}

    def _part(self, entity: Entity, start: int, end: int) -> str:
        if isinstance(self.words, TextWords):
            return self.words.text[start:end]
        return " ".join(self.words[entity.start : entity.end])

    def _entities(self) -> Sequence[Entity]:
        if self.scheme == "plain":
            return ()
        try:
            return entities([self.labels[kind] for kind in self.values[:, 0].astype(int).tolist()])
        except ValueError:
            # A scheme that a folder names, and labels that are not of it.
            return ()
