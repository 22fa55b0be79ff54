"""A large corpus out of a small one: no two documents equal, new words at a real corpus's rate.

Copy n of the base text differs from the others in its rare words. Of all words (runs of four
ASCII letters or more) the rarest are respelled in every copy, as many as `new_words_per_mb` says:
the first half of one rare word and the second half of another, both drawn by a generator that is
keyed by the number of the copy. So the frequent words stay as frequent as they are in real text,
and rare ones keep appearing, as they do there: prepared text can be no faster than its distinct
words. A first sentence ("Copy 7, document 12.") makes sure that no two documents are equal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stages.text.random import Stream

NEW_WORDS_PER_MB = 2300
"""What a sample of English still shows after 11 MB of it."""

FILE_BYTES = 16_000_000

WORD = re.compile(r"[A-Za-z]{4,}")


@dataclass(frozen=True)
class _Template:
    """A document cut at its rare words.

    Attributes:
        fixed: JSON-escaped text between rare words, one piece more than there are of these.
        rare: which words stand between.
        capital: whether each has a capital letter first.
        size: bytes of the fixed text, before it was escaped.
    """

    fixed: list[str]
    rare: list[int]
    capital: list[bool]
    size: int


@dataclass(frozen=True)
class Written:
    """What became of `Variation.write`: bytes of raw text and documents."""

    bytes: int
    documents: int


class Variation:
    """Copies of a text, each a function of the text, the seed and its own number alone.

    Args:
        texts: the base.
        new_words_per_mb: distinct words that each MB of a copy adds, about.
    """

    def __init__(
        self, texts: Sequence[str], new_words_per_mb: float = NEW_WORDS_PER_MB, seed: int = 0
    ) -> None:
        self._seed = seed
        self.bytes = sum(len(text.encode()) for text in texts)
        counts = Counter(word.lower() for text in texts for word in WORD.findall(text))
        self.counts = counts
        # Rarest first; equally rare ones in an order that has nothing to do with their letters.
        order = sorted(counts, key=lambda word: (counts[word], _hash(word)))
        self.respelled = sorted(order[: round(new_words_per_mb * self.bytes / 1e6)])
        self._index = {word: i for i, word in enumerate(self.respelled)}
        self._templates = [self._template(text) for text in texts]

    def _template(self, text: str) -> _Template:
        pieces: list[str] = []
        rare: list[int] = []
        capital: list[bool] = []
        done = 0
        for match in WORD.finditer(text):
            index = self._index.get(match.group().lower())
            if index is not None:
                pieces.append(text[done : match.start()])
                rare.append(index)
                capital.append(match.group()[0].isupper())
                done = match.end()
        pieces.append(text[done:])
        size = sum(len(piece.encode()) for piece in pieces)
        return _Template([_escaped(piece) for piece in pieces], rare, capital, size)

    def spellings(self, copy: int) -> list[str]:
        """What stands for each of `respelled` in a copy; copy 0 has the words themselves."""
        if copy == 0:
            return self.respelled
        stream = Stream(self._seed, "bench", copy)
        first, second = self._order(stream, "first"), self._order(stream, "second")
        heads = [word[: (len(word) + 1) // 2] for word in self.respelled]
        tails = [word[(len(word) + 1) // 2 :] for word in self.respelled]
        return [heads[i] + tails[j] for i, j in zip(first, second, strict=True)]

    def _order(self, stream: Stream, which: str) -> list[int]:
        order: npt.NDArray[np.int64] = stream.child(which).permutation(len(self.respelled))
        return [int(i) for i in order]

    def lines(self, copy: int) -> Iterator[tuple[str, int]]:
        """The documents of a copy as JSON lines without a newline, and their bytes of text."""
        plain = self.spellings(copy)
        capitals = [word.capitalize() for word in plain]
        for number, template in enumerate(self._templates):
            opening = f"Copy {copy}, document {number}."
            out = [f'{{"id": "{copy}-{number}", "text": "{opening}\\n\\n']
            size = template.size + len(opening) + 2
            for fixed, index, capital in zip(
                template.fixed, template.rare, template.capital, strict=False
            ):
                word = capitals[index] if capital else plain[index]
                size += len(word)
                out += (fixed, word)
            out += (template.fixed[-1], '"}')
            yield "".join(out), size

    def write(self, folder: Path, wanted_bytes: float, first_copy: int = 0) -> Written:
        """Write copies into JSON-lines files of `folder` until there is so much text."""
        folder.mkdir(parents=True, exist_ok=True)
        size = documents = in_file = 0
        file = None
        try:
            for copy in range(first_copy, first_copy + 1_000_000):
                for line, text_bytes in self.lines(copy):
                    if file is None or in_file >= FILE_BYTES:
                        if file is not None:
                            file.close()
                        name = folder / f"{size // FILE_BYTES:05d}-{documents:08d}.jsonl"
                        file = name.open("w", encoding="utf-8")
                        in_file = 0
                    file.write(line + "\n")
                    size += text_bytes
                    in_file += text_bytes
                    documents += 1
                    if size >= wanted_bytes:
                        return Written(size, documents)
        finally:
            if file is not None:
                file.close()
        raise ValueError(f"{wanted_bytes:g} bytes are more than a million copies of the text")


def _hash(word: str) -> bytes:
    return hashlib.blake2b(word.encode(), digest_size=8).digest()


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
