"""Configuration of the stages: one frozen group a topic, free of Ray and torch.

The groups say what they change: `corpus`, `vocab`, `pairs`, `mask` the data; `model`, `objective`,
`train` the mathematics; `rounding` the last bits; `speed` nothing. Every number carries its unit
in its name, every field a description (`clozeline config show` prints them).
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import math
import re
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from pipeline.config import Group, RunConfig
from stages.text.listing import DETECT, Format
from stages.text.special_tokens import SPECIAL_TOKENS

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Amount = Annotated[float, Field(ge=0.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]

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


class VocabConfig(Group):
    """The WordPiece vocabulary."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    from_: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        alias="from",
        description="An existing vocabulary, used as it is: a vocab.txt, a tokenizer.json or a "
        "transformers folder, whose settings of case and accents win over those here. "
        "null: trained on the corpus.",
    )
    size: PositiveInt = Field(30_522, description="Entries, special tokens included.")
    required: tuple[str, ...] = Field(
        (), description="Words that must be entries, never split; right after the special tokens."
    )
    lowercase: bool = Field(True, description="Lower-case the text (BERT uncased).")
    strip_accents: bool | None = Field(
        None, description="Remove accents; null: as lowercase says, BERT's rule."
    )
    chinese_characters: bool = Field(True, description="Each CJK ideograph is a word of its own.")
    trainer: Literal["exact", "huggingface"] = Field(
        "exact",
        description="exact: deterministic, 64-bit counts; huggingface: tokenizers' trainer.",
    )
    min_frequency: PositiveInt = Field(2, description="Merges seen less often are not made.")
    limit_alphabet: PositiveInt = Field(
        1000, description="Characters kept, most frequent first; others become [UNK]."
    )
    max_words: PositiveInt = Field(
        1_000_000,
        description="Distinct words that are trained on, most frequent first: a million take about "
        "1 GB of memory.",
    )
    max_word_characters: PositiveInt = Field(
        100, description="Longer words become [UNK] (WordPiece's max_input_chars_per_word)."
    )

    @field_validator("required")
    @classmethod
    def _whole_tokens(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for index, token in enumerate(value):
            if not token or token.split() != [token]:
                raise ValueError(f"vocab.required: {token!r} is not one word: leave it out")
            if token in value[:index] or token in SPECIAL_TOKENS:
                where = "twice" if token in value[:index] else "in every vocabulary anyway"
                raise ValueError(f"vocab.required: {token!r} stands {where}: leave it out")
        return value

    @model_validator(mode="after")
    def _existing_is_used_as_it_is(self) -> Self:
        if self.from_ is not None and self.required:
            raise ValueError(
                f"vocab.required adds entries, and vocab.from={self.from_} is used as it is: leave "
                "one of them out"
            )
        return self

    @model_validator(mode="after")
    def _more_than_specials(self) -> Self:
        if self.from_ is not None:
            return self  # its size is that of the files
        if self.required and self.size <= len(SPECIAL_TOKENS) + len(self.required):
            raise ValueError(
                f"vocab.size={self.size} must be above the {len(SPECIAL_TOKENS)} special and "
                f"{len(self.required)} required tokens: raise vocab.size"
            )
        if self.size <= len(SPECIAL_TOKENS):
            raise ValueError(
                f"vocab.size={self.size} must be above the {len(SPECIAL_TOKENS)} special tokens "
                f"{' '.join(SPECIAL_TOKENS)}: raise vocab.size"
            )
        return self


class PairsConfig(Group):
    """IsNext/NotNext pairs."""

    max_seq_length: Annotated[int, Field(ge=8)] = Field(
        128, description="Tokens a row at most, the three special tokens included."
    )
    balance: Literal["exact", "reference"] = Field(
        "exact",
        description="exact: half IsNext, half NotNext in each shard; reference: as google's.",
    )
    partner: Literal["any", "same_source"] = Field(
        "any", description="Whence NotNext takes B: any other document of the shard."
    )
    short_sequence_probability: Share = Field(
        0.1, description="Share of documents, in each pass, with a random shorter target."
    )
    copies: PositiveInt = Field(1, description="Passes with other splits, targets and partners.")
    across_documents: bool = Field(
        False, description="With objective.nsp: false: rows go on in the next document."
    )

    @field_validator("partner")
    @classmethod
    def _no_sources_yet(cls, value: str) -> str:
        if value == "same_source":
            raise ValueError(
                "pairs.partner=same_source is not there yet: where a document came from is "
                "provenance and no part of a shard's content, so that the same documents in other "
                "files give the same shards, and pairs made from it would be kept when it "
                "changes. Use any"
            )
        return value


class MaskConfig(Group):
    """Masked positions and what stands in them."""

    strategy: Literal["per_token", "whole_word", "span"] = Field(
        "per_token",
        description="What is chosen together: single pieces, all pieces of a word, or spans of "
        "whole words (SpanBERT).",
    )
    probability: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.15, description="Share of a row's tokens, special tokens counted, to be predicted."
    )
    max_predictions: PositiveInt | None = Field(
        None, description="Cap a row; null: ceil(probability x max_seq_length)."
    )
    mask_share: Share = Field(0.8, description="Of chosen positions: replaced by [MASK].")
    random_share: Share = Field(0.1, description="Of chosen positions: replaced by a random entry.")
    never: tuple[str, ...] = Field(
        (),
        description="Vocabulary entries that are neither predicted nor drawn, nor is a whole word "
        "with one; [CLS] and [SEP] never are.",
    )
    span_probability: OpenShare = Field(
        0.2, description="Strategy span: p of the geometric law of a span's words."
    )
    span_words: Annotated[int, Field(ge=1, le=255)] = Field(
        10, description="Strategy span: the most words of a span."
    )
    span_together: bool = Field(
        True,
        description="Strategy span: a span becomes [MASK], random or stays as a whole, as in "
        "SpanBERT; false: each token by itself.",
    )
    copies: PositiveInt = Field(1, description="Masked copies of each row; copy k is for pass k.")

    @field_validator("never")
    @classmethod
    def _entries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("mask.never holds an empty text, which is no entry: leave it out")
        return value

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise ValueError(
                f"mask.mask_share + mask.random_share = {self.mask_share + self.random_share:g} is "
                "above 1: lower one of them (the rest keeps the original token)"
            )
        return self


