from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import cleaning
from stages.text.buffers import text_buffer
from stages.text.cleaning import CleaningOptions, clean
from stages.text.composing import nfc_candidates
from tests.oracle import plain_cleaning
from tests.oracle.real_text import FILES, corpora, paragraphs

KEEP_LINES = CleaningOptions(unwrap=False)

# What the kernels treat apart, often enough to meet.
PIECES = st.one_of(
    st.sampled_from(
        list("\r\n\t\0\x0b\x0c\x1f\x7f\x85\xa0\xad\u2028\u2029\u200b\u200c\u3000\ufeff")
    ),
    st.sampled_from(
        ["\r\n", "    ", "  ", "\n\n", "\n", ". ", "- ", "1. ", ">>> ", ":x: ", ":m:`x`"]
    ),
    st.sampled_from(
        ["----", "word", "é", "e\u0301", "Ω", "\u212a", "が", "か\u3099", "紅樓夢", "”", "—"]
    ),
    st.sampled_from(["किताब", "\u0958", "한국", "\u1112\u1161\u11ab", "😀", "𝒳", "a" * 170]),
    st.text(max_size=5),
)
TEXTS = st.lists(PIECES, max_size=25).map("".join)


def cleaned(text: str, **options: bool) -> str:
    return clean(pa.array([text]), CleaningOptions(**options)).texts[0].as_py()


OPTIONS = st.builds(CleaningOptions, *[st.sampled_from([True, True, False])] * 5)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6), OPTIONS)
def test_equals_the_plain_twin(texts: list[str], options: CleaningOptions) -> None:
    result = clean(pa.array(texts, pa.string()), options).texts
    result.validate(full=True)
    assert result.to_pylist() == [plain_cleaning.clean(t, **vars(options)) for t in texts]


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, max_size=6), st.integers(1, 60), OPTIONS)
def test_blocks_make_no_difference(texts: list[str], size: int, options: CleaningOptions) -> None:
    column = pa.array(texts, pa.string())
    whole = clean(column, options)
    default = cleaning.BLOCK_BYTES
    cleaning.BLOCK_BYTES = size
    try:
        parts = clean(column, options)
    finally:
        cleaning.BLOCK_BYTES = default
    assert parts.texts.equals(whole.texts)
    assert parts.counts == whole.counts


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_cleaned_text_is_clean_and_stays_so(text: str) -> None:
    once = cleaned(text, unwrap=False)
    assert cleaned(once, unwrap=False) == once
    assert once == once.strip(" \n")
    for bad in ("  ", " \n", "\n ", "\n\n\n", "\t", "\r", "\0", "\u2028", "\ufeff"):
        assert bad not in once
    assert unicodedata.is_normalized("NFC", once)


