from __future__ import annotations

import importlib.util
import itertools
import pickle
import re
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import engines
from stages.text.engines import ENGINES, Engine
from stages.text.wordpiece import SPECIAL_TOKENS, Encoded, Tokenizer, joined
from stages.text.words import Normalisation, split_words
from tests.oracle.plain_wordpiece import pieces
from tests.oracle.real_text import google_vocab, paragraphs
from tests.oracle.unicode_strings import unicode_strings

INSTALLED = [e for e in ENGINES if e != "nanotoken" or importlib.util.find_spec(e)]
UNCASED = Normalisation()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = [
    *SPECIAL_TOKENS, "[unused0]", *LETTERS, *(f"##{c}" for c in LETTERS),
    "the", "rabbit", "##ing", "al", "##ice", "[", "]", "mask", ".", "!", "中", "é", "##é", "##",
]  # fmt: skip


def ends_of(sentences: list[list[str]]) -> pa.ListArray:
    rows = [np.cumsum([len(s.encode()) for s in document]).tolist() for document in sentences]
    return pa.array(rows, pa.list_(pa.uint32()))


def encode(tokenizer: Tokenizer, documents: list[list[str]]) -> Encoded:
    texts = pa.array(["".join(document) for document in documents], pa.string())
    return tokenizer.encode(texts, ends_of(documents))


def unflatten(encoded: Encoded, tokenizer: Tokenizer) -> list[list[list[str]]]:
    """Documents of sentences of tokens."""
    tokens = [tokenizer.vocab[i] for i in encoded.ids.tolist()]
    borders = encoded.sentence_offsets.tolist()
    sentences = [tokens[a:b] for a, b in itertools.pairwise(borders)]
    borders = encoded.document_offsets.tolist()
    return [sentences[a:b] for a, b in itertools.pairwise(borders)]


def assert_equal(one: Encoded, other: Encoded) -> None:
    for name in ("ids", "sentence_offsets", "document_offsets"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype and np.array_equal(a, b), name
    assert one.dropped_sentences == other.dropped_sentences


def test_documents_of_several_calls_are_joined() -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED)
    documents = [["the rabbit. ", "Alice"], [], ["  ", "mask!"], ["the"], [" "]]
    parts = [encode(tokenizer, documents[low:high]) for low, high in ((0, 2), (2, 2), (2, 5))]
    assert_equal(joined(parts), encode(tokenizer, documents))
    assert joined(parts, np.uint16).ids.dtype == np.uint16
    assert_equal(joined([]), encode(tokenizer, []))


def test_flags_need_no_engine() -> None:
    assert "_plain" not in vars(Tokenizer(VOCAB, UNCASED))


@pytest.mark.parametrize("engine", INSTALLED)
def test_documents_sentences_and_what_is_dropped(engine: Engine) -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED, engine=engine)
    documents = [["The rabbit. ", "\x00 \n", "Alice!"], [], ["\u200b"], ["Al", "ice"]]
    encoded = encode(tokenizer, documents)
    assert unflatten(encoded, tokenizer) == [
        [["the", "rabbit", "."], ["al", "##ice", "!"]], [], [], [["al"], ["i", "##c", "##e"]],
    ]  # fmt: skip
    assert encoded.dropped_sentences == 2
    assert encoded.ids.dtype == np.uint32
    assert encoded.sentence_offsets.dtype == encoded.document_offsets.dtype == np.int64
    assert encoded.document_offsets.tolist() == [0, 2, 2, 2, 4]


@pytest.mark.parametrize("engine", INSTALLED)
def test_text_never_makes_a_special_token(engine: Engine) -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED, engine=engine)
    encoded = encode(tokenizer, [["[MASK] [SEP][PAD] [unused0]"]])
    tokens = unflatten(encoded, tokenizer)[0][0]
    assert tokens[:3] == ["[", "mask", "]"]
    allowed = tokenizer.is_ordinary.copy()
    allowed[tokenizer.unknown_id] = True
    assert allowed[encoded.ids].all()