class ModelConfig(Group):
    """The encoder's shape."""

    hidden_size: PositiveInt = Field(128, description="Width d.")
    num_layers: PositiveInt = Field(2, description="Encoder blocks L.")
    num_heads: PositiveInt = Field(2, description="Attention heads; must divide hidden_size.")
    intermediate_size: PositiveInt | None = Field(
        None, description="Width of the feed-forward layer; null: 4 x hidden_size."
    )
    max_position_embeddings: PositiveInt = Field(512, description="Rows of the position table.")
    hidden_dropout: Dropout = Field(0.1, description="On embeddings and block outputs.")
    attention_dropout: Dropout = Field(0.1, description="On attention probabilities.")
    initializer_range: Annotated[float, Field(gt=0)] = Field(
        0.02, description="Standard deviation of the truncated normal initialisation."
    )
    layer_norm_eps: Annotated[float, Field(gt=0)] = Field(1e-12, description="LayerNorm epsilon.")

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.hidden_size % self.num_heads:
            fits = [h for h in range(1, self.hidden_size + 1) if self.hidden_size % h == 0]
            near = min(fits, key=lambda h: abs(h - self.num_heads))
            raise ValueError(
                f"model.num_heads={self.num_heads} does not divide model.hidden_size="
                f"{self.hidden_size}: try model.num_heads={near}"
            )
        return self


class ObjectiveConfig(Group):
    """What is learned."""

    nsp: bool = Field(
        True, description="Next sentence prediction beside MLM; false: RoBERTa's full sentences."
    )
    pair: Literal["next_sentence", "sentence_order"] = Field(
        "next_sentence",
        description="With nsp: whether B follows A or is of another document (BERT), or whether A "
        "and B are in order or swapped (ALBERT).",
    )

    @model_validator(mode="after")
    def _pairs_for_order(self) -> Self:
        if self.pair == "sentence_order" and not self.nsp:
            raise ValueError(
                "objective.pair=sentence_order needs objective.nsp=true: without it there are no "
                "pairs"
            )
        return self


