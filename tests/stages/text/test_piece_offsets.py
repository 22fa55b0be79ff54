"""Pieces point at the characters of the original text that they were made from."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.piece_offsets import TextPieces, pieces_with_offsets, slices
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation, normaliser
from tests.oracle.unicode_strings import MARKS, ODD, WORDS, unicode_strings

UNCASED = Normalisation()
CASED = Normalisation(lowercase=False, strip_accents=False)
NORMALISATIONS = (
    UNCASED,
    CASED,
    Normalisation(lowercase=True, strip_accents=False),
    Normalisation(lowercase=False, strip_accents=True, chinese_characters=False),
)


@cache
def tokenizer(normalisation: Normalisation) -> Tokenizer:
    """Spells every word of letters of the strings here, in the smallest pieces but for some."""
    reference = normaliser(normalisation)
    texts = "".join(unicode_strings(300, 5)) + MARKS + ODD + "".join(map(chr, range(32, 0x250)))
    letters = sorted(set(reference.normalize_str(texts + "한국어αβΣ①ａｂｃﬁ👩ı")) - {" ", "|"})
    entries = [*letters, *(f"##{c}" for c in letters), "the", "##in", "ab", "|"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Tokenizer(
        special + [e for e in entries if e != "##"], normalisation, engine="tokenizers"
    )


def spelled(pieces: TextPieces, tokens: list[str]) -> list[tuple[str, int, int]]:
    return [
        (tokens[i], int(s), int(e))
        for i, s, e in zip(pieces.ids, pieces.starts, pieces.ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Lower case and accents, in one character or in two: the letter keeps its accent.
        ("É", [("e", 0, 1)]),
        ("e\u0301!", [("e", 0, 2), ("!", 2, 3)]),
        ("xe\u0323\u0302", [("x", 0, 1), ("##e", 1, 4)]),
        ("\u0301x", [("x", 1, 2)]),
        # Decomposing puts the two marks in another order, and only one is stripped.
        ("x\u0300\u302ey", [("[UNK]", 0, 4)]),
        ("\u0300\u302e", [("[UNK]", 0, 2)]),
        ("x \u302e\u0316y", [("x", 0, 1), ("[UNK]", 2, 5)]),
        ("ß", [("ß", 0, 1)]),
        ("İx", [("i", 0, 1), ("##x", 1, 2)]),
        ("ıx", [("ı", 0, 1), ("##x", 1, 2)]),
        ("ﬁx", [("ﬁ", 0, 1), ("##x", 1, 2)]),
        ("Ａｂ", [("ａ", 0, 1), ("##ｂ", 1, 2)]),
        # One syllable in pieces that share its character.
        ("가!", [("\u1100", 0, 1), ("##\u1161", 0, 1), ("!", 1, 2)]),
        ("中x", [("中", 0, 1), ("x", 1, 2)]),
        # What is removed belongs to no piece, unless it stands inside of one.
        ("x\u200dy", [("x", 0, 1), ("##y", 2, 3)]),
        ("a\u00adb\u00ad", [("ab", 0, 3)]),
        ("👩\u200d👩", [("👩", 0, 1), ("##👩", 2, 3)]),
        ("x\ufe0f", [("x", 0, 2)]),
        ("\u200b", []),
        ("", []),
        ("[SEP]", [("[", 0, 1), ("s", 1, 2), ("##e", 2, 3), ("##p", 3, 4), ("]", 4, 5)]),
    ],
)
def test_characters(text: str, expected: list[tuple[str, int, int]]) -> None:
    uncased = tokenizer(UNCASED)
    assert spelled(pieces_with_offsets([text], uncased), uncased.vocab) == expected


TEXTS = st.lists(
    st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from([*MARKS, *ODD, *WORDS, "\u302e", "\U0001d165", "\u0344", "ǆ", "ᾳ", "ŉ"]),
    ),
    max_size=25,
).map("".join)


@given(TEXTS, st.sampled_from(NORMALISATIONS))
@settings(max_examples=100, deadline=None)
def test_any_text(text: str, normalisation: Normalisation) -> None:
    used = tokenizer(normalisation)
    pieces = pieces_with_offsets([text], used)
    starts, ends = pieces.starts.tolist(), pieces.ends.tolist()
    assert pieces.ids.tolist() == used.reference.encode(text, add_special_tokens=False).ids
    assert all(0 <= s < e <= len(text) for s, e in zip(starts, ends, strict=True))
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    # Between two pieces stands nothing that a model would see.
    covered = np.zeros(len(text), bool)
    for start, end in zip(starts, ends, strict=True):
        covered[start:end] = True
    reference = normaliser(normalisation)
    for place in np.flatnonzero(~covered).tolist():
        # Marks that decomposing moved past a removed character may stay at its place.
        if unicodedata.combining(text[place]):
            continue
        assert not reference.normalize_str(text[place]).strip(), ascii(text[place])


@given(TEXTS, st.sampled_from(NORMALISATIONS), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_a_text_may_be_cut(text: str, normalisation: Normalisation, characters: int) -> None:
    used = tokenizer(normalisation)
    parts = list(slices(text, normalisation.chinese_characters, characters))
    assert "".join(part for _, part in parts) == text
    whole = pieces_with_offsets([text], used)
    cut = [pieces_with_offsets([part], used) for _, part in parts]
    assert np.concatenate([p.ids for p in cut]).tolist() == whole.ids.tolist()
    for name in ("starts", "ends"):
        moved = [getattr(p, name) + begin for p, (begin, _) in zip(cut, parts, strict=True)]
        assert np.concatenate(moved).tolist() == getattr(whole, name).tolist()


def test_long_texts_are_cut() -> None:
    assert [len(part) for _, part in slices("ab " * 10, True, 7)] == [5, 6, 6, 6, 7]
    assert [len(part) for _, part in slices("字" * 10, True, 4)] == [3, 3, 4]
    assert [len(part) for _, part in slices("x" * 10 + " x", True, 4)] == [10, 2]
    assert [len(part) for _, part in slices("字" * 10, False, 4)] == [10, 0]


def test_several_texts() -> None:
    pieces = pieces_with_offsets(["ab c", "", "ab"], tokenizer(UNCASED))
    assert pieces.offsets.tolist() == [0, 2, 2, 3]
    assert pieces.starts.tolist() == [0, 3, 0]


def test_decomposed_text_keeps_its_accents() -> None:
    text = "Đường phố Hà Nội, überfällig"
    decomposed = unicodedata.normalize("NFD", text)
    used = tokenizer(UNCASED)
    pieces, plain = pieces_with_offsets([decomposed], used), pieces_with_offsets([text], used)
    assert pieces.ids.tolist() == plain.ids.tolist()
    parts = [decomposed[s:e] for s, e in zip(pieces.starts, pieces.ends, strict=True)]
    assert unicodedata.normalize("NFC", "".join(parts)) == text.replace(" ", "")
