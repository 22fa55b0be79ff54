from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import icu
from stages.text.cleaning import CleaningOptions, clean
from stages.text.sentences import sentence_ends
from tests.oracle import plain_sentences
from tests.oracle.real_text import FILES, corpora, paragraphs

PIECES = st.one_of(
    st.sampled_from(
        ["Mr. ", "J. ", "z.B. ", "No. ", "1. ", "12. ", "e.g. ", "“Dr. ", "Yes. ", "no. "]
    ),
    st.sampled_from(
        ["It rained. ", "Who came? ", "Stop!\n", "你好。", "再見！", "नमस्ते। ", "“Go.” ", "I. "]
    ),
    st.sampled_from(
        ["😀 ", "𝒳. ", "é. ", "\n", "\n\n", " ", "x", "A.", "...", "v. Chr. ", "Über. "]
    ),
    st.text(max_size=4),
)
TEXTS = st.lists(PIECES, max_size=15).map("".join)


def split(text: str, method: str = "icu") -> list[str]:
    raw = text.encode()
    ends = sentence_ends(pa.array([text]), method)[0].as_py()
    return [raw[a:b].decode().strip() for a, b in pairwise([0, *ends])]


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from([1, 40, 128_000]), st.booleans())
def test_equals_one_call_a_document(texts: list[str], group: int, white_space: bool) -> None:
    options = CleaningOptions(unwrap=False, white_space=white_space)
    column = clean(pa.array(texts, pa.string()), options).texts
    default = icu.GROUP_BYTES
    icu.GROUP_BYTES = group
    try:
        ends = sentence_ends(column)
    finally:
        icu.GROUP_BYTES = default
    ends.validate(full=True)
    assert ends.type == pa.list_(pa.uint32())
    assert ends.to_pylist() == [plain_sentences.sentence_ends(t) for t in column.to_pylist()]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from(["icu", "lines"]))
def test_sentences_are_the_text_and_none_is_blank(text: str, method: str) -> None:
    cleaned = clean(pa.array([text])).texts[0].as_py()
    parts = split(cleaned, method)
    assert all(parts)
    assert "".join("".join(parts).split()) == "".join(cleaned.split())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Mr. Bennet made no answer. Mrs. Bennet replied.", 2),
        ("J. R. R. Tolkien wrote it. It is long.", 2),
        ("See Fig. 3 and No. 5 there. He said no. Then he left.", 3),
        ("Das gilt z.B. für Wasser. Vgl. Abs. 2 Nr. 4 dazu.", 2),
        ("1. Introduction to the matter. 2. Methods.", 2),
        ("He lived in the U.S. Army camp. It was cold.", 2),
        ("“Stop!” he cried. “Why?” she asked.", 2),
        ("你好。再見！他說：“走吧。”然後呢？", 4),
        ("यह पहला वाक्य है। यह दूसरा है।", 2),
        ("Look 😀. And 𝒳 too. End.", 3),
        ("A heading\n\nMr.\nA line.", 3),
        ("", 0),
        (" \n ", 0),
    ],
)
def test_known_sentences(text: str, count: int) -> None:
    assert len(split(text)) == count, split(text)


