"""Configuration of the corpus: sources, cleaning, sentences, shards. Free of Ray and torch."""

from __future__ import annotations

import codecs
import difflib
import re
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from pipeline.config import Group
from stages.config_types import Amount, Count, OpenShare, PositiveInt, Share
from stages.text.listing import DETECT, Format

_PLUGIN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


Sample = Annotated[float, Field(gt=0.0, le=1.0)]
Repeat = Annotated[int, Field(ge=1, le=1000)]

FORMATS = ("auto", *(name for name in get_args(Format) if name != "python"))
"""How files are read; "auto" goes by the endings of `stages.text.listing.ENDINGS`."""


def _known_format(value: str) -> str:
    if value in FORMATS:
        return value
    near = difflib.get_close_matches(value.lower(), FORMATS, 1, 0.5)
    hint = f" Perhaps you meant {near[0]}." if near else ""
    raise ValueError(
        f"{value!r} is no format of a corpus: it must be one of {', '.join(FORMATS)}.{hint}"
    )


def _known_encoding(value: str) -> str:
    if value == DETECT:
        return value
    try:
        # Of Python's codecs some are between bytes, or for names of hosts.
        if codecs.lookup(value).name in ("idna", "punycode"):
            raise LookupError
        bytes(4).decode(value)
    except (LookupError, UnicodeError):
        raise ValueError(
            f"{value!r} is no encoding that Python knows: try utf-8, latin-1, cp1252 or {DETECT}"
        ) from None
    return value


FormatName = Annotated[str, AfterValidator(_known_format)]
Encoding = Annotated[str, AfterValidator(_known_encoding)]
FieldName = Annotated[str, Field(min_length=1)]


class SourceConfig(Group):
    """One of several sources of a corpus; what is null is as `corpus` says."""

    name: str | None = Field(
        None, description="In reports and provenance; null: the source's place in the list."
    )
    paths: tuple[str, ...] = Field(description="As corpus.paths.", min_length=1)
    format: FormatName | None = Field(None, description="As corpus.format.")
    text_field: FieldName | None = Field(None, description="As corpus.text_field.")
    id_field: str | None = Field(None, description="As corpus.id_field.")
    source_field: str | None = Field(None, description="As corpus.source_field.")
    encoding: Encoding | None = Field(None, description="As corpus.encoding.")
    sample: Sample | None = Field(None, description="As corpus.sample.")
    repeat: Repeat | None = Field(None, description="As corpus.repeat.")


INHERITED = ("format", "text_field", "id_field", "source_field", "encoding", "sample", "repeat")
"""Fields that a source takes from `corpus` where it leaves them out."""