def test_flags_of_the_vocabulary() -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED)
    special = [t for t, flag in zip(VOCAB, tokenizer.is_special, strict=True) if flag]
    assert special == list(SPECIAL_TOKENS)
    extraordinary = [t for t, flag in zip(VOCAB, tokenizer.is_ordinary, strict=True) if not flag]
    assert extraordinary == [*SPECIAL_TOKENS, "[unused0]"]
    inside = [t for t, flag in zip(VOCAB, tokenizer.is_continuation, strict=True) if flag]
    assert all(t.startswith("##") for t in inside) and "##ing" in inside and "##" not in inside


def test_long_words_become_unknown() -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED, max_word_characters=10)
    encoded = encode(tokenizer, [["a" * 10 + " ", "é" * 11]])
    assert unflatten(encoded, tokenizer) == [[["a"] + ["##a"] * 9, ["[UNK]"]]]


@pytest.mark.parametrize("with_bar", [True, False])
def test_the_separator_itself_as_text(with_bar: bool) -> None:
    vocab = [*VOCAB, "|"] if with_bar else VOCAB
    tokenizer = Tokenizer(vocab, UNCASED)
    encoded = encode(tokenizer, [["a|b || | the"], ["|"]])
    bar = "|" if with_bar else "[UNK]"
    assert unflatten(encoded, tokenizer) == [[["a", bar, "b", bar, bar, bar, "the"]], [[bar]]]
    assert tokenizer.parity_check(["a|b || | the", "|"]) == []


texts = st.text() | st.text(
    st.sampled_from("aThe rabbit|[MASK]éÉ中鿿。 \t\n\x00\x0b\u0301\u2028\ufffdİßΣ")
)


@settings(deadline=None)
@given(st.lists(st.lists(texts, max_size=4), max_size=4))
def test_engines_agree_on_any_text(documents: list[list[str]]) -> None:
    for normalisation in (
        UNCASED,
        Normalisation(False, False, True),
        Normalisation(True, False, False),
    ):
        tokenizer = Tokenizer(VOCAB, normalisation, 20, engine="tokenizers")
        expected = encode(tokenizer, documents)
        for tokenizer.engine in INSTALLED[:-1]:
            assert_equal(encode(tokenizer, documents), expected)


@settings(deadline=None)
@given(texts)
def test_ids_equal_the_plain_twin(text: str) -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED)
    expected = [p for word in split_words(text, UNCASED) for p in pieces(word, set(VOCAB))]
    encoded = encode(tokenizer, [[text]])
    assert [VOCAB[i] for i in encoded.ids.tolist()] == expected


@pytest.mark.parametrize(
    ("language", "vocab", "normalisation"),
    [
        ("english", "uncased", UNCASED),
        ("english", "cased", Normalisation(False, False)),
        ("german", "cased", Normalisation(False, True)),
        ("chinese", "chinese", UNCASED),
        ("chinese", "chinese", Normalisation(False, False, False)),
        ("hindi", "uncased", Normalisation(True, False)),
        ("vietnamese", "uncased", UNCASED),
    ],
)
def test_engines_agree_on_real_text(
    language: str, vocab: str, normalisation: Normalisation
) -> None:
    documents = [re.split(r"(?<=[.!?。] )|(?<=\n)", p) for p in paragraphs(language, 100_000)]
    tokenizer = Tokenizer(google_vocab(vocab), normalisation, engine="tokenizers")
    expected = encode(tokenizer, documents)
    assert expected.ids.size > 10_000
    for tokenizer.engine in (*INSTALLED[:-1], *INSTALLED[:-1]):  # again, from what they keep
        assert_equal(encode(tokenizer, documents), expected)


