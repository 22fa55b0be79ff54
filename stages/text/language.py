"""Which language a text is in, by the model of py3langid, an extra (`clozeline[languages]`).

The model is naive Bayes over byte n-grams (Lui and Baldwin, 2012). Its figures are added up here in
float64 and in a fixed order, because the library's own float32 product differs in its last bits
between processors, and a language decides whether a document stays.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.text.buffers import text_buffer
from stages.text.examples import EXAMPLES_A_REASON, Example

BEGINNING_BYTES, MIDDLE_BYTES = 1_000, 500
"""What is looked at of a longer text: a title or a licence may be in another language."""

MOST_SAMPLED = 4 * (BEGINNING_BYTES + MIDDLE_BYTES)
"""NFC and lower case make a text at most three times as long in UTF-8."""

GROUP = 256
"""Texts that go through the automaton side by side."""


class MissingLibraryError(ImportError):
    """An extra is not installed; the message says how to get it."""


class UnknownLanguageError(ValueError):
    """A language that the model does not know; the message names those that it does."""


class Guess(NamedTuple):
    """A language (ISO 639 code) and its probability; "und" and 0 where nothing tells."""

    language: str
    probability: float


@dataclass(frozen=True)
class LanguageOptions:
    """Which texts stay.

    Attributes:
        languages: ISO 639 codes; empty: all stay, and nothing is looked at.
        min_probability: least probability of the language found.
    """

    languages: tuple[str, ...] = ()
    min_probability: float = 0.5


@dataclass(frozen=True)
class Accepted:
    """Which texts are in one of the languages: bool [n], and what became of the others.

    `reasons` holds other_language and unsure_language; `found` how many texts are in which.
    """

    keep: pa.BooleanArray
    reasons: dict[str, int]
    found: dict[str, int]
    examples: list[Example]


def accept_languages(texts: pa.Array, options: LanguageOptions) -> Accepted:
    """Keep what is in one of the languages. The result of a text does not depend on its neighbours.

    Raises:
        MissingLibraryError: py3langid is not installed.
        UnknownLanguageError: a language the model does not know.
        ValueError: a null text, or a column not of strings.
    """
    if not options.languages:
        return Accepted(pa.array(np.ones(len(texts), np.bool_)), {}, {}, [])
    check_languages(options.languages)
    keep = np.ones(len(texts), np.bool_)
    reasons: Counter[str] = Counter()
    found: Counter[str] = Counter()
    examples = []
    for row, guess in enumerate(identify(texts)):
        found[guess.language] += 1
        if guess.language not in options.languages:
            reason, said = "other_language", ""
        elif guess.probability < options.min_probability:
            reason = "unsure_language"
            said = f", at least {options.min_probability:g} (corpus.min_language_probability)"
        else:
            continue
        keep[row] = False
        reasons[reason] += 1
        if reasons[reason] <= EXAMPLES_A_REASON:
            detail = f"{guess.language} with probability {guess.probability:.3f}{said}"
            examples.append(Example(row, reason, detail))
    return Accepted(pa.array(keep), dict(reasons), dict(found), examples)


def check_languages(languages: Sequence[str]) -> None:
    """Refuse what the model does not know.

    Raises:
        UnknownLanguageError: names the codes that there are.
    """
    known = dict.fromkeys(_model().classes)
    unknown = [language for language in languages if language not in known]
    if unknown:
        raise UnknownLanguageError(
            f"corpus.languages: {', '.join(unknown)} unknown; there are {' '.join(known)}"
        )


def identify(texts: pa.Array) -> list[Guess]:
    """The most probable language of each text, by its beginning and middle.

    Raises:
        MissingLibraryError: py3langid is not installed.
        ValueError: a text is null, or the column is not of strings.
    """
    data, offsets = text_buffer(texts)
    raw = memoryview(data.data)
    samples = [_sample(raw[start:end]) for start, end in pairwise(offsets.tolist())]
    model, guesses = _model(), list[Guess]()
    for first in range(0, len(samples), GROUP):
        guesses += model.guess(samples[first : first + GROUP])
    return guesses


def _sample(text: memoryview) -> str:
    """Beginning and middle; characters cut at their edges are left out."""
    if len(text) <= BEGINNING_BYTES + MIDDLE_BYTES:
        return str(text, "utf-8")
    middle = (len(text) - MIDDLE_BYTES) // 2
    parts = (text[:BEGINNING_BYTES], text[middle : middle + MIDDLE_BYTES])
    return "\n".join(str(part, "utf-8", "ignore") for part in parts)


class _Model:
    """The library's tables, and its decision in arithmetic that is the same everywhere.

    Decides as `LanguageIdentifier(norm_probs=True).classify` does, for many texts side by side.
    """

    def __init__(self, tables: Any) -> None:
        self.classes: list[str] = list(tables.nb_classes)
        # The automaton: the state after a byte, and the feature that a state completes (or -1).
        self._next = np.asarray(tables.tk_nextmove)
        self._rows = np.asarray(tables.tk_row, np.int64) << 8
        self._feature = np.asarray(tables.tk_output, np.int32)
        self._table = np.asarray(tables.nb_ptc, np.float32)
        self._prior = np.asarray(tables.nb_pc, np.float64)

    def guess(self, texts: Sequence[str]) -> list[Guess]:
        """The most probable language of each text."""
        encoded = [
            unicodedata.normalize("NFC", text.lower() if text.isupper() else text).encode()
            for text in texts
        ]
        visited = self._visited(encoded)
        return [
            self._decide(features[features >= 0], len(text))
            for features, text in zip(visited, encoded, strict=True)
        ]

    def _visited(self, encoded: Sequence[bytes]) -> npt.NDArray[np.int32]:
        """The feature that each byte completes, or -1: int32 [texts, longest]."""
        longest = max(map(len, encoded), default=0)
        padded = b"".join(text.ljust(longest, b"\0") for text in encoded)
        columns = np.frombuffer(padded, np.uint8).reshape(len(encoded), longest).T.astype(np.int64)
        features = np.full((longest, len(encoded)), -1, np.int32)
        state = np.zeros(len(encoded), np.int64)
        for i, column in enumerate(columns):
            state = self._next[self._rows[state] + column]
            features[i] = self._feature[state]
        features[np.arange(longest)[:, np.newaxis] >= [len(text) for text in encoded]] = -1
        return features.T

    def _decide(self, features: npt.NDArray[np.int32], size: int) -> Guess:
        if not len(features):
            return Guess("und", 0.0)
        distinct, counts = np.unique(features, return_counts=True)
        scores = self._prior.copy()
        for low in range(0, len(distinct), 128):
            # Rows are added one after the other: the same sum on every processor.
            rows = self._table[distinct[low : low + 128]].astype(np.float64)
            rows *= _LOGARITHMS[counts[low : low + 128], np.newaxis]
            scores += np.add.reduce(rows, axis=0)
        scores = (scores - scores.max()) / math.sqrt(size)
        shares: dict[str, float] = {}
        for language, score in zip(self.classes, scores.tolist(), strict=True):
            # A language may have two classes, one a script.
            shares[language] = shares.get(language, 0.0) + math.exp(score)
        best = max(shares, key=lambda language: shares[language])
        return Guess(best, round(shares[best] / math.fsum(shares.values()), 6))


# Rounded, so that no last bit of a library's logarithm matters.
_LOGARITHMS = np.array([round(math.log1p(n), 9) for n in range(MOST_SAMPLED + 1)])


@lru_cache(maxsize=1)
def _model() -> _Model:
    try:
        from py3langid import langid
    except ImportError:
        raise MissingLibraryError(
            "corpus.languages needs py3langid: pip install 'clozeline[languages]'"
        ) from None
    return _Model(langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE))
