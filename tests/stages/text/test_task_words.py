"""Tagging: every word is scored once, and every tag comes back."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.task_answers import fill_class, stitched
from stages.text.task_pieces import IGNORED, Features, joined
from stages.text.task_words import word_features
from stages.text.tasks.rows import TokenRow
from stages.text.text_words import TextWords
from stages.text.tokenizer_files import write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from tests.oracle import plain_windows
from tests.oracle.real_text import google_vocab, paragraphs
from tests.oracle.task_data import GERMEVAL, WIKIGOLD, token_rows

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), "[", "]"], Normalisation()
)
TAGS = ["B", "I", "O"]
WORDS = st.sampled_from(["a", "ab", "abcde", "x" * 12, "\x00", "\u200b", "", "[SEP]", "a-b", "中"])


@st.composite
def token_row(draw: st.DrawFn) -> TokenRow:
    words = draw(st.lists(WORDS, max_size=30))
    tags = draw(st.lists(st.sampled_from(TAGS), min_size=len(words), max_size=len(words)))
    return TokenRow("", tuple(words), tuple(tags))


@st.composite
def window(draw: st.DrawFn) -> tuple[int, int]:
    room = draw(st.integers(1, 20))
    return room + 2, draw(st.integers(0, room - 1))


@given(st.lists(token_row(), max_size=5), window(), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_tags_come_back(rows: list[TokenRow], size: tuple[int, int], chunk_words: int) -> None:
    max_length, overlap = size
    parts = list(word_features(rows, TOKENIZER, max_length, overlap, TAGS, chunk_words))
    assert all(part.input_ids.lengths.max(initial=0) <= max_length for part in parts)
    assert all(part.own is not None and part.labels is not None for part in parts)
    back = stitched(
        [(part, part.labels) for part in parts if part.labels is not None],
        [len(row.words) for row in rows],
        fill_class(TAGS),
    )
    pieces = [[pieces_of(word) for word in row.words] for row in rows]
    for row, words, found in zip(rows, pieces, back, strict=True):
        assert row.tags is not None
        expected = [t if p else "O" for t, p in zip(row.tags, words, strict=True)]
        assert [TAGS[i] for i in found] == expected
    if parts:
        total = joined(parts).counts
        assert total["rows"] == len(rows)
        assert total["words"] == sum(map(len, pieces))
        assert total["words_without_pieces"] == sum(not p for words in pieces for p in words)
        assert total["windows"] == sum(len(part) for part in parts)
        joined_rows = joined(parts).rows
        assert total["long_rows"] == int((np.bincount(joined_rows) > 1).sum())
    check_windows(pieces, parts, max_length - 2, overlap)


def pieces_of(word: str) -> list[int]:
    return list(TOKENIZER.reference.encode(word, add_special_tokens=False).ids)


def check_windows(
    pieces: list[list[list[int]]], parts: list[Features], room: int, overlap: int
) -> None:
    """Against the plain twin: the ids of each window, and which one scores which word."""
    expected: list[tuple[int, list[int], list[tuple[int, int]]]] = []
    for number, words in enumerate(pieces):
        flat = [i for word in words for i in word]
        firsts = {sum(map(len, words[:w])): w for w in range(len(words)) if words[w]}
        plain = plain_windows.windows(len(flat), room, overlap)
        for k, (start, end) in enumerate(plain):
            scored = [
                (place - start + 1, word)
                for place, word in sorted(firsts.items())
                if plain_windows.scored_by(place, plain) == k
            ]
            expected.append((number, [2, *flat[start:end], 3], scored))
    found = []
    for part in parts:
        assert part.own is not None and part.char_starts is not None
        for i in range(len(part)):
            here = slice(int(part.input_ids.offsets[i]), int(part.input_ids.offsets[i + 1]))
            own = np.flatnonzero(part.own[here]).tolist()
            words = part.char_starts[here]
            scored = [(place, int(words[place])) for place in own]
            found.append((int(part.rows[i]), part.input_ids.values[here].tolist(), scored))
    assert found == expected


@pytest.mark.parametrize("chunk_words", [1, 5, 7, 8, 39])
def test_a_sentence_of_many_chunks(chunk_words: int) -> None:
    words = tuple(["a", "bc", "\x00", "def"] * 10)
    rows = [TokenRow("", words, tuple("BIOO" * 10)), TokenRow("", ("a",), ("B",))]
    whole, parts = (
        joined(word_features(rows, TOKENIZER, 9, 4, TAGS, size)) for size in (100, chunk_words)
    )
    assert whole.counts == parts.counts
    assert whole.counts["long_rows"] == 1
    for name in ("rows", "a_length", "labels", "char_starts", "char_ends", "own"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist(), name
    assert whole.input_ids.values.tolist() == parts.input_ids.values.tolist()


def test_labels_count_once() -> None:
    rows = [TokenRow("", ("abc", "d", "\x00", "efgh"), ("B", "I", "O", "O"))]
    (found,) = word_features(rows, TOKENIZER, 7, 2, TAGS)
    assert found.labels is not None and found.own is not None
    # [CLS] a b c d e [SEP], [CLS] d e f g h [SEP]
    labels = np.split(found.labels, found.input_ids.offsets[1:-1])
    skip = IGNORED
    assert labels[0].tolist() == [skip, 0, skip, skip, 1, skip, skip]
    assert labels[1].tolist() == [skip, skip, 2, skip, skip, skip, skip]
    assert ((found.labels != skip) == found.own).all()


@pytest.mark.parametrize("vocab", ["uncased", "cased"])
def test_real_tags_come_back(vocab: str) -> None:
    uncased = vocab == "uncased"
    normalisation = Normalisation(lowercase=uncased, strip_accents=uncased)
    tokenizer = Tokenizer(google_vocab(vocab), normalisation)
    sets = [token_rows(*GERMEVAL), [row for name in WIKIGOLD for row in token_rows(*name)]]
    assert [len(rows) for rows in sets] == [2200, 1696]
    for rows, without_pieces in zip(sets, (1, 0), strict=True):
        classes = sorted({tag for row in rows for tag in row.tags or ()})
        parts = list(word_features(rows, tokenizer, 48, 16, classes, 7000))
        counts = joined(parts).counts
        assert counts["long_rows"] > 50
        # One word of GermEval is a control character, tagged O: it comes back by rule.
        assert counts["words_without_pieces"] == without_pieces
        back = stitched(
            [(part, part.labels) for part in parts if part.labels is not None],
            [len(row.words) for row in rows],
            fill_class(classes),
        )
        for row, found in zip(rows, back, strict=True):
            assert tuple(classes[i] for i in found) == row.tags


def test_windows_equal_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    rows = token_rows(*WIKIGOLD[1])
    tokenizer = Tokenizer(google_vocab("cased"), Normalisation(False, False))
    write_tokenizer(tmp_path, tokenizer, 512)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        [list(row.words) for row in rows],
        is_split_into_words=True,
        truncation=True,
        max_length=24,
        stride=6,
        return_overflowing_tokens=True,
    )
    untagged = [TokenRow("", row.words, None) for row in rows]
    found = joined(word_features(untagged, tokenizer, 24, 6, []))
    ours = np.split(found.input_ids.values, found.input_ids.offsets[1:-1])
    assert [ids.tolist() for ids in ours] == theirs["input_ids"]
    assert found.rows.tolist() == theirs["overflow_to_sample_mapping"]


@pytest.mark.parametrize(
    ("tags", "overlap", "message"),
    [
        (("B", "Z"), 0, "row 0: the tag 'Z' is none of the classes B, I, O"),
        (("B",), 0, "row 0: 2 words and 1 tags"),
        (("B", "I"), 4, "overlap"),
    ],
)
def test_bad_input(tags: tuple[str, ...], overlap: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(word_features([TokenRow("", ("a", "b"), tags)], TOKENIZER, 6, overlap, TAGS))


def test_words_of_a_text() -> None:
    text = "Übergrößen (U\u0308), 中文!\nनमस्ते  x\u3000y"
    words = TextWords(text, ideographs=True)
    expected = ["Übergrößen", "(", "U\u0308", ")", ",", "中", "文", "!", "नमस्ते", "x", "y"]
    assert list(words) == expected == list(words[:])
    assert [text[s:e] for s, e in zip(words.starts, words.ends, strict=True)] == expected
    assert len(TextWords(text, ideographs=False)) == 10
    assert len(TextWords("", ideographs=True)) == 0


@pytest.mark.slow
def test_three_million_characters_in_bounded_memory() -> None:
    text = "\n".join(paragraphs("german", 1_500_000))
    text = (text * 3)[:3_000_000]
    tokenizer = Tokenizer(google_vocab("cased"), Normalisation(False, False), engine="tokenizers")

    def tagged(row: TextWords) -> tuple[int, int]:
        """The peak of tagging a text, and how many words got their own tag."""
        tracemalloc.start()
        parts = (
            (part, np.where(part.char_starts < 0, 0, part.char_starts % 7).astype(np.uint8))
            for part in word_features([row], tokenizer, 128, 32, [])
            if part.char_starts is not None
        )
        (tags,) = stitched(parts, [len(row)], 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak, int((tags == np.arange(len(row)) % 7).sum())

    small, large = TextWords(text[:600_000], True), TextWords(text, True)
    (small_peak, right), (large_peak, all_right) = tagged(small), tagged(large)
    assert right == len(small)
    assert all_right == len(large) > 400_000
    # One byte a word is the result itself.
    assert large_peak < small_peak + 2 * len(large)
