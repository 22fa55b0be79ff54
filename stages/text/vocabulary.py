"""A WordPiece vocabulary from counts of words: deterministic, in 64 bits.

The algorithm is the one of `tokenizers`' WordPieceTrainer: byte-pair merging (Sennrich et al. 2016,
arXiv:1508.07909) over characters, where a character that does not begin a word is written "##c".
The most frequent pair of neighbours becomes one symbol, until the vocabulary is full. Ours takes
pairs in the total order (-count, left, right), so the result depends on the counts alone, and takes
words with counts, so that a corpus is counted once and in parallel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from stages.text.buffers import text_buffer
from stages.text.merging import Merger, Spelling
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.wordpiece import CONTINUATION, UNKNOWN_TOKEN
from stages.text.words import Int64Array

HUGGINGFACE_WORDS = 20_000_000
"""Words fed to `tokenizers`' trainer at most; counts are scaled down to it."""

_COVERAGE_WORDS = 10_000


class VocabularyTooSmall(ValueError):  # noqa: N818 - reads as a sentence
    """Special tokens and alphabet do not fit into the vocabulary that was asked for."""

    def __init__(self, size: int, specials: int, symbols: int, limit_alphabet: int) -> None:
        self.needed = specials + symbols
        super().__init__(
            f"vocab.size={size} is too small: {specials} special or required tokens and {symbols} "
            f"single characters (at a word's beginning and inside) need {self.needed}. Raise "
            f"vocab.size to {self.needed} or more, or lower vocab.limit_alphabet (now "
            f"{limit_alphabet})"
        )


@dataclass(frozen=True)
class TrainingReport:
    """What training a vocabulary did. "Mass" counts occurrences, not distinct things.

    Attributes:
        distinct_words, word_mass: what came in.
        merges: merges made; fewer than asked for when no pair reached min_frequency.
        last_merge_count: how often the last merged pair was seen; 0 without merges.
        alphabet: characters kept.
        dropped_characters: characters not kept, most frequent first.
        character_mass, dropped_character_mass: characters of all words, and those dropped.
        dropped_words, dropped_word_mass: words that hold a dropped character: always [UNK].
        long_words, long_word_mass: words longer than max_word_characters: always [UNK].
    """

    distinct_words: int
    word_mass: int
    alphabet: int
    dropped_characters: tuple[str, ...]
    character_mass: int
    dropped_character_mass: int
    dropped_words: int
    dropped_word_mass: int
    long_words: int
    long_word_mass: int
    merges: int = 0
    last_merge_count: int = 0


@dataclass(frozen=True)
class WordCoverage:
    """How a vocabulary spells words, weighted by how often they occur.

    Attributes:
        words: occurrences measured.
        fertility: pieces a word; a word that becomes [UNK] has one.
        unknown_share: of words that become [UNK].
        single_piece_share: of words that are one piece and known.
    """

    words: int
    fertility: float
    unknown_share: float
    single_piece_share: float


def train(
    words: pa.StringArray,
    counts: Int64Array,
    size: int,
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    required: Sequence[str] = (),
    limit_alphabet: int = 1000,
    min_frequency: int = 2,
    max_word_characters: int = 100,
) -> tuple[list[str], TrainingReport]:
    """Train a WordPiece vocabulary.

    Words that can only become [UNK] (longer than `max_word_characters`, or with a character outside
    of the alphabet) take no part in merging: `tokenizers` merges what stands around the dropped
    character, which no text ever asks for.

    Args:
        words: distinct words, in any order.
        counts: int64 [n], how often each occurs.
        size: entries of the vocabulary, special tokens included. It ends smaller when no pair
            occurs `min_frequency` times any more.
        special_tokens: first in the vocabulary, in this order.
        required: entries that follow them. Such a word is never split, so it takes no part in
            merging; its characters count for the alphabet.
        limit_alphabet: characters kept, the most frequent; ties by code point.
        min_frequency: pairs seen less often are not merged.
        max_word_characters: as the tokeniser's.

    Returns:
        The tokens by id: special and required tokens, characters by code point, "##" characters by
        code point, then merges in the order they were made.

    Raises:
        VocabularyTooSmall: special and required tokens and characters alone need more than `size`.
    """
    spelling, report = _spell(words, counts, limit_alphabet, max_word_characters, required)
    first = [*special_tokens, *required]
    given = set(first)
    symbols = [symbol for symbol in spelling.symbols if symbol not in given]
    if len(first) + len(symbols) > size:
        raise VocabularyTooSmall(size, len(first), len(symbols), limit_alphabet)
    merger = Merger(spelling, [*first, *symbols])
    merge_counts = merger.run(size, min_frequency)
    last = merge_counts[-1] if merge_counts else 0
    return merger.tokens, replace(report, merges=len(merge_counts), last_merge_count=last)


