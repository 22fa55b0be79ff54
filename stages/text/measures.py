"""What the rules of `quality` look at: one figure a text, made only when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stages.text import character_kinds, repetition
from stages.text.buffers import Bytes, Offsets, text_array
from stages.text.segments import Counts, Flags, Hasher, Positions, lines, paragraphs, words
from stages.text.sentences import sentence_ends

Figures = npt.NDArray[np.float64]

LONGEST_STOP_WORD = 8
"""Bytes: what fits a 64-bit word."""

_SPACE, _NEWLINE = 32, 10
_BULLETS_ONE = np.isin(np.arange(256), list(b"-*"))
_BULLETS = np.array([int.from_bytes(mark.encode()) for mark in "•‣⁃▪●◦▶■□–"], np.int64)


class Measures:
    """Figures of the texts in a buffer.

    Args:
        data: uint8, cleaned texts end to end.
        offsets: n + 1, where each begins.
        stop_words: of the figure `stop_words`, in lower case.
        rules: names of the rules that will be asked, so that n-grams are counted in one go.
    """

    def __init__(
        self, data: Bytes, offsets: Offsets, stop_words: Sequence[str], rules: Collection[str]
    ) -> None:
        self._data = data
        self._offsets = offsets
        self._stop_words = stop_words
        self._rules = rules
        self._texts = len(offsets) - 1

    def figure(self, name: str) -> Figures:
        """float64 [n]; names are those of `quality`'s table."""
        if name.endswith("grams"):
            return self._ngrams[int(name.removesuffix("grams").rpartition("_")[2])]
        found: Figures = getattr(self, name)
        return found

    @cached_property
    def words(self) -> Figures:
        """Words a text."""
        return self._number(self._words[0])

    @cached_property
    def mean_word_length(self) -> Figures:
        """Characters a word; 0 where there is none."""
        return repetition.share(self._characters, self.words)

    @cached_property
    def symbols(self) -> Figures:
        """Share of characters (white space left out) that are symbols."""
        return self._share_of(character_kinds.SYMBOL)

    @cached_property
    def digits(self) -> Figures:
        """Share of characters (white space left out) that are digits."""
        return self._share_of(character_kinds.DIGIT)

    @cached_property
    def symbol_word_ratio(self) -> Figures:
        """Hash signs, or ellipses ("...", "…") if they are more, a word."""
        data = self._data
        hashes = self._number(np.flatnonzero(data == ord("#")))
        at = np.flatnonzero(data == 0xE2)
        at = at[(data[at + 1] == 0x80) & (data[at + 2] == 0xA6)]
        ellipses = self._number(np.sort(np.concatenate((at, self._three_dots))))
        return repetition.share(np.maximum(hashes, ellipses), self.words)

    @cached_property
    def bullet_lines(self) -> Figures:
        """Share of lines that start with a bullet."""
        starts, ends = self._lines
        bullet = _BULLETS_ONE[self._data[starts]]
        at = np.flatnonzero(ends - starts >= 3)
        bullet[at] |= np.isin(self._three_bytes(starts[at]), _BULLETS)
        return self._share_of_lines(bullet)

    @cached_property
    def ellipsis_lines(self) -> Figures:
        """Share of lines that end with an ellipsis."""
        starts, ends = self._lines
        ellipsis = np.zeros(len(starts), np.bool_)
        at = np.flatnonzero(ends - starts >= 3)
        ellipsis[at] = np.isin(self._three_bytes(ends[at] - 3), [0x2E2E2E, 0xE280A6])
        return self._share_of_lines(ellipsis)

    @cached_property
    def letter_words(self) -> Figures:
        """Share of words that hold a letter."""
        starts, ends = self._words
        letters = np.zeros(len(self._data) + 1, np.int32)
        np.cumsum(self._kinds == character_kinds.LETTER, out=letters[1:])
        return repetition.share(self._number(starts[letters[ends] > letters[starts]]), self.words)

    @cached_property
    def stop_words(self) -> Figures:
        """How many different stop words a text holds."""
        starts, ends = self._words
        known = [word.encode() for word in dict.fromkeys(self._stop_words)]
        lower = np.frombuffer(self._data.tobytes().lower(), np.uint8)
        number = np.zeros(self._texts, np.float64)
        for length in {len(word) for word in known}:
            at = starts[ends - starts == length]
            code = np.zeros(len(at), np.uint64)
            for i in range(length):
                code |= lower[at + i].astype(np.uint64) << np.uint64(8 * i)
            for word in known:
                if len(word) == length:
                    hit = code == np.uint64(int.from_bytes(word, "little"))
                    number += self._number(at[hit]) > 0
        return number

    @cached_property
    def sentences(self) -> Figures:
        """Sentences a text, by ICU's rules."""
        ends = sentence_ends(text_array(self._data, self._offsets))
        return np.asarray(ends.value_lengths().to_numpy(), np.float64)

    @property
    def repeated_lines(self) -> Figures:
        """Share of lines that came before."""
        return self._repeated_lines.stretches

    @property
    def repeated_line_characters(self) -> Figures:
        """Share of characters that are in lines that came before."""
        return self._repeated_lines.characters

    @property
    def repeated_paragraphs(self) -> Figures:
        """Share of paragraphs that came before."""
        return self._repeated_paragraphs.stretches

    @property
    def repeated_paragraph_characters(self) -> Figures:
        """Share of characters that are in paragraphs that came before."""
        return self._repeated_paragraphs.characters

    @cached_property
    def _repeated_lines(self) -> repetition.Repeated:
        return repetition.repeated(self._hasher, self._offsets, *self._lines, self._before)

    @cached_property
    def _repeated_paragraphs(self) -> repetition.Repeated:
        stretches = paragraphs(self._data, self._offsets)
        return repetition.repeated(self._hasher, self._offsets, *stretches, self._before)

    @cached_property
    def _ngrams(self) -> dict[int, Figures]:
        top = tuple(n for n in (2, 3, 4) if f"max_top_{n}grams" in self._rules)
        again = tuple(n for n in range(5, 11) if f"max_repeated_{n}grams" in self._rules)
        return repetition.ngram_shares(
            self._data, self._hasher, self._offsets, self._before, top, again
        )

    @cached_property
    def _hasher(self) -> Hasher:
        return Hasher(self._data)

    @cached_property
    def _words(self) -> tuple[Positions, Positions]:
        return words(self._data, self._offsets)

    @cached_property
    def _lines(self) -> tuple[Positions, Positions]:
        return lines(self._data, self._offsets)

    @cached_property
    def _kinds(self) -> character_kinds.Kinds:
        return character_kinds.kinds(self._data)

    @cached_property
    def _characters(self) -> Figures:
        """Characters a text, white space left out."""
        blank = self._number(np.flatnonzero(self._kinds == character_kinds.BLANK))
        later = self._number(np.flatnonzero(self._kinds == character_kinds.CONTINUATION))
        return np.diff(self._offsets) - blank - later

    @cached_property
    def _before(self) -> Counts:
        """[bytes + 1] how many characters stand before each byte."""
        found = np.zeros(len(self._data) + 1, np.int32)
        np.cumsum(self._data.view(np.int8) >= -0x40, out=found[1:], dtype=np.int32)
        return found

    @cached_property
    def _three_dots(self) -> Positions:
        """Where each three dots of a run of them end."""
        if b"..." not in self._data.tobytes():
            return np.zeros(0, np.int64)
        dots = np.flatnonzero(self._data == ord("."))
        first = np.append(True, (dots[1:] != dots[:-1] + 1) | np.isin(dots[1:], self._offsets))
        start = np.flatnonzero(first[: len(dots)])
        within = np.arange(len(dots)) - np.repeat(start, np.diff(np.append(start, len(dots))))
        return np.asarray(dots[within % 3 == 2])

    def _number(self, at: Positions) -> Figures:
        """How many of these rising positions are in each text."""
        return np.diff(np.searchsorted(at, self._offsets)).astype(np.float64)

    def _share_of(self, kind: int) -> Figures:
        return repetition.share(self._number(np.flatnonzero(self._kinds == kind)), self._characters)

    def _share_of_lines(self, chosen: Flags) -> Figures:
        starts = self._lines[0]
        return repetition.share(self._number(starts[chosen]), self._number(starts))

    def _three_bytes(self, at: Positions) -> Positions:
        one, two, three = (self._data[at + i].astype(np.int64) for i in range(3))
        return np.asarray(one << 16 | two << 8 | three)
