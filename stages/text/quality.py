"""Rules that refuse documents: Gopher's, C4's, and shares of symbols and digits. All are optional.

Gopher: Rae et al., 2021, arXiv:2112.11446, appendix A1.1 and table A1. C4: Raffel et al., 2020,
arXiv:1910.10683, section 2.2. Both were made for English web pages: words are what stands between
spaces, and the numbers fit English. Texts are cleaned ones (`cleaning.clean`); a line is what that
leaves between two newlines, a whole paragraph where lines were unwrapped.

Of a text longer than `JUDGED_BYTES` only that much from its beginning is judged, so that memory
stays flat; C4's rules about lines act on all of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stages.text.buffers import Bytes, Offsets, text_array, text_buffer
from stages.text.examples import EXAMPLES_A_REASON, Example
from stages.text.line_rules import kept_lines
from stages.text.measures import LONGEST_STOP_WORD, Measures
from stages.text.segments import blocks, rows_with

BLOCK_BYTES = 256_000
"""Text judged at a time: what the processor's caches hold is done twice as fast."""

JUDGED_BYTES = 4_000_000

ENGLISH_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


@dataclass(frozen=True)
class QualityOptions:
    """Limits a text must keep to; null (or empty) is off.

    The config group `corpus.quality` has the same names and says what each means.
    """

    min_words: int | None = None
    max_words: int | None = None
    min_mean_word_length: float | None = None
    max_mean_word_length: float | None = None
    max_symbol_word_ratio: float | None = None
    max_bullet_lines: float | None = None
    max_ellipsis_lines: float | None = None
    min_letter_words: float | None = None
    min_stop_words: int | None = None
    stop_words: tuple[str, ...] = ENGLISH_STOP_WORDS
    max_symbols: float | None = None
    max_digits: float | None = None
    max_repeated_lines: float | None = None
    max_repeated_line_characters: float | None = None
    max_repeated_paragraphs: float | None = None
    max_repeated_paragraph_characters: float | None = None
    max_top_2grams: float | None = None
    max_top_3grams: float | None = None
    max_top_4grams: float | None = None
    max_repeated_5grams: float | None = None
    max_repeated_6grams: float | None = None
    max_repeated_7grams: float | None = None
    max_repeated_8grams: float | None = None
    max_repeated_9grams: float | None = None
    max_repeated_10grams: float | None = None
    refused_phrases: tuple[str, ...] = ()
    drop_unterminated_lines: bool = False
    min_line_words: int | None = None
    dropped_line_phrases: tuple[str, ...] = ()
    min_sentences: int | None = None


# (option, figure, what is said of a text that breaks it), cheap ones first: the first rule that a
# text breaks is its reason. Some figures have the names of `measures.Measures`.
_LIMITS: tuple[tuple[str, str, str], ...] = (
    ("min_sentences", "sentences", "{:.0f} sentences"),
    ("min_words", "words", "{:.0f} words"),
    ("max_words", "words", "{:.0f} words"),
    ("min_mean_word_length", "mean_word_length", "{:.2f} characters a word"),
    ("max_mean_word_length", "mean_word_length", "{:.2f} characters a word"),
    ("max_symbols", "symbols", "{:.3f} of the characters are symbols"),
    ("max_digits", "digits", "{:.3f} of the characters are digits"),
    ("max_symbol_word_ratio", "symbol_word_ratio", "{:.3f} hash signs or ellipses a word"),
    ("max_bullet_lines", "bullet_lines", "{:.3f} of the lines start with a bullet"),
    ("max_ellipsis_lines", "ellipsis_lines", "{:.3f} of the lines end with an ellipsis"),
    ("min_letter_words", "letter_words", "{:.3f} of the words hold a letter"),
    ("min_stop_words", "stop_words", "{:.0f} different stop words"),
    ("max_repeated_lines", "repeated_lines", "{:.3f} of the lines"),
    ("max_repeated_line_characters", "repeated_line_characters", "{:.3f} of the characters"),
    ("max_repeated_paragraphs", "repeated_paragraphs", "{:.3f} of the paragraphs"),
    (
        "max_repeated_paragraph_characters",
        "repeated_paragraph_characters",
        "{:.3f} of the characters",
    ),
    *((f"max_top_{n}grams", f"top_{n}grams", "{:.3f} of the characters") for n in (2, 3, 4)),
    *(
        (f"max_repeated_{n}grams", f"repeated_{n}grams", "{:.3f} of the characters")
        for n in (5, 6, 7, 8, 9, 10)
    ),
)

RULES = ("refused_phrases", *(option for option, _, _ in _LIMITS))
"""Names of the rules that refuse; a refused text is counted under `reason_of` its rule."""