def _spell(
    words: pa.StringArray,
    counts: Int64Array,
    limit_alphabet: int,
    max_word_characters: int,
    required: Sequence[str],
) -> tuple[Spelling, TrainingReport]:
    """Choose the alphabet and write the words in it. The report still lacks the merges."""
    if counts.size and counts.min() < 1:
        raise ValueError("a word with a count below 1: leave it out")
    length = pc.utf8_length(words).to_numpy().astype(np.int64)
    is_long = length > max_word_characters
    report = {"distinct_words": len(words), "word_mass": int(counts.sum())}
    report |= {"long_words": int(is_long.sum()), "long_word_mass": int(counts[is_long].sum())}
    words = words.filter(pa.array(~is_long))
    counts, length = counts[~is_long], length[~is_long]

    text = text_buffer(words)[0].tobytes().decode()
    characters = np.frombuffer(text.encode("utf-32-le"), "<u4")
    owner = np.repeat(np.arange(len(words), dtype=np.int32), length)
    weight = counts[owner]
    mass = np.zeros(sys.maxunicode + 1, np.int64)
    np.add.at(mass, characters, weight)
    seen = np.flatnonzero(mass)
    by_mass = seen[np.lexsort((seen, -mass[seen]))]
    alphabet, dropped = np.sort(by_mass[:limit_alphabet]), by_mass[limit_alphabet:]

    symbol_of = np.full(sys.maxunicode + 1, -1, np.int32)
    symbol_of[alphabet] = np.arange(alphabet.size)
    symbol = symbol_of[characters]
    is_dropped_word = np.bincount(owner[symbol < 0], minlength=len(words)) > 0
    begins = np.diff(owner, prepend=-1) > 0
    is_kept = ~is_dropped_word[owner]
    inside = np.flatnonzero(np.bincount(symbol[is_kept & ~begins], minlength=alphabet.size))
    is_required = pc.is_in(words, pa.array(required, pa.string())).to_numpy(zero_copy_only=False)
    is_kept &= ~is_required[owner]
    symbol, weight, begins = symbol[is_kept], weight[is_kept], begins[is_kept]
    inside_symbol = np.full(alphabet.size, -1, np.int32)
    inside_symbol[inside] = alphabet.size + np.arange(inside.size)
    symbol[~begins] = inside_symbol[symbol[~begins]]

    letters = [chr(c) for c in alphabet]
    symbols = letters + [CONTINUATION + letters[i] for i in inside]
    return Spelling(symbols, symbol, begins, weight), TrainingReport(
        **report,
        alphabet=len(letters),
        dropped_characters=tuple(chr(c) for c in dropped),
        character_mass=int(mass.sum()),
        dropped_character_mass=int(mass[dropped].sum()),
        dropped_words=int(is_dropped_word.sum()),
        dropped_word_mass=int(counts[is_dropped_word].sum()),
    )


def train_huggingface(
    words: pa.StringArray,
    counts: Int64Array,
    size: int,
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    limit_alphabet: int = 1000,
    min_frequency: int = 2,
) -> list[str]:
    """Train with `tokenizers`' WordPieceTrainer, for comparison. Two runs may differ.

    That trainer takes no counts, so each word is fed as often as it occurs. Above
    HUGGINGFACE_WORDS occurrences all counts (and `min_frequency`) are divided by one number, rare
    words kept once; its 32-bit counts of pairs are then safe too.
    """
    scale = max(1, -(-int(counts.sum()) // HUGGINGFACE_WORDS))
    trainer = WordPieceTrainer(
        vocab_size=size,
        special_tokens=list(special_tokens),
        limit_alphabet=limit_alphabet,
        min_frequency=max(1, -(-min_frequency // scale)),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(WordPiece(unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words, counts, scale), trainer)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [token for token, _ in by_id]


def _repeated(words: pa.StringArray, counts: Int64Array, scale: int) -> Iterator[str]:
    """Texts in which each word stands as often as its scaled count."""
    for word, count in zip(words.to_pylist(), np.maximum(counts // scale, 1).tolist(), strict=True):
        for first in range(0, count, 10_000):
            yield " ".join([word] * min(10_000, count - first))


def word_coverage(
    vocab: Sequence[str],
    words: pa.StringArray,
    counts: Int64Array,
    max_word_characters: int = 100,
) -> WordCoverage:
    """How a vocabulary spells words (already normalised, as `count_words` gives them)."""
    ids = {token: index for index, token in enumerate(vocab)}
    model = WordPiece(ids, unk_token=UNKNOWN_TOKEN, max_input_chars_per_word=max_word_characters)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    pieces = np.zeros(len(words), np.int64)
    is_unknown = np.zeros(len(words), bool)
    for first in range(0, len(words), _COVERAGE_WORDS):
        group = words[first : first + _COVERAGE_WORDS].to_pylist()
        encoding = tokenizer.encode(" ".join(group), add_special_tokens=False)
        owner = np.array(encoding.word_ids, np.int64)
        pieces[first : first + len(group)] = np.bincount(owner, minlength=len(group))
        is_unknown[first + owner[np.array(encoding.ids) == ids[UNKNOWN_TOKEN]]] = True
    total = int(counts.sum())
    if total == 0:
        return WordCoverage(0, 0.0, 0.0, 0.0)
    return WordCoverage(
        words=total,
        fertility=int((pieces * counts).sum()) / total,
        unknown_share=int(counts[is_unknown].sum()) / total,
        single_piece_share=int(counts[(pieces == 1) & ~is_unknown].sum()) / total,
    )