@pytest.mark.parametrize("engine", INSTALLED[:-1])
def test_engines_agree_on_generated_strings(engine: Engine) -> None:
    # bench/parity.py tries 50,000 of them, and every code point.
    strings = unicode_strings(3_000)
    for lowercase, strip, chinese in itertools.product((True, False), repeat=3):
        normalisation = Normalisation(lowercase, strip, chinese)
        tokenizer = Tokenizer(google_vocab("uncased"), normalisation, engine=engine)
        assert tokenizer.parity_check(strings) == []


def plant_a_fault(tokenizer: Tokenizer) -> None:
    """The word learned last becomes "a"."""
    dictionary = cast(engines.Dictionary, tokenizer._encoder("dictionary"))
    dictionary._pieces = dictionary._pieces.copy()
    dictionary._pieces[-1] = VOCAB.index("a")


def test_parity_check_finds_a_planted_difference() -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED)
    assert tokenizer.parity_check(["the rabbit", "Alice", ""]) == []
    plant_a_fault(tokenizer)
    differences = tokenizer.parity_check(["the rabbit", "Alice", ""])
    assert [d.text for d in differences] == ["Alice"]
    assert differences[0].reference == [VOCAB.index("al"), VOCAB.index("##ice")]


def test_dictionary_stays_bounded_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CACHE_CHUNKS", 3)
    tokenizer = Tokenizer(VOCAB, UNCASED)
    dictionary = cast(engines.Dictionary, tokenizer._encoder("dictionary"))
    plain = Tokenizer(VOCAB, UNCASED, engine="tokenizers")
    for text in ["a b c d|", "the rabbit", "e f", "a | b"]:
        assert_equal(encode(tokenizer, [[text]]), encode(plain, [[text]]))
        assert len(dictionary._known) <= 5 and len(dictionary._piece_offsets) <= 7


def test_pickles_without_its_dictionary() -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED, 7)
    empty = len(pickle.dumps(tokenizer))
    before = encode(tokenizer, [[" ".join(VOCAB)]])
    pickled = pickle.dumps(tokenizer)
    assert len(pickled) == empty
    assert_equal(before, encode(pickle.loads(pickled), [[" ".join(VOCAB)]]))


def test_wrong_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="'the' twice"):
        Tokenizer([*VOCAB, "the"], UNCASED)
    with pytest.raises(ValueError, match=r"lacks the special token \[MASK\]"):
        Tokenizer([t for t in VOCAB if t != "[MASK]"], UNCASED)


@pytest.mark.parametrize(
    ("text", "ends", "message"),
    [
        ("the rabbit", [3], "document 1: text after its last sentence end"),
        ("the rabbit", [], "document 1: text after its last sentence end"),
        ("the rabbit", [5, 3, 10], "document 1: sentence ends out of order"),
        ("the rabbit", [3, 11], "document 1: sentence ends out of order or of range"),
    ],
)
def test_wrong_sentence_ends_are_refused(text: str, ends: list[int], message: str) -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED)
    lists = pa.array([[2], ends, [2]], pa.list_(pa.uint32()))
    with pytest.raises(ValueError, match=message):
        tokenizer.encode(pa.array(["ab", text, "ab"]), lists)
    with pytest.raises(ValueError, match="3 texts need as many"):
        tokenizer.encode(pa.array(["ab", text, "ab"]), lists[:2])


def test_white_space_after_the_last_sentence_and_slices() -> None:
    tokenizer = Tokenizer(VOCAB, UNCASED)
    texts = pa.array(["lost", "the rabbit \n", "", "alice  ", "lost"])
    lists = pa.array([[4], [3, 10], [], [5], [4]], pa.list_(pa.uint32()))
    encoded = tokenizer.encode(texts[1:4], lists[1:4])
    assert unflatten(encoded, tokenizer) == [[["the"], ["rabbit"]], [], [["al", "##ice"]]]
    empty = tokenizer.encode(texts[:0], lists[:0])
    assert empty.ids.size == 0 and empty.sentence_offsets.tolist() == [0]
    assert empty.document_offsets.tolist() == [0]