@dataclass(frozen=True)
class Filtered:
    """What the rules left.

    Attributes:
        texts: string [n], all texts, refused ones too; without the lines that were dropped.
        keep: bool [n].
        reasons: reason -> refused texts.
        counts: unterminated_lines, short_lines, phrase_lines: dropped lines.
        examples: a few of each reason, in order of their rows.
    """

    texts: pa.Array
    keep: pa.BooleanArray
    reasons: dict[str, int]
    counts: dict[str, int]
    examples: list[Example]


def reason_of(rule: str) -> str:
    """What a text that a rule refuses is counted under: `quality_max_digits`."""
    return f"quality_{rule}"


def filter_documents(texts: pa.Array, options: QualityOptions) -> Filtered:
    """Drop lines, refuse texts. The result of a text does not depend on its neighbours.

    Args:
        texts: string [n], cleaned (`cleaning.clean`).
        options: what is on.

    Raises:
        ValueError: a text is null, the column is not of strings, or a stop word is too long.
    """
    for word in options.stop_words:
        if len(word.encode()) > LONGEST_STOP_WORD:
            raise ValueError(f"stop word {word!r} is longer than {LONGEST_STOP_WORD} bytes")
    data, offsets = text_buffer(texts)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    examples: list[Example] = []
    if options == _off(options):
        return Filtered(texts, pa.array(np.ones(len(texts), np.bool_)), {}, {}, [])
    parts, keep = [], np.ones(len(texts), np.bool_)
    for first, last in blocks(offsets, BLOCK_BYTES):
        block = data[offsets[first] : offsets[last]]
        bounds = offsets[first : last + 1] - offsets[first]
        refused = _phrases(block, bounds, options)
        block, bounds = _lines(block, bounds, options, counts)
        parts.append(text_array(block, bounds))
        refused = _limits(*_judged(block, bounds), options, refused)
        for row in sorted(refused):
            rule, detail = refused[row]
            keep[first + row] = False
            reasons[reason_of(rule)] += 1
            if reasons[reason_of(rule)] <= EXAMPLES_A_REASON:
                examples.append(Example(first + row, reason_of(rule), detail))
    joined = pa.concat_arrays(parts) if parts else texts
    return Filtered(joined, pa.array(keep), dict(reasons), dict(+counts), examples)


Refused = dict[int, tuple[str, str]]
"""Row in the block -> (rule, detail)."""


def _off(options: QualityOptions) -> QualityOptions:
    return QualityOptions(stop_words=options.stop_words)


def _phrases(data: Bytes, offsets: Offsets, options: QualityOptions) -> Refused:
    refused: Refused = {}
    if options.refused_phrases:
        lower = data.tobytes().lower()
        for phrase in options.refused_phrases:
            for row in rows_with(lower, phrase.encode().lower(), offsets):
                refused.setdefault(row, ("refused_phrases", f"holds {phrase!r}"))
    return refused


def _lines(
    data: Bytes, offsets: Offsets, options: QualityOptions, counts: Counter[str]
) -> tuple[Bytes, Offsets]:
    phrases = [phrase.encode().lower() for phrase in options.dropped_line_phrases]
    if not (options.drop_unterminated_lines or options.min_line_words or phrases):
        return data, offsets
    return kept_lines(
        data,
        offsets,
        terminated=options.drop_unterminated_lines,
        min_words=options.min_line_words,
        phrases=phrases,
        counts=counts,
    )


def _judged(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """The buffer with longer texts (each in a block of its own) cut at a character."""
    if len(data) <= JUDGED_BYTES or len(offsets) != 2:
        return data, offsets
    end = JUDGED_BYTES
    while data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end], np.array([0, end], np.int64)


def _limits(data: Bytes, offsets: Offsets, options: QualityOptions, refused: Refused) -> Refused:
    limits = {option: getattr(options, option) for option, _, _ in _LIMITS}
    asked = [option for option, limit in limits.items() if limit is not None]
    measures = Measures(data, offsets, options.stop_words, asked)
    open_ = np.ones(len(offsets) - 1, np.bool_)
    open_[list(refused)] = False
    for option, figure, detail in _LIMITS:
        limit = limits[option]
        if limit is None or not open_.any():
            continue
        value = measures.figure(figure)
        least = option.startswith("min_")
        broken = np.flatnonzero(open_ & ((value < limit) if least else (value > limit)))
        for row in broken.tolist():
            said = f"{detail.format(value[row])}, at {'least' if least else 'most'} {limit:g}"
            refused[row] = (option, f"{said} (corpus.quality.{option})")
        open_[broken] = False
    return refused