class TrainConfig(Group):
    """Optimisation: the mathematics of training."""

    steps: PositiveInt = Field(1000, description="Optimiser steps.")
    global_batch_size: PositiveInt = Field(32, description="Examples a step, over all workers.")
    length_bins: Annotated[int, Field(ge=2, le=256)] | None = Field(
        None,
        description="So many bins of equal width up to max_seq_length: a step's examples, of all "
        "workers, are of one bin. null: of any length, as nothing is padded but attention on the "
        "sdpa path.",
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-3, description="Peak learning rate.")
    warmup_share: Share = Field(0.05, description="Share of the steps with linear warm-up.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="Decay to zero after warm-up."
    )
    optimizer: Literal["adamw"] = Field("adamw", description="AdamW, decay on matrices only.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.01, description="Decoupled decay.")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="First moment.")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.999, description="Second moment.")
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-6, description="Of the optimiser.")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="Largest global gradient norm; null: no clipping."
    )
    precision: Literal["bf16", "float32"] = Field(
        "bf16", description="Of matrix products; weights and optimiser state stay float32."
    )
    checkpoint_every_steps: PositiveInt = Field(500, description="Changes no result.")
    evaluate_every_steps: PositiveInt = Field(
        500, description="Held-out figures while training. Changes no result."
    )
    log_every_steps: PositiveInt = Field(20, description="Changes no result.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest kept. Changes no result.")


class PhaseConfig(Group):
    """One phase of pretraining: what it sets differently from `pairs` and `train`."""

    max_seq_length: Annotated[int, Field(ge=8)] = Field(description="As pairs.max_seq_length.")
    steps: PositiveInt | None = Field(None, description="null: train.steps.")
    global_batch_size: PositiveInt | None = Field(None, description="null: train's.")
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(None, description="null: train's.")


class RoundingConfig(Group):
    """Changes the last bits only: recorded in checkpoints, not fingerprinted."""

    micro_batch_tokens: PositiveInt = Field(8192, description="Token budget of a micro-batch.")
    threads: PositiveInt | None = Field(None, description="torch threads a worker; null: its CPUs.")
    attention: Literal["auto", "sdpa", "varlen"] = Field(
        "auto", description="varlen: torch's packed attention on CUDA; sdpa: anywhere."
    )
    compile: bool = Field(False, description="torch.compile the model.")


class SpeedConfig(Group):
    """Changes not a bit."""

    batch_mb: Annotated[float, Field(gt=0)] = Field(4.0, description="Text a step inside a shard.")
    tokenizer: Literal["auto", "nanotoken", "dictionary", "tokenizers"] = Field(
        "auto",
        description="Which engine makes ids, all the same ones: auto is the fastest that is "
        "installed and equals tokenizers on a sample of each shard.",
    )
    workers: Literal["actors", "tasks"] = Field(
        "actors",
        description="What Ray runs data stages in: actors load a vocabulary once for many shards, "
        "tasks once for each.",
    )
    prefetch_batches: Count = Field(4, description="Global batches read ahead in training.")


