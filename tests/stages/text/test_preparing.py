"""All steps together: nothing is lost without a reason, and rows are told right."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.cleaning import CleaningOptions, clean
from stages.text.language import LanguageOptions
from stages.text.preparing import PreparingOptions, prepare_documents
from stages.text.quality import QualityOptions
from tests.oracle.real_text import shared_data

OPTIONS = PreparingOptions(
    cleaning=CleaningOptions(unwrap=False),
    min_characters=10,
    max_characters=60,
    quality=QualityOptions(max_digits=0.3, refused_phrases=("{",), drop_unterminated_lines=True),
)
TEXTS = st.lists(
    st.lists(
        st.sampled_from(["A sentence.", "menu", "123", "{", "\n", "\n\n", " "]), max_size=12
    ).map("".join),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_in_is_out_and_reasons(texts: list[str]) -> None:
    result = prepare_documents(pa.array(texts, pa.string()), OPTIONS)
    assert len(result.keep) == len(texts)
    assert sum(result.keep.to_pylist()) == len(result.texts)
    assert len(result.texts) + sum(result.reasons.values()) == len(texts)
    alone = [prepare_documents(pa.array([text]), OPTIONS) for text in texts]
    assert result.texts.to_pylist() == [t for a in alone for t in a.texts.to_pylist()]
    reasons = [reason for a in alone for reason in a.reasons]
    assert result.reasons == {reason: reasons.count(reason) for reason in set(reasons)}
    for example in result.examples:
        assert example.reason in alone[example.row].reasons
        assert not result.keep[example.row].as_py()


def test_each_reason() -> None:
    texts = [
        " \n ",
        "short.",
        "long " * 20 + ".",
        "A number 1234567890.",
        "{ code } code.",
        "no end of a sentence",
        "ok.\nno end of a sentence",
        "A good sentence.",
    ]
    result = prepare_documents(pa.array(texts), OPTIONS)
    assert result.texts.to_pylist() == ["A good sentence."]
    assert result.reasons == {
        "empty": 2,  # the sixth has no line left
        "too_short": 2,  # of the seventh three characters are left
        "too_long": 1,
        "quality_max_digits": 1,
        "quality_refused_phrases": 1,
    }
    assert sorted(example.row for example in result.examples) == list(range(7))
    details = {example.row: example.detail for example in result.examples}
    assert details[1] == "6 characters, at least 10 (corpus.min_characters)"
    assert details[2] == "100 characters, at most 60 (corpus.max_characters)".replace("100", "101")
    assert result.counts["unterminated_lines"] == 2


def test_languages_come_last() -> None:
    pytest.importorskip("py3langid")
    texts = [
        "x",
        "Der Ausschuss hat seinen Bericht vorgelegt.",
        "The report of the committee is out.",
    ]
    options = PreparingOptions(min_characters=5, languages=LanguageOptions(("en",)))
    result = prepare_documents(pa.array(texts), options)
    assert result.texts.to_pylist() == texts[2:]
    assert result.reasons == {"too_short": 1, "other_language": 1}
    assert [example.row for example in result.examples] == [0, 1]
    assert sum(result.languages.values()) == 2


def test_defaults_are_cleaning_and_nothing_else() -> None:
    path = shared_data() / "corpora" / "peps" / "peps.jsonl.gz"
    records = gzip.decompress(path.read_bytes()).decode().splitlines()
    texts = pa.array([json.loads(record)["text"] for record in records[:60]])
    result = prepare_documents(texts, PreparingOptions())
    assert result.texts.equals(clean(texts).texts)
    assert result.reasons == {}


def test_no_texts() -> None:
    result = prepare_documents(pa.array([], pa.string()), OPTIONS)
    assert (len(result.texts), len(result.keep), result.reasons) == (0, 0, {})
