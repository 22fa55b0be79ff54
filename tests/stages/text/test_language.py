"""Language identification against the library it takes its model from."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from stages.text import language
from stages.text.language import (
    LanguageOptions,
    MissingLibraryError,
    accept_languages,
    identify,
)
from tests.oracle.real_text import paragraphs

ENGLISH = "The committee published its report on the state of the harbour last week."
GERMAN = "Der Ausschuss hat in der vergangenen Woche seinen Bericht über den Hafen vorgelegt."
EXPECTED = {"english": "en", "german": "de", "chinese": "zh", "vietnamese": "vi"}


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("py3langid")


def test_the_same_as_the_library() -> None:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    peer = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    texts = [
        ENGLISH,
        GERMAN,
        ENGLISH.upper(),
        "ok",
        "Zdravo svete",
        "Здраво свете",
        "e\u0301te\u0301",
    ]
    for name in EXPECTED:
        texts += [text[:400] for text in paragraphs(name, 6_000)[:25]]
    for text, guess in zip(texts, identify(pa.array(texts)), strict=True):
        if guess.language != "und":
            expected = peer.classify(text)
            assert guess.language == expected[0], text
            assert guess.probability == pytest.approx(expected[1], abs=2e-5), text


@pytest.mark.parametrize("name", EXPECTED)
def test_real_text(name: str) -> None:
    texts = paragraphs(name, 60_000)
    documents = ["\n\n".join(texts[i : i + 30]) for i in range(0, len(texts), 30)]
    found = [guess.language for guess in identify(pa.array(documents))]
    assert found.count(EXPECTED[name]) >= 0.9 * len(found)


def test_a_guess_is_the_same_alone_and_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [ENGLISH, GERMAN * 40, "", "123", "紅樓夢" * 900, "é" * 3000]
    whole = identify(pa.array(texts))
    assert [identify(pa.array([text]))[0] for text in texts] == whole
    monkeypatch.setattr(language, "GROUP", 2)
    assert identify(pa.array(texts)) == whole
    assert whole[2] == ("und", 0.0)


def test_the_middle_counts_too() -> None:
    assert len(ENGLISH * 3) < language.MIDDLE_BYTES
    title = "Report of the committee. " * 3
    assert identify(pa.array([title + GERMAN * 60]))[0].language == "de"


def test_accepted() -> None:
    texts = pa.array([ENGLISH, GERMAN, "Bonjour à tous, comment allez-vous aujourd'hui ?", ENGLISH])
    result = accept_languages(texts, LanguageOptions(("en", "de"), 0.5))
    assert result.keep.to_pylist() == [True, True, False, True]
    assert result.reasons == {"other_language": 1}
    assert result.found == {"en": 2, "de": 1, "fr": 1}
    (example,) = result.examples
    assert (example.row, example.reason) == (2, "other_language")
    assert example.detail.startswith("fr with probability ")


def test_unsure() -> None:
    texts = pa.array(["ok ne", ENGLISH * 5])
    unsure, sure = identify(texts)
    least = (unsure.probability + sure.probability) / 2
    assert unsure.probability < least < sure.probability
    result = accept_languages(texts, LanguageOptions((unsure.language, "en"), least))
    assert result.keep.to_pylist() == [False, True]
    assert result.reasons == {"unsure_language": 1}
    assert "corpus.min_language_probability" in result.examples[0].detail


def test_none_asked_for_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_model", None)
    assert accept_languages(pa.array(["a"]), LanguageOptions()).keep.to_pylist() == [True]


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ValueError, match=r"corpus\.languages: xx unknown; there are .*\bde\b"):
        accept_languages(pa.array(["a"]), LanguageOptions(("en", "xx")))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    language._model.cache_clear()
    with pytest.raises(MissingLibraryError, match=r"pip install 'clozeline\[languages\]'"):
        accept_languages(pa.array([ENGLISH]), LanguageOptions(("en",)))
    language._model.cache_clear()
