from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.word_counts import merge_counts
from stages.text.words import (
    Normalisation,
    blocks,
    count_words,
    cut,
    normaliser,
    split_words,
    text_buffer,
)
from tests.oracle.real_text import paragraphs

UNCASED = Normalisation()
CASED = Normalisation(lowercase=False, strip_accents=False)
SETTINGS = [
    Normalisation(lower, strip, chinese)
    for lower in (True, False)
    for strip in (True, False)
    for chinese in (True, False)
]
ALICE = (
    "“Curiouser and curiouser!” cried Alice (she was so much surprised, that for the moment she "
    "quite forgot how to speak good English)."
)


def plain_counts(texts: list[str], normalisation: Normalisation) -> dict[str, int]:
    return dict(Counter(word for text in texts for word in split_words(text, normalisation)))


def counted(texts: list[str], normalisation: Normalisation) -> dict[str, int]:
    words, counts = count_words(pa.array(texts, pa.string()), normalisation)
    return dict(zip(words.to_pylist(), counts.tolist(), strict=True))


def test_words_of_a_sentence() -> None:
    assert split_words("Curiouser—and Ünder!", UNCASED) == ["curiouser", "—", "and", "under", "!"]
    assert split_words("Ünder 日本", CASED) == ["Ünder", "日", "本"]
    assert counted([ALICE], UNCASED)["curiouser"] == 2


def test_every_ideograph_that_is_cut_stands_alone_for_the_reference() -> None:
    reference = normaliser(CASED)
    for code in range(0x5000, 0xA000):
        assert reference.normalize_str(f"a{chr(code)}b") == f"a {chr(code)} b"


def test_only_four_control_characters_are_white_space() -> None:
    for code in range(0x20):
        words = split_words(f"a{chr(code)}b", CASED)
        assert words == (["a", "b"] if chr(code) in " \t\n\r" else ["ab"])
        assert counted([f"a{chr(code)}b"], CASED) == dict(Counter(words))


def test_chunks_lie_end_to_end_and_never_cross_a_border() -> None:
    data = np.frombuffer("one two,three 日本語x".encode(), np.uint8)
    chunks = cut(data, np.array([6]), UNCASED)
    texts = [chunks.distinct[i].as_py().decode() for i in chunks.indices.tolist()]
    assert texts == ["one ", "tw", "o", ",", "three ", "日", "本", "語", "x"]
    assert chunks.starts.tolist() == [0, 4, 6, 7, 8, 14, 17, 20, 23]


@pytest.mark.parametrize("normalisation", SETTINGS, ids=str)
@settings(deadline=None)
@given(texts=st.lists(st.text(), max_size=5))
def test_counts_equal_the_reference_on_any_text(
    normalisation: Normalisation, texts: list[str]
) -> None:
    assert counted(texts, normalisation) == plain_counts(texts, normalisation)


@settings(deadline=None)
@given(
    st.lists(
        st.text(
            st.sampled_from(
                "aAéÀ \t\n\r\x00\x0b\x1c\x7f\x85\u00a0\u200b\u2028\u3000\ufffd|;`=\u0338"
                "\u0301\u037e\u1fef\u2260中鿿㐀䷀䶿。、İßſΣ\U00020000\U0001f600-_'"
            )
        ),
        max_size=4,
    )
)
def test_counts_equal_the_reference_on_hard_characters(texts: list[str]) -> None:
    for normalisation in (UNCASED, CASED, Normalisation(False, True, False)):
        assert counted(texts, normalisation) == plain_counts(texts, normalisation)


@pytest.mark.parametrize("language", ["english", "german", "chinese", "hindi", "vietnamese"])
def test_counts_equal_the_reference_on_real_text(language: str) -> None:
    texts = paragraphs(language, 150_000)
    assert counted(texts, UNCASED) == plain_counts(texts, UNCASED)


def test_words_come_sorted_by_code_point() -> None:
    words, counts = count_words(pa.array(["b é a 中 Z 😀 b"]), CASED)
    assert words.to_pylist() == sorted(["b", "é", "a", "中", "Z", "😀"])
    assert counts.dtype == np.int64 and counts.tolist() == [1, 1, 2, 1, 1, 1]


def test_order_and_cuts_of_the_corpus_do_not_matter() -> None:
    texts = [f"{word} {i % 7}" for i, word in enumerate(ALICE.split())] * 3
    whole = count_words(pa.array(texts), UNCASED)
    random.Random(3).shuffle(texts)
    parts = [count_words(pa.array(texts[i : i + 11]), UNCASED) for i in range(0, len(texts), 11)]
    merged = merge_counts(parts[::-1])
    assert merged[0].equals(whole[0])
    assert np.array_equal(merged[1], whole[1])


def test_counts_are_64_bit_and_refuse_to_run_over() -> None:
    large = (pa.array(["the"]), np.array([3_000_000_000], np.int64))
    words, counts = merge_counts([large, large])
    assert counts.tolist() == [6_000_000_000] and words.to_pylist() == ["the"]
    with pytest.raises(OverflowError, match="64 bits"):
        merge_counts([(pa.array(["the"]), np.array([2**62], np.int64))] * 2)


def test_nothing_in_nothing_out() -> None:
    for texts in (
        pa.array([], pa.string()),
        pa.array(["", " \n"]),
        pa.array([], pa.large_string()),
    ):
        words, counts = count_words(texts, UNCASED)
        assert len(words) == 0 and counts.size == 0
    words, counts = merge_counts([])
    assert words.type == pa.string() and counts.dtype == np.int64


def test_slices_large_strings_and_chunked_columns() -> None:
    texts = pa.array(["left out", "one two", "two", "left out"])
    expected = {"one": 1, "two": 2}
    for column in (
        texts[1:3],
        texts.cast(pa.large_string())[1:3],
        pa.chunked_array([texts[1:2], texts[2:3]]),
    ):
        words, counts = count_words(column, UNCASED)
        assert dict(zip(words.to_pylist(), counts.tolist(), strict=True)) == expected


def test_nulls_and_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="text 1 is null"):
        count_words(pa.array(["a", None]), UNCASED)
    with pytest.raises(ValueError, match="int64"):
        text_buffer(pa.array([1]))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 12))
def test_blocks_cover_all_texts_in_order(lengths: list[int], block_bytes: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    found = list(blocks(offsets, block_bytes))
    assert [i for first, last in found for i in range(first, last)] == list(range(len(lengths)))
    assert all(
        offsets[last] - offsets[first] <= block_bytes or last == first + 1 for first, last in found
    )
