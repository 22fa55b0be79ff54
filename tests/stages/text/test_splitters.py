from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.cleaning import clean
from stages.text.sentences import sentence_ends
from stages.text.splitters import SplitterError, ends_by, load_splitter
from tests.oracle.real_text import paragraphs

WORDS = st.sampled_from(
    ["Mr. ", "It rained. ", "Who? ", "\n", "😀 ", "𝒳. ", "é! ", "“Go.” ", "5. "]
)
TEXTS = st.lists(WORDS, max_size=12).map("".join)


def by(split: object, *texts: str) -> list[list[str]]:
    """The sentences that a splitter's ends cut from each text."""
    ends = ends_by(split, pa.array(texts, pa.string()), "mine:split")  # type: ignore[arg-type]
    ends.validate(full=True)
    assert ends.type == pa.list_(pa.uint32())
    return [
        [text.encode()[a:b].decode().strip() for a, b in pairwise([0, *row])]
        for text, row in zip(texts, ends.to_pylist(), strict=True)
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_sentencex_sentences_are_its_own(texts: list[str]) -> None:
    cleaned = clean(pa.array(texts, pa.string())).texts
    for text, row in zip(
        cleaned.to_pylist(), sentence_ends(cleaned, "sentencex").to_pylist(), strict=True
    ):
        found = [text.encode()[a:b].decode().strip() for a, b in pairwise([0, *row])]
        own = [s.strip() for line in text.split("\n") for s in sentencex.segment("en", line)]
        assert found == [s for s in own if s]


@pytest.mark.parametrize(
    ("language", "code"),
    [("english", "en"), ("german", "de"), ("chinese", "zh"), ("hindi", "hi"), ("vietnamese", "vi")],
)
def test_sentencex_on_real_text(language: str, code: str) -> None:
    texts = clean(pa.array(paragraphs(language, 40_000))).texts
    rows = sentence_ends(texts, "sentencex", code).to_pylist()
    for text, row in zip(texts.to_pylist(), rows, strict=True):
        found = [text.encode()[a:b].decode().strip() for a, b in pairwise([0, *row])]
        own = [s.strip() for line in text.split("\n") for s in sentencex.segment(code, line)]
        assert found == [s for s in own if s]


def test_the_language_matters() -> None:
    text = pa.array(["Das gilt bzgl. Wasser, ggf. Eis. Es ist kalt."])
    assert len(sentence_ends(text, "sentencex", "de")[0]) == 2
    assert len(sentence_ends(text, "sentencex", "en")[0]) > 2


def test_white_space_may_go_or_stay() -> None:
    text = "😀 One. \n\n Two é."
    for given_sentences in (
        ["😀 One.", "Two é."],
        ["😀 One. \n", "\n Two é."],
        ["", "😀 One.", "  ", "Two é."],
    ):
        assert by(lambda _: given_sentences, text) == [["😀 One.", "Two é."]]  # noqa: B023
    assert by(str.split, "a  b\nc", "", " \n") == [["a", "b", "c"], [], []]
    assert by(lambda text: iter([text]), "One. Two.\nThree.") == [["One. Two.\nThree."]]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (["One."], "left out 'Two.', behind its last sentence"),
        (["One.", "Two."][::-1], "sentence 1 'Two.', but what follows at character 0 is 'One. Two"),
        (["One.", "two."], "gave as sentence 2 'two.'"),
        (["One.", "One.", "Two."], "gave as sentence 2 'One.'"),
        (["One", "Two."], "gave as sentence 2 'Two.', but what follows at character 3 is '. Two"),
        ("One. Two.", "gave a string"),
        ([4, 9], "gave a list of int"),
        (None, "raised TypeError"),
    ],
)
def test_what_is_not_the_text_is_refused(result: object, message: str) -> None:
    with pytest.raises(SplitterError) as error:
        by(lambda text: result if text.startswith("One") else [text], "fine", "One. Two.")
    assert message in str(error.value)
    assert str(error.value).startswith("mine:split ")
    assert error.value.row == 1


def test_long_texts_are_shown_by_their_beginning() -> None:
    with pytest.raises(SplitterError) as error:
        by(lambda _: [], "word " * 500)
    assert len(str(error.value)) < 300


def test_a_function_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves_for_a_test.py").write_text(
        "def split(text):\n    return text.split('|')\nnumber = 3\n", encoding="utf-8"
    )
    (tmp_path / "broken_for_a_test.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert load_splitter("halves_for_a_test:split")("a|b") == ["a", "b"]
    for name, message in [
        ("no_such_module_here:split", "ModuleNotFoundError"),
        ("halves_for_a_test:other", "AttributeError"),
        ("halves_for_a_test:number", "is a int, not a function"),
        ("broken_for_a_test:split", "ZeroDivisionError"),
    ]:
        with pytest.raises(SplitterError, match=message):
            sentence_ends(pa.array(["One."]), name)