# Short lines of the public domain, or plain phrases; "|" stands where a sentence ends.
@pytest.mark.parametrize(
    "text",
    [
        # Chinese: the closing quotation mark belongs to the sentence (Dream of the Red Chamber).
        "滿紙荒唐言，一把辛酸淚！|都云作者痴，誰解其中味？",
        "寶玉笑道：「這個妹妹我曾見過的。」|賈母笑道：「可又是胡說！」|眾人都笑了。",
        "他說：“好。”|她問：“真的嗎？！”|……",
        "第一句。）|第二句；第三句。",
        # Japanese (I Am a Cat).
        "吾輩は猫である。|名前はまだ無い。",
        # Hindi: danda and double danda (Ramcharitmanas).
        "मंगल भवन अमंगल हारी।| द्रवउ सुदसरथ अजिर बिहारी॥| राम सिया राम।",
        # Arabic, Urdu, Persian marks.
        "كيف حالك؟| أنا بخير.| شكرا!",
        "یہ کیا ہے؟| یہ کتاب ہے۔| اچھا۔",
        # Armenian, Ethiopic, Burmese, Tibetan.
        "Նա եկավ։| Բոլորը լռեցին։",
        "ሰላም ነው።| እንዴት ነህ፧| ደህና።",
        "သူ လာသည်။| ငါ သွားသည်။",
        # Greek: a semicolon asks.
        "Ποῖος εἶναι; Ἦλθε.",
        # Thai has no marks: a space stands between sentences, and between phrases. The line is one.
        "เขามาแล้ว เขาไปแล้ว",
        # Vietnamese (The Tale of Kieu).
        "Trăm năm trong cõi người ta.| Chữ tài chữ mệnh khéo là ghét nhau!| Trải qua.",
    ],
)
def test_marks_of_other_scripts(text: str) -> None:
    wanted = [part.strip() for part in text.split("|")]
    assert split(text.replace("|", "")) == wanted


def test_offsets_behind_astral_characters_count_bytes() -> None:
    assert split("😀😀 Yes. Né à Paris. 𝒳𝒳! Ok.") == ["😀😀 Yes.", "Né à Paris.", "𝒳𝒳!", "Ok."]


def test_look_back_stops_at_the_document() -> None:
    # "Mr" ends one text, ". Next" starts another.
    ends = sentence_ends(pa.array(["He met Mr", ". Next came. End."]))
    assert ends.to_pylist() == [[9], plain_sentences.sentence_ends(". Next came. End.")]
    assert len(ends[1]) == 3


def test_white_space_behind_the_text_is_no_sentence() -> None:
    assert sentence_ends(pa.array(["One. ", "Two. \n ", "Mr. "])).to_pylist() == [[4], [4], [3]]


def test_lines() -> None:
    assert split("One. Two.\nThree\n\nFour", "lines") == ["One. Two.", "Three", "Four"]


def test_sliced_and_empty_columns() -> None:
    column = pa.array(["x. Y.", "", "One. Two.", "", "Z."])
    assert sentence_ends(column.slice(1, 3)).to_pylist() == [[], [4, 9], []]
    assert sentence_ends(pa.array([], pa.string())).to_pylist() == []
    with pytest.raises(ValueError, match="icu, lines, sentencex or"):
        sentence_ends(column, "punkt")


@pytest.mark.parametrize("language", list(FILES))
def test_real_text_equals_one_call_a_document(language: str) -> None:
    column = clean(pa.array(paragraphs(language, 60_000))).texts
    wanted = [plain_sentences.sentence_ends(t) for t in column.to_pylist()]
    assert sentence_ends(column).to_pylist() == wanted


@pytest.mark.parametrize(
    ("name", "least"),
    [("gum-en", 0.865), ("wikitext2-valid", 0.92), ("pud-de", 0.935), ("pud-hi", 0.985)],
)
def test_agrees_with_human_splits(name: str, least: float) -> None:
    text = (corpora() / "bert-format" / f"{name}.txt").read_text(encoding="utf-8")
    documents = [d.strip().split("\n") for d in text.strip().split("\n\n")]
    joined = [" ".join(d) for d in documents]
    found = sentence_ends(pa.array(joined)).to_pylist()
    right = wrong = missed = 0
    for lines, ends in zip(documents, found, strict=True):
        gold, at = set(), -1
        for line in lines[:-1]:
            at += len(line.encode()) + 1
            gold.add(at)
        inner = set(ends[:-1])
        right += len(gold & inner)
        wrong += len(inner - gold)
        missed += len(gold - inner)
    assert 2 * right / (2 * right + wrong + missed) >= least
