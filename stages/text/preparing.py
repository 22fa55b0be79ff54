"""From raw texts to the documents that stay: all steps of cleaning and refusing, in order.

Boilerplate goes before lines are joined, for its lines are known by their form. Lengths are asked
again where quality rules dropped lines. Languages come last: they cost most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.text.boilerplate import strip_boilerplate
from stages.text.cleaning import CleaningOptions, clean
from stages.text.examples import EXAMPLES_A_REASON, Example
from stages.text.language import LanguageOptions, accept_languages
from stages.text.quality import QualityOptions, filter_documents


@dataclass(frozen=True)
class PreparingOptions:
    """What is done to raw texts, and which stay.

    Attributes:
        boilerplate: take out Project Gutenberg's headers and footers.
        cleaning: characters, lines, white space.
        min_characters: shorter texts are refused (too_short).
        max_characters: longer texts are refused (too_long); null: none is.
        quality: rules of Gopher, C4 and others.
        languages: which are kept.
    """

    boilerplate: bool = True
    cleaning: CleaningOptions = field(default_factory=CleaningOptions)
    min_characters: int = 1
    max_characters: int | None = None
    quality: QualityOptions = field(default_factory=QualityOptions)
    languages: LanguageOptions = field(default_factory=LanguageOptions)


@dataclass(frozen=True)
class Prepared:
    """The texts that stay, and what became of the others.

    Attributes:
        texts: string [kept], cleaned.
        keep: bool [n], which of the given texts they are.
        reasons: reason -> texts that do not stay: n = kept + the sum of these.
        counts: how often each step acted (`cleaning.Cleaned`, `boilerplate.Stripped`,
            `quality.Filtered`).
        languages: language -> texts found to be in it; empty where none was asked for.
        examples: a few of each reason; `row` counts the given texts.
    """

    texts: pa.Array
    keep: pa.BooleanArray
    reasons: dict[str, int]
    counts: dict[str, int]
    languages: dict[str, int]
    examples: list[Example]


def prepare_documents(texts: pa.Array, options: PreparingOptions) -> Prepared:
    """Clean a column of raw texts and keep what the rules let pass.

    The result of a text does not depend on its neighbours.

    Raises:
        ValueError: a text is null, the column is not of strings, or an option is wrong.
        language.MissingLibraryError: languages are asked for, and the extra is not installed.
    """
    counts: Counter[str] = Counter()
    raw = texts
    if options.boilerplate:
        stripped = strip_boilerplate(texts)
        raw = stripped.texts
        counts.update(stripped.counts)
    cleaned = clean(raw, options.cleaning)
    counts.update(cleaned.counts)
    left = _Left(cleaned.texts)
    left.ask_lengths(options)
    rules = filter_documents(left.texts, options.quality)
    counts.update(rules.counts)
    left.texts = rules.texts
    left.drop(rules.keep, rules.reasons, rules.examples)
    if rules.counts:
        left.ask_lengths(options)
    accepted = accept_languages(left.texts, options.languages)
    left.drop(accepted.keep, accepted.reasons, accepted.examples)
    keep = np.zeros(len(texts), np.bool_)
    keep[left.rows] = True
    return Prepared(
        left.texts,
        pa.array(keep),
        dict(left.reasons),
        dict(counts),
        accepted.found,
        left.examples,
    )


class _Left:
    """The texts that are left so far, and where they stood."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts
        self.rows: npt.NDArray[np.int64] = np.arange(len(texts))
        self.reasons: Counter[str] = Counter()
        self.examples: list[Example] = []

    def drop(
        self, keep: pa.BooleanArray, reasons: Mapping[str, int], examples: list[Example]
    ) -> None:
        """Leave out what is not kept; rows of `examples` count the texts left until now."""
        for example in examples:
            if sum(e.reason == example.reason for e in self.examples) < EXAMPLES_A_REASON:
                row = int(self.rows[example.row])
                self.examples.append(Example(row, example.reason, example.detail))
        self.reasons.update({reason: n for reason, n in reasons.items() if n})
        if sum(reasons.values()):
            self.rows = self.rows[keep.to_numpy(zero_copy_only=False)]
            self.texts = self.texts.filter(keep)

    def ask_lengths(self, options: PreparingOptions) -> None:
        """Refuse texts that are empty, too short or too long, in characters."""
        most = options.max_characters
        # A character has one to four bytes, so the characters of most texts need no counting.
        lengths = pc.binary_length(self.texts).to_numpy(zero_copy_only=False).copy()
        close = lengths < 4 * options.min_characters
        if most is not None:
            close |= lengths > most
        lengths[close] = pc.utf8_length(self.texts.filter(pa.array(close))).to_numpy()
        empty = lengths == 0
        short = ~empty & (lengths < options.min_characters)
        long = lengths > most if most is not None else np.zeros(len(lengths), np.bool_)
        reasons = {"empty": empty, "too_short": short, "too_long": long & ~short & ~empty}
        limits = {
            "empty": "",
            "too_short": f", at least {options.min_characters} (corpus.min_characters)",
            "too_long": f", at most {most} (corpus.max_characters)",
        }
        examples = [
            Example(row, reason, f"{lengths[row]} characters{limits[reason]}")
            for reason, flags in reasons.items()
            for row in np.flatnonzero(flags)[:EXAMPLES_A_REASON].tolist()
        ]
        keep = ~(empty | short | long)
        self.drop(
            pa.array(keep), {name: int(flags.sum()) for name, flags in reasons.items()}, examples
        )