class QualityConfig(Group):
    """Rules that refuse documents, each off at null. `quality=gopher` and `quality=c4` set them.

    Made for English web pages; a word is what stands between spaces, a line what cleaning leaves.
    """

    min_words: Count | None = Field(None, description="Fewer words are refused (Gopher: 50).")
    max_words: PositiveInt | None = Field(
        None, description="More words are refused (Gopher: 100,000)."
    )
    min_mean_word_length: Amount | None = Field(
        None, description="Least mean of characters a word (Gopher: 3, English)."
    )
    max_mean_word_length: Amount | None = Field(
        None, description="Greatest mean of characters a word (Gopher: 10, English)."
    )
    max_symbol_word_ratio: Amount | None = Field(
        None, description="Hash signs, or ellipses, a word (Gopher: 0.1)."
    )
    max_bullet_lines: Share | None = Field(
        None, description="Share of lines that start with a bullet (Gopher: 0.9)."
    )
    max_ellipsis_lines: Share | None = Field(
        None, description="Share of lines that end with an ellipsis (Gopher: 0.3)."
    )
    min_letter_words: Share | None = Field(
        None, description="Least share of words with a letter in them (Gopher: 0.8)."
    )
    min_stop_words: Count | None = Field(
        None, description="Least number of different stop words (Gopher: 2)."
    )
    stop_words: tuple[str, ...] = Field(
        ("the", "be", "to", "of", "and", "that", "have", "with"),
        description="For min_stop_words, in lower case (Gopher's: English).",
    )
    max_symbols: Share | None = Field(
        None, description="Share of characters, white space left out, that are no letter or digit."
    )
    max_digits: Share | None = Field(
        None, description="Share of characters, white space left out, that are digits."
    )
    max_repeated_lines: Share | None = Field(
        None, description="Share of lines that came before (Gopher: 0.3)."
    )
    max_repeated_line_characters: Share | None = Field(
        None, description="Share of characters in lines that came before (Gopher: 0.2)."
    )
    max_repeated_paragraphs: Share | None = Field(
        None, description="Share of paragraphs that came before (Gopher: 0.3)."
    )
    max_repeated_paragraph_characters: Share | None = Field(
        None, description="Share of characters in paragraphs that came before (Gopher: 0.2)."
    )
    max_top_2grams: Share | None = Field(
        None, description="Share of characters in the most frequent 2-gram (Gopher: 0.2)."
    )
    max_top_3grams: Share | None = Field(None, description="As max_top_2grams (Gopher: 0.18).")
    max_top_4grams: Share | None = Field(None, description="As max_top_2grams (Gopher: 0.16).")
    max_repeated_5grams: Share | None = Field(
        None, description="Share of characters in 5-grams that came before (Gopher: 0.15)."
    )
    max_repeated_6grams: Share | None = Field(
        None, description="As max_repeated_5grams (Gopher: 0.14)."
    )
    max_repeated_7grams: Share | None = Field(
        None, description="As max_repeated_5grams (Gopher: 0.13)."
    )
    max_repeated_8grams: Share | None = Field(
        None, description="As max_repeated_5grams (Gopher: 0.12)."
    )
    max_repeated_9grams: Share | None = Field(
        None, description="As max_repeated_5grams (Gopher: 0.11)."
    )
    max_repeated_10grams: Share | None = Field(
        None, description="As max_repeated_5grams (Gopher: 0.10)."
    )
    refused_phrases: tuple[str, ...] = Field(
        (), description='Documents that hold one are refused (C4: "lorem ipsum" and "{").'
    )
    drop_unterminated_lines: bool = Field(
        False, description="Drop lines that do not end a sentence or quotation (C4)."
    )
    min_line_words: PositiveInt | None = Field(
        None, description="Lines of fewer words are dropped (C4: 3)."
    )
    dropped_line_phrases: tuple[str, ...] = Field(
        (), description='Lines that hold one are dropped (C4: "javascript").'
    )
    min_sentences: PositiveInt | None = Field(
        None, description="Fewer sentences are refused, after lines were dropped (C4: 5)."
    )

    @field_validator("stop_words")
    @classmethod
    def _short(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for word in value:
            if not word or len(word.encode()) > 8 or word != word.lower():
                raise ValueError(
                    f"corpus.quality.stop_words: {word!r} must be in lower case and have 1 to 8 "
                    "bytes: take a shorter one"
                )
        return value

    @field_validator("refused_phrases", "dropped_line_phrases")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not phrase.strip() for phrase in value):
            raise ValueError("corpus.quality: a phrase is empty, and every text would hold it")
        return value

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        for name in ("words", "mean_word_length"):
            least, most = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"corpus.quality.min_{name}={least} is above corpus.quality.max_{name}="
                    f"{most}: no document would be left"
                )
        if (self.min_stop_words or 0) > len(set(self.stop_words)):
            raise ValueError(
                f"corpus.quality.min_stop_words={self.min_stop_words} is more than the "
                f"{len(set(self.stop_words))} words of corpus.quality.stop_words: no document "
                "would be left"
            )
        return self


class NearDuplicatesConfig(Group):
    """Documents that are almost another one, found by MinHash."""

    enabled: bool = Field(
        False, description="Keep one of several documents that are nearly the same."
    )
    threshold: OpenShare = Field(
        0.8, description="Share of common shingles (Jaccard similarity) from which they are."
    )
    shingle_words: PositiveInt = Field(5, description="Words a shingle.")
    permutations: Annotated[int, Field(ge=16, le=1024)] = Field(
        128, description="Length of a signature: more find and judge better, and cost more."
    )