class EvaluateConfig(Group):
    """Held-out figures. Their masks never follow `mask`, so that runs compare."""

    max_rows: PositiveInt = Field(20_000, description="Held-out rows used at most.")
    probability: OpenShare = Field(0.15, description="As mask.probability, for held-out masks.")
    sentences: tuple[str, ...] = Field(
        (), description="Sentences with [MASK] that evaluate fills in, for a person to read."
    )

    @field_validator("sentences")
    @classmethod
    def _hold_a_mask(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for sentence in value:
            if "[MASK]" not in sentence:
                raise ValueError(f"{sentence!r} holds no [MASK]: put one where to fill in")
        return value


class SeedsConfig(Group):
    """Seeds that can change alone; null derives each from `seed`."""

    split: Count | None = Field(None, description="Order of documents, shards, validation split.")
    pairs: Count | None = Field(None, description="Targets, splits and partners.")
    mask: Count | None = Field(None, description="Masked positions and replacements.")
    train: Count | None = Field(None, description="Weights, order of batches, dropout.")


class Config(RunConfig):
    """A whole run."""

    corpus: CorpusConfig = CorpusConfig()
    vocab: VocabConfig = VocabConfig()
    pairs: PairsConfig = PairsConfig()
    mask: MaskConfig = MaskConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    train: TrainConfig = TrainConfig()
    phases: tuple[PhaseConfig, ...] = Field(
        (),
        description="Phases in order, each from the last one's weights; empty: one, as pairs says.",
    )
    rounding: RoundingConfig = RoundingConfig()
    speed: SpeedConfig = SpeedConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    seeds: SeedsConfig = SeedsConfig()

    def resolved_phases(self) -> tuple[PhaseConfig, ...]:
        """The phases with every null filled in; one phase when `phases` is empty."""
        phases = self.phases or (PhaseConfig(max_seq_length=self.pairs.max_seq_length),)
        return tuple(
            PhaseConfig(
                max_seq_length=p.max_seq_length,
                steps=p.steps or self.train.steps,
                global_batch_size=p.global_batch_size or self.train.global_batch_size,
                learning_rate=p.learning_rate or self.train.learning_rate,
            )
            for p in phases
        )

    def seed_for(self, purpose: Literal["split", "pairs", "mask", "train"]) -> int:
        """The seed of one purpose: set by itself, or derived from `seed` by SHA-256 (63 bits)."""
        own: int | None = getattr(self.seeds, purpose)
        if own is not None:
            return own
        digest = hashlib.sha256(f"{self.seed}/{purpose}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        for phase in self.resolved_phases():
            if phase.max_seq_length > self.model.max_position_embeddings:
                raise ValueError(
                    f"a phase of pairs.max_seq_length={phase.max_seq_length} is longer than "
                    f"model.max_position_embeddings={self.model.max_position_embeddings}: "
                    "shorten the phase or raise model.max_position_embeddings"
                )
        lengths = [p.max_seq_length for p in self.resolved_phases()]
        if len(set(lengths)) != len(lengths):
            raise ValueError(
                f"phases: max_seq_length {lengths} holds a length twice: a phase is named by its "
                "length, so give each another"
            )
        return self

    @model_validator(mode="after")
    def _cap_fits(self) -> Self:
        cap = self.mask.max_predictions
        longest = max(p.max_seq_length for p in self.resolved_phases())
        if cap is not None and cap > longest - 3:
            raise ValueError(
                f"mask.max_predictions={cap} is more than the {longest - 3} tokens that a row of "
                f"{longest} holds beside its special tokens: lower it"
            )
        least = math.floor(self.mask.probability * longest)
        if cap is not None and cap < least:
            raise ValueError(
                f"mask.max_predictions={cap} is too few for mask.probability="
                f"{self.mask.probability:g} of a row of {longest}: raise it to {least + 1}, or "
                "leave it out (null: as many as the probability asks for)"
            )
        return self

    @model_validator(mode="after")
    def _full_sentences(self) -> Self:
        if self.pairs.across_documents and self.objective.nsp:
            raise ValueError(
                "pairs.across_documents=true needs objective.nsp=false: with it a row is a pair of "
                "segments, and has no place for the next document"
            )
        return self

    @model_validator(mode="after")
    def _order_is_exact(self) -> Self:
        if self.objective.pair == "sentence_order" and self.pairs.balance == "reference":
            raise ValueError(
                "objective.pair=sentence_order is not of google-research/bert, so there is no "
                "pairs.balance=reference for it: leave pairs.balance=exact"
            )
        return self

    @model_validator(mode="after")
    def _corpus_is_named(self) -> Self:
        if self.corpus.kind == "files" and not (self.corpus.paths or self.corpus.sources):
            raise ValueError(
                "corpus.paths is empty: name files, folders or globs, "
                "e.g. corpus.paths=[/data/books], or several sources in corpus.sources"
            )
        return self
