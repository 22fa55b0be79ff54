"""The config of cleaning: presets as published, messages that say the mend."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline.config import compose
from pipeline.stage import UserError
from stages.config import Config
from stages.corpus_config import CorpusConfig, NearDuplicatesConfig, QualityConfig
from stages.text.minhash import NearDuplicateOptions


def quality(*overrides: str) -> QualityConfig:
    config = compose(overrides, None, Config).config
    assert isinstance(config, Config)
    return config.corpus.quality


def test_nothing_is_on_by_default() -> None:
    assert quality() == QualityConfig()
    corpus = CorpusConfig()
    assert not corpus.near_duplicates.enabled
    assert corpus.languages == ()
    assert corpus.max_characters is None


def test_gopher_as_published() -> None:
    """Rae et al., 2021, appendix A1.1 and table A1."""
    found = quality("quality=gopher")
    assert (found.min_words, found.max_words) == (50, 100_000)
    assert (found.min_mean_word_length, found.max_mean_word_length) == (3, 10)
    assert (found.max_symbol_word_ratio, found.max_bullet_lines) == (0.1, 0.9)
    assert (found.max_ellipsis_lines, found.min_letter_words) == (0.3, 0.8)
    assert found.min_stop_words == 2
    assert (found.max_repeated_lines, found.max_repeated_line_characters) == (0.3, 0.2)
    assert (found.max_repeated_paragraphs, found.max_repeated_paragraph_characters) == (0.3, 0.2)
    top = [getattr(found, f"max_top_{n}grams") for n in (2, 3, 4)]
    assert top == [0.2, 0.18, 0.16]
    again = [getattr(found, f"max_repeated_{n}grams") for n in range(5, 11)]
    assert again == [0.15, 0.14, 0.13, 0.12, 0.11, 0.10]
    assert not found.drop_unterminated_lines


def test_c4_as_published() -> None:
    """Raffel et al., 2020, section 2.2."""
    assert quality("quality=c4") == QualityConfig(
        drop_unterminated_lines=True,
        min_line_words=3,
        dropped_line_phrases=("javascript",),
        refused_phrases=("lorem ipsum", "{"),
        min_sentences=5,
    )


def test_a_rule_of_a_preset_can_be_changed_or_switched_off() -> None:
    found = quality(
        "quality=gopher", "corpus.quality.min_stop_words=null", "corpus=text", "corpus.paths=[a]"
    )
    assert (found.min_stop_words, found.min_words) == (None, 50)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(UserError, match="Perhaps you meant quality=gopher"):
        quality("quality=gophr")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"min_words": 9, "max_words": 3}, r"min_words=9 is above corpus\.quality\.max_words=3"),
        ({"stop_words": ("einschließlich",)}, r"stop_words: 'einschließlich' must be"),
        ({"stop_words": ("The",)}, "in lower case"),
        ({"refused_phrases": ("  ",)}, "a phrase is empty"),
        ({"max_digits": 1.5}, "max_digits"),
        ({"max_mean_word_length": float("inf")}, "finite"),
        ({"min_stop_words": 9}, "min_stop_words=9 is more than the 8 words"),
        ({"min_stop_words": 2, "stop_words": ("a", "a")}, "than the 1 words"),
    ],
)
def test_messages(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        QualityConfig.model_validate(values)


def test_lengths_leave_something() -> None:
    with pytest.raises(ValidationError, match=r"corpus\.min_characters=32 is above"):
        CorpusConfig(max_characters=10)


def test_near_duplicates_have_one_set_of_defaults() -> None:
    config = NearDuplicatesConfig()
    assert NearDuplicateOptions(**config.model_dump(exclude={"enabled"})) == NearDuplicateOptions()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("corpus.quality.max_mean_word_length=inf", "it must be a number of at least 0"),
        ("corpus.repeat=99999999999999999999", "of at most 1000"),
        ("corpus.languages=[english]", "english is no ISO 639 code"),
        ("corpus.languages=[EN]", "EN is no ISO 639 code"),
        ("corpus.encoding=utf9", "no encoding that Python knows"),
        ("corpus.encoding=base64", "no encoding that Python knows"),
        ("corpus.encoding=idna", "no encoding that Python knows"),
        ("corpus.encoding=undefined", "no encoding that Python knows"),
        ("corpus.format=jsonlines", "Perhaps you meant jsonl"),
        ("corpus.text_field=", "text"),
        ("mask.never=['']", "an empty text"),
    ],
)
def test_wrong_values_are_refused_with_their_key(override: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        quality("corpus=text", "corpus.paths=[a]", override)
    message = str(refused.value)
    assert said in message
    assert override.partition("=")[0] in message


@pytest.mark.parametrize("name", ["utf-16", "utf-32-be", "latin-1", "cp932", "hz", "detect"])
def test_encodings_of_text_are_taken(name: str) -> None:
    assert CorpusConfig(encoding=name).encoding == name


def test_a_wrong_value_of_a_source_is_named_by_its_place() -> None:
    sources = "corpus.sources=[{paths:[a]},{paths:[b],format:jsnol}]"
    with pytest.raises(
        UserError, match=r"^corpus\.sources\.1\.format \(command line\): 'jsnol' is"
    ):
        quality("corpus=mixed", sources)
