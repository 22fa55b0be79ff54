"""Quality rules: each figure against its plain twin, limits, lines, examples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus_config import QualityConfig
from stages.text import quality
from stages.text.buffers import text_buffer
from stages.text.cleaning import CleaningOptions, clean
from stages.text.measures import Measures
from stages.text.quality import QualityOptions, filter_documents
from tests.oracle import plain_quality
from tests.oracle.real_text import paragraphs

FIGURES = sorted({figure for _, figure, _ in quality._LIMITS} - {"sentences"})
RULES = [option for option, _, _ in quality._LIMITS]
PIECES = st.one_of(
    st.sampled_from(["the ", "of ", "With ", "the the ", "a b c d e ", "of the of the ", " "]),
    st.sampled_from(["\n", "\n\n", "- item\n", "• item\n", "…\n", "...\n", "....", "##", "# "]),
    st.sampled_from(
        ["Same line.\n", "Same paragraph.\n\n", "word", "a1", "12", "٣", "३", "¥", "→"]
    ),
    st.sampled_from(
        ["紅樓夢", "か", "ไทย", "မြန်", "ខ្មែរ", "é", "किताब।", "😀", "»", "豈", "﨑", "𠀀"]
    ),
    st.sampled_from(["Javascript ", "lorem ipsum", "{", '"', "。", "”\n", "?"]),
)
TEXTS = st.lists(st.lists(PIECES, max_size=30).map("".join), min_size=1, max_size=5)


def cleaned(texts: list[str]) -> pa.Array:
    return clean(pa.array(texts, pa.string()), CleaningOptions(unwrap=False)).texts


def figures(texts: pa.Array) -> dict[str, list[float]]:
    measures = Measures(*text_buffer(texts), quality.ENGLISH_STOP_WORDS, RULES)
    return {name: measures.figure(name).tolist() for name in FIGURES}


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_each_figure_equals_its_plain_twin(texts: list[str]) -> None:
    column = cleaned(texts)
    found = figures(column)
    for name in FIGURES:
        plain = [plain_quality.figure(text, name) for text in column.to_pylist()]
        assert found[name] == pytest.approx(plain, abs=1e-12), name


@pytest.mark.parametrize("language", ["english", "german", "chinese", "hindi", "vietnamese"])
def test_figures_of_real_text(language: str) -> None:
    texts = paragraphs(language, 30_000)
    # Documents of several paragraphs, so that something repeats itself.
    column = cleaned(["\n\n".join(texts[i : i + 40]) for i in range(0, len(texts), 40)])
    found = figures(column)
    for name in FIGURES:
        plain = [plain_quality.figure(text, name) for text in column.to_pylist()]
        assert found[name] == pytest.approx(plain, abs=1e-12), name
    assert max(found["top_2grams"]) > 0


LINE_RULES = st.tuples(
    st.booleans(), st.none() | st.integers(1, 4), st.sampled_from([[], ["javascript", "a b"]])
)


@settings(max_examples=150, deadline=None)
@given(TEXTS, LINE_RULES)
def test_lines_equal_the_plain_twin(
    texts: list[str], rules: tuple[bool, int | None, list[str]]
) -> None:
    column = cleaned(texts)
    terminated, min_words, phrases = rules
    options = QualityOptions(
        drop_unterminated_lines=terminated,
        min_line_words=min_words,
        dropped_line_phrases=tuple(phrases),
    )
    result = filter_documents(column, options)
    result.texts.validate(full=True)
    plain = [
        plain_quality.kept_lines(t, terminated, min_words, phrases) for t in column.to_pylist()
    ]
    assert result.texts.to_pylist() == plain
    before = sum(line != "" for t in column.to_pylist() for line in t.split("\n"))
    after = sum(line != "" for t in plain for line in t.split("\n"))
    assert sum(result.counts.values()) == before - after


GOPHER = QualityOptions(
    min_words=3,
    max_digits=0.2,
    max_bullet_lines=0.5,
    max_repeated_lines=0.3,
    max_top_2grams=0.3,
    max_repeated_5grams=0.2,
    refused_phrases=("Lorem Ipsum", "{"),
    drop_unterminated_lines=True,
)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 60))
def test_neighbours_and_blocks_make_no_difference(texts: list[str], size: int) -> None:
    column = cleaned(texts)
    whole = filter_documents(column, GOPHER)
    alone = [filter_documents(column[i : i + 1], GOPHER) for i in range(len(column))]
    assert whole.keep.to_pylist() == [a.keep[0].as_py() for a in alone]
    assert whole.texts.to_pylist() == [a.texts[0].as_py() for a in alone]
    default = quality.BLOCK_BYTES
    quality.BLOCK_BYTES = size
    try:
        blocks = filter_documents(column, GOPHER)
    finally:
        quality.BLOCK_BYTES = default
    assert blocks == whole


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_every_refused_text_has_a_reason(texts: list[str]) -> None:
    result = filter_documents(cleaned(texts), GOPHER)
    refused = np.flatnonzero(~result.keep.to_numpy(zero_copy_only=False)).tolist()
    assert sum(result.reasons.values()) == len(refused)
    assert sorted(example.row for example in result.examples) == refused


PROSE = "The quick brown fox jumps over the lazy dog that sleeps with one eye on the road."
REFUSED = {
    "min_words": (3, "two words"),
    "max_words": (3, "now there are four"),
    "min_mean_word_length": (3, "a b c d"),
    "max_mean_word_length": (10, "incomprehensibilities notwithstanding"),
    "max_symbols": (0.3, "a +++ b"),
    "max_digits": (0.3, "a 123 b"),
    "max_symbol_word_ratio": (0.1, "see # 1"),
    "max_bullet_lines": (0.9, "- a\n- b"),
    "max_ellipsis_lines": (0.3, "and so on...\nfull stop."),
    "min_letter_words": (0.8, "a 1 2 3"),
    "min_stop_words": (2, "the cat sat"),
    "max_repeated_lines": (0.3, "a b\na b\nc"),
    "max_repeated_line_characters": (0.2, "long line here\nlong line here\nc\nd\ne"),
    "max_repeated_paragraphs": (0.3, "a b\n\na b\n\nc"),
    "max_repeated_paragraph_characters": (0.2, "a long one\n\na long one\n\nc\n\nd\n\ne"),
    "max_top_2grams": (0.2, "buy now x buy now y buy now z"),
    "max_top_3grams": (0.18, "please buy now x please buy now y"),
    "max_top_4grams": (0.16, "please do buy now x please do buy now y"),
    "min_sentences": (2, "One sentence."),
} | {
    f"max_repeated_{n}grams": (0.1, " ".join([*map(str, range(n)), "x", *map(str, range(n))]))
    for n in range(5, 11)
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_what_it_is_for(rule: str) -> None:
    limit, bad = REFUSED[rule]
    good = PROSE + " It barks." if rule != "max_words" else "ok"
    options = dataclasses.replace(QualityOptions(), **{rule: limit})
    result = filter_documents(pa.array([good, bad]), options)
    assert result.keep.to_pylist() == [True, False]
    (example,) = result.examples
    assert result.reasons == {f"quality_{rule}": 1}
    assert (example.row, example.reason) == (1, f"quality_{rule}")
    assert f"corpus.quality.{rule}" in example.detail
    assert f"{limit:g}" in example.detail


def test_the_first_rule_that_is_broken_is_the_reason() -> None:
    texts = pa.array(["{ 1 1 }", "1 1"])
    options = QualityOptions(min_words=3, max_digits=0.1, refused_phrases=("{",))
    result = filter_documents(texts, options)
    assert result.reasons == {"quality_refused_phrases": 1, "quality_min_words": 1}


def test_phrases_refuse_whatever_their_case() -> None:
    texts = pa.array(["Lorem IPSUM dolor", "lorem", "ipsum", "if (x) { y }"])
    result = filter_documents(texts, QualityOptions(refused_phrases=("lorem ipsum", "{")))
    assert result.keep.to_pylist() == [False, True, True, False]
    assert result.reasons == {"quality_refused_phrases": 2}
    assert "'{'" in result.examples[1].detail


def test_stop_words_of_another_language() -> None:
    texts = pa.array(["Der Hund und für die Katz", "the dog of that man"])
    options = QualityOptions(min_stop_words=2, stop_words=("der", "und", "für"))
    assert filter_documents(texts, options).keep.to_pylist() == [True, False]
    with pytest.raises(ValueError, match="longer than 8 bytes"):
        filter_documents(texts, QualityOptions(stop_words=("einschließlich",)))


def test_only_the_beginning_of_a_huge_text_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "JUDGED_BYTES", 101)
    text = "é" * 60 + "1" * 500
    assert filter_documents(pa.array([text]), QualityOptions(max_digits=0.1)).keep.to_pylist() == [
        True
    ]


def test_off_changes_nothing() -> None:
    texts = pa.array(["a", "", "{" * 9])
    result = filter_documents(texts, QualityOptions())
    assert result.texts is texts
    assert result.keep.to_pylist() == [True] * 3


def test_the_config_has_the_same_fields_and_defaults() -> None:
    config = QualityConfig().model_dump()
    assert QualityOptions(**config) == QualityOptions()
    assert list(config) == [field.name for field in dataclasses.fields(QualityOptions)]