class CorpusConfig(Group):
    """Where raw text comes from and how it becomes clean documents in shards."""

    kind: Literal["python_docs", "files"] = Field(
        "files", description="python_docs: docstrings of installed packages; files: paths below."
    )
    paths: tuple[str, ...] = Field(
        (),
        description="Files, folders or globs (kind: files): absolute, from the current folder, or "
        "as URIs (s3://, gs://, hdfs://, file://).",
    )
    sources: tuple[SourceConfig, ...] = Field(
        (),
        description="Instead of paths: several sources in one corpus, each {name, paths, sample, "
        "repeat...}; fields that one leaves out are as below.",
    )
    format: FormatName = Field(
        "auto",
        description="text: a document a file; blank_lines: blank lines between documents; "
        "sentences: google-research/bert (a sentence a line, blank lines between documents); "
        "jsonl: an object a line; csv, tsv, parquet, arrow: a row a document; wikiextractor: "
        "<doc>...</doc>; mediawiki: XML dumps; wikitext: articles under = Title =; auto: by the "
        "name's ending.",
    )
    text_field: FieldName = Field(
        "text", description='Column or key that holds the text; "article.body" in nested data.'
    )
    id_field: str | None = Field(
        "id", description="Column or key of a record's id, kept as provenance where it is there."
    )
    source_field: str | None = Field(
        None, description="Column or key that says where a record came from; null: its file."
    )
    encoding: Encoding = Field(
        "utf-8", description="Of text files; a BOM wins over it; detect: by each file's content."
    )
    sample: Sample = Field(
        1.0,
        description="Share of documents kept, chosen by a hash of their content: the same ones in "
        "any files.",
    )
    repeat: Repeat = Field(
        1,
        description="Copies of each training document, made after deduplication; validation "
        "documents are never repeated.",
    )
    distributions: tuple[str, ...] = Field(
        (), description="Installed distributions that python_docs reads besides the stdlib."
    )
    min_characters: Count = Field(
        32, description="Shorter documents are left out and counted as too_short."
    )
    max_characters: PositiveInt | None = Field(
        None, description="Longer documents are left out and counted as too_long; null: none is."
    )
    boilerplate: bool = Field(
        True, description="Take out Project Gutenberg's headers, credits and footers."
    )
    unwrap: bool = Field(
        True, description="Join hard-wrapped lines of a paragraph; blank lines stay breaks."
    )
    nfc: bool = Field(True, description="Compose characters (Unicode NFC): one spelling a word.")
    invisible: bool = Field(
        True,
        description="Remove soft hyphens, zero-width spaces, direction marks, byte order marks. "
        "Control characters always go: no later stage can hold them.",
    )
    line_breaks: bool = Field(
        True,
        description="Form feeds, vertical tabs, NEL, LS and PS become newlines; false: spaces. "
        "CR and CRLF always become newlines.",
    )
    white_space: bool = Field(
        True,
        description="Single spaces, at most one blank line; false: indentation and runs stay. Tabs "
        "and special spaces always become spaces, and both ends of a document are stripped.",
    )
    deduplicate: bool = Field(True, description="Keep one of several equal documents.")
    near_duplicates: NearDuplicatesConfig = NearDuplicatesConfig()
    quality: QualityConfig = QualityConfig()
    languages: tuple[str, ...] = Field(
        (),
        description="Keep documents in these languages (ISO 639: [en, de]); empty: all. Needs the "
        "extra: pip install 'clozeline[languages]'.",
    )
    min_language_probability: Share = Field(
        0.5, description="Documents whose language is less certain are left out."
    )
    sentences: str = Field(
        "icu",
        description="icu: ICU rules with abbreviations; sentencex: rules of some 300 languages; "
        "lines: a sentence a line; package.module:function: your own, from a document's text to "
        "the list of its sentences.",
    )
    language: str = Field(
        "en", description="ISO 639 code of the text's language, for sentences: sentencex."
    )
    max_document_bytes: Annotated[int, Field(ge=1000)] = Field(
        1_000_000, description="Longer documents are cut at sentence ends; parts keep their origin."
    )
    shard_bytes: PositiveInt = Field(64_000_000, description="Cleaned text a shard aims at.")
    shards: PositiveInt | None = Field(
        None, description="Number of training shards; null: from shard_bytes."
    )
    validation_share: OpenShare = Field(
        0.02, description="Share of documents held out, chosen by a hash of their content."
    )
    max_unreadable_share: Share = Field(
        0.01, description="More unreadable documents than this fail the stage. Changes no result."
    )

    def resolved_sources(self) -> tuple[SourceConfig, ...]:
        """The sources with every null filled in; of `paths`, the one source without a name."""
        own = {name: getattr(self, name) for name in INHERITED}
        if not self.sources:
            return (SourceConfig(name="", paths=self.paths, **own),)
        return tuple(
            SourceConfig(
                **{
                    **own,
                    **{k: v for k, v in source.model_dump().items() if v is not None},
                    "name": source.name or str(place),
                }
            )
            for place, source in enumerate(self.sources, start=1)
        )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.kind == "python_docs":
            for key in ("paths", "sources"):
                if getattr(self, key):
                    raise ValueError(
                        f"corpus.{key} is given, but corpus.kind=python_docs reads no files: set "
                        f"corpus=text (or another group of files), or leave corpus.{key} out"
                    )
        if self.paths and self.sources:
            raise ValueError(
                "corpus.paths and corpus.sources are both given: move the paths into a source, "
                "{paths: [...]}, or leave one of them out"
            )
        names = [source.name for source in self.resolved_sources()] if self.sources else []
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"corpus.sources: two sources are named {twice!r}: give each a name of its own"
            )
        return self

    @field_validator("sentences")
    @classmethod
    def _known_sentences(cls, value: str) -> str:
        if value in ("icu", "sentencex", "lines") or _PLUGIN.fullmatch(value):
            return value
        raise ValueError(
            f"corpus.sentences={value} is no way to split sentences: use icu, sentencex, lines, or "
            "package.module:function"
        )

    @field_validator("languages")
    @classmethod
    def _codes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for code in value:
            if not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(
                    f"corpus.languages: {code} is no ISO 639 code: two or three small letters, as "
                    "en or de"
                )
        return value

    @field_validator("language")
    @classmethod
    def _known_language(cls, value: str) -> str:
        if re.fullmatch("[a-z]{2,3}", value):
            return value
        raise ValueError(
            f"corpus.language={value} is no ISO 639 code: two or three small letters, as en or de"
        )

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"corpus.min_characters={self.min_characters} is above corpus.max_characters="
                f"{self.max_characters}: no document would be left"
            )
        return self