def test_nfc_quick_check_misses_nothing() -> None:
    """No character that the quick check passes is changed, composed or reordered by NFC."""
    composed_of = set()
    characters = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
    for code in characters:
        decomposition = unicodedata.decomposition(chr(code))
        if decomposition and not decomposition.startswith("<"):
            composed_of.update(int(x, 16) for x in decomposition.split()[1:])
    composed_of |= {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    texts = [chr(c).encode() for c in characters]
    offsets = np.concatenate(([0], np.cumsum([len(t) for t in texts])))
    data = np.frombuffer(b"".join(texts), np.uint8)
    candidates = set(nfc_candidates(data, offsets).tolist())
    for i, code in enumerate(characters):
        if i in candidates or 0x2000 <= code <= 0x200A or 0x800 <= code < 0x1000:
            continue
        assert unicodedata.is_normalized("NFC", chr(code)), hex(code)
        assert unicodedata.combining(chr(code)) == 0, hex(code)
        assert code not in composed_of, hex(code)


def test_nfc_quick_check_of_indic_marks_misses_nothing() -> None:
    """Marks are normal there, so they are looked at with what stands before them."""
    block = [chr(code) for code in range(0x800, 0x1000)]
    marks = [c for c in block if unicodedata.combining(c)]
    parts = {d.split()[-1] for c in block if (d := unicodedata.decomposition(c))}
    seconds = [*marks, *(chr(int(p, 16)) for p in parts)]
    some = ["\u0928", "\u09c7", "\u0dd9", "\u0301", "a", "\u200d"]
    texts = [a + b for a in block for b in seconds]
    texts += [a + b + c for a in some for b in marks for c in seconds]
    texts += block
    data, offsets = text_buffer(pa.array(texts))
    candidates = set(nfc_candidates(data, offsets).tolist())
    assert len(candidates) < len(texts) / 2
    for i, text in enumerate(texts):
        assert i in candidates or unicodedata.is_normalized("NFC", text), ascii(text)


def test_spellings_of_one_word_become_one() -> None:
    assert cleaned("Phở bo\u0300") == "Phở bò"
    assert cleaned("e\u0301", nfc=False) == "e\u0301"


def test_joiners_of_indic_scripts_stay() -> None:
    assert cleaned("क्\u200dष \u200bक") == "क्\u200dष क"


def test_counts_say_what_was_done() -> None:
    counts = clean(
        pa.array(
            ["\ufeffIt is\ta truth\r\nuniversally ack\u00adnowledged,\0 that\n", "e\u0301\x85  x"]
        ),
        KEEP_LINES,
    ).counts
    assert counts == {
        "controls": 1,
        "spaces": 1,
        "line_breaks": 2,
        "invisible": 2,
        "nfc_documents": 1,
        "joined_lines": 0,
        "white_space": 3,
    }


def test_each_step_can_be_off_and_counts_only_what_it_did() -> None:
    text = "\ufeffOne\x0ctwo\u2028three\r\nfour  five\n\n\n\n  six\u200b\0\ttab "
    off = CleaningOptions(False, False, False, False, False)
    result = clean(pa.array([text]), off)
    assert result.texts.to_pylist() == ["\ufeffOne two three\nfour  five\n\n\n\n  six\u200b tab"]
    assert {step: n for step, n in result.counts.items() if n} == {
        "controls": 1,
        "spaces": 3,
        "line_breaks": 1,
        "white_space": 1,
    }
    on = clean(pa.array([text]), KEEP_LINES)
    assert on.texts.to_pylist() == ["One\ntwo\nthree\nfour five\n\nsix tab"]
    assert {step: n for step, n in on.counts.items() if n} == {
        "controls": 1,
        "invisible": 2,
        "spaces": 1,
        "line_breaks": 3,
        "white_space": 6,
    }


def test_memory_stays_a_few_times_the_text() -> None:
    """Blocks bound what cleaning holds beside its input and output; one long text is a block."""
    text = (
        "It is a truth universally acknowledged, that a single man in\n  possession.\r\n" * 20_000
    )
    for texts in ([text], [text[i : i + 300] for i in range(0, len(text), 300)]):
        column = pa.array(texts)
        tracemalloc.start()
        clean(column)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 14 * len(text)


PRIDE = (
    "It is a truth universally acknowledged, that a single man in possession\r\n"
    "of a good fortune, must be in want of a wife.\r\n\r\n"
    "However little known the feelings or views of such a man may be on his\r\n"
    "first entering a neighbourhood, this truth is so well fixed.\r\n"
)


def test_hard_wrapped_prose_is_joined() -> None:
    assert cleaned(PRIDE).split("\n\n") == [
        "It is a truth universally acknowledged, that a single man in possession "
        "of a good fortune, must be in want of a wife.",
        "However little known the feelings or views of such a man may be on his "
        "first entering a neighbourhood, this truth is so well fixed.",
    ]
    assert clean(pa.array([PRIDE])).counts["joined_lines"] == 2


def test_docstring_layout_keeps_its_lines() -> None:
    text = """Return the sum of array elements over a given axis treating those that
are not numbers as zero.

Parameters
----------
a : array_like
    Array containing numbers whose sum is desired. If `a` is not an
    array, a conversion is attempted, as in :func:`numpy.asarray` and its
    relatives.
axis : int, optional

    >>> nansum([1, nan])
    1.0
"""
    assert cleaned(text).split("\n") == [
        "Return the sum of array elements over a given axis treating those that "
        "are not numbers as zero.",
        "",
        "Parameters",
        "----------",
        "a : array_like",
        "Array containing numbers whose sum is desired. If `a` is not an array, a conversion is "
        "attempted, as in :func:`numpy.asarray` and its relatives.",
        "axis : int, optional",
        "",
        ">>> nansum([1, nan])",
        "1.0",
    ]


def test_marks_without_end_are_composed_as_unicode_says() -> None:
    """In time that grows with their number, not with its square (hours for megabytes)."""
    generator = random.Random(5)
    marks = [c for c in map(chr, range(0x300, 0x20000)) if unicodedata.combining(c)]
    for _ in range(50):
        runs = [generator.choices(marks, k=generator.choice([0, 3, 100, 130, 400])) for _ in "abcd"]
        text = "".join(generator.choice(["é", "a", "ὰ", "가"]) + "".join(run) for run in runs)
        assert cleaned(text) == unicodedata.normalize("NFC", text)
    long = "a" + "\u0301\u0316" * 1_000_000
    assert cleaned(long) == "á" + "\u0316" * 1_000_000 + "\u0301" * 999_999


def test_lists_and_verse() -> None:
    items = (
        "- the first thing that has to be done by all\n  who come\n- the second\n1. one\n12) twelve"
    )
    assert cleaned(items).split("\n") == [
        "- the first thing that has to be done by all who come",
        "- the second",
        "1. one",
        "12) twelve",
    ]
    title = "Assistant in the Department of Oriental Printed Books\n\nBY\nLIONEL GILES, M.A."
    assert cleaned(title) == title
    dedication = "Captain Valentine Giles, R.G.\nin the hope that\na work 2400 years old"
    assert cleaned(dedication).count("\n") == 1, "only the widest line cannot be told from prose"


def test_chinese_lines_join_without_a_space() -> None:
    text = (
        "　　後來，又不知過了几世几劫，因有個空空道人訪道求仙，忽從這大荒山\n"
        "無稽崖青埂峰下經過，忽見一大塊石上字跡分明，編述歷歷．空空道人乃從\n"
        "頭一看．\n"
        "　　無材可去補蒼天，枉入紅塵若許年．\n"
    )
    assert cleaned(text).split("\n") == [
        "後來，又不知過了几世几劫，因有個空空道人訪道求仙，忽從這大荒山"
        "無稽崖青埂峰下經過，忽見一大塊石上字跡分明，編述歷歷．空空道人乃從頭一看．",
        "無材可去補蒼天，枉入紅塵若許年．",
    ]


def test_empty_and_sliced_columns() -> None:
    assert clean(pa.array([], pa.string())).texts.to_pylist() == []
    assert clean(pa.array(["", " \n", "\0"])).texts.to_pylist() == ["", "", ""]
    column = pa.array(["not me ", " one\r\n", "two  three", "nor me"])
    assert clean(column.slice(1, 2)).texts.to_pylist() == ["one", "two three"]
    with pytest.raises(ValueError, match="null"):
        clean(pa.array(["x", None]))
    with pytest.raises(ValueError, match="not string"):
        clean(pa.array([1]))


@pytest.mark.parametrize("name", ["peps/peps.jsonl.gz", "vietnamese/d2l-vn.jsonl.gz"])
def test_real_documents_equal_the_plain_twin(name: str) -> None:
    with gzip.open(corpora() / name, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file][:60]
    assert clean(pa.array(texts)).texts.to_pylist() == [plain_cleaning.clean(t) for t in texts]


@pytest.mark.parametrize("language", list(FILES))
def test_real_text_equals_the_plain_twin(language: str) -> None:
    texts = paragraphs(language, 60_000)
    texts.append("\r\n\r\n".join(texts))
    assert clean(pa.array(texts)).texts.to_pylist() == [plain_cleaning.clean(t) for t in texts]
