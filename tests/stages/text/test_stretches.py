"""Long texts cleaned in stretches: what comes out is what cleaning all at once gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import cleaning, stretches
from stages.text.cleaning import CleaningOptions, clean
from tests.conftest import documents
from tests.oracle.real_text import corpora
from tests.reading import read_all

OPTIONS = [CleaningOptions(), CleaningOptions(unwrap=False, nfc=False)]


def shortened(monkeypatch: pytest.MonkeyPatch, long_bytes: int, stretch_bytes: int) -> None:
    monkeypatch.setattr(cleaning, "LONG_BYTES", long_bytes)
    monkeypatch.setattr(stretches, "LONG_BYTES", long_bytes)
    monkeypatch.setattr(stretches, "STRETCH_BYTES", stretch_bytes)
    monkeypatch.setattr(stretches, "_WINDOW", long_bytes // 2)


@pytest.mark.parametrize("options", OPTIONS)
def test_books_in_stretches(monkeypatch: pytest.MonkeyPatch, options: CleaningOptions) -> None:
    """Of real books, cut at blank lines alone: the same bytes, and about the same counts."""
    books = [p for p in corpora().rglob("*") if p.parent.name in ("gutenberg-en", "hindi")]
    texts, _ = read_all(*books, format="text")
    whole = [clean(pa.array([text]), options) for text in texts]
    shortened(monkeypatch, 100_000, 3_000)
    cut = 0
    for text, wanted in zip(texts, whole, strict=True):
        found = clean(pa.array([text]), options)
        assert found.texts.equals(wanted.texts)
        parts = len(list(stretches.stretches(np.frombuffer(text.encode(), np.uint8))))
        # What stands at a cut may be counted in the stretch before it, too.
        assert abs(found.counts.pop("white_space") - wanted.counts.pop("white_space")) < parts
        assert found.counts == wanted.counts
        cut += parts > 1
    assert cut > 10


@settings(max_examples=200, deadline=None)
@given(
    st.text("a b\n\r\t.é\u0301\u200b\ufeff\0", max_size=300),
    st.booleans(),
    st.booleans(),
)
def test_any_text(text: str, unwrap: bool, white_space: bool) -> None:
    """White space may be another where a text without blank lines was cut; all else is equal."""
    options = CleaningOptions(unwrap=unwrap, white_space=white_space)
    wanted = clean(pa.array([text]), options).texts[0].as_py()
    with pytest.MonkeyPatch.context() as patch:
        shortened(patch, 40, 10)
        again = clean(pa.array([text]), dataclasses.replace(options)).texts[0].as_py()
    assert "".join(again.split()) == "".join(wanted.split())
    assert again == again.strip()


def test_a_line_of_megabytes_ends_at_a_space_and_a_word_anywhere() -> None:
    line = "word " * 4_000_000
    (found,) = clean(pa.array([line])).texts.to_pylist()
    assert found.split() == line.split()
    assert max(map(len, found.split("\n"))) <= stretches.LONG_BYTES
    word = "狐" * 4_000_000
    assert clean(pa.array([word])).texts.to_pylist() == [word]


def test_short_texts_beside_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shortened(monkeypatch, 100_000, 3_000)
    short = [" ".join(document) for document in documents(5)]
    long = "\n\n".join([*short, "x"] * 500)
    texts = [*short, long, *short]
    found = clean(pa.array(texts)).texts.to_pylist()
    assert found == texts
