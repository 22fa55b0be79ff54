"""Configuration of the stages: one frozen group a topic, free of Ray and torch.

The groups say what they change: `corpus`, `vocab`, `pairs`, `mask` the data; `model`, `objective`,
`train` the mathematics; `rounding` the last bits, and which dropout is drawn; `speed` nothing.
Every number carries its unit in its name, every field a description
(`clozeline config show --describe` prints them).
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from pipeline.config import Group, RunConfig
from stages.config_types import Count, Dropout, OpenShare, PositiveInt, Share
from stages.corpus_config import CorpusConfig
from stages.task_config import FinetuneConfig, TaskConfig, Tasks, check_tasks_fit
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.train_config import PhaseConfig, TrainConfig


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
    when: Literal["ahead", "loading"] = Field(
        "ahead",
        description="ahead: masked rows are stored, so that epochs see the same masks (or those of "
        "`copies`); loading: training draws others in each epoch (RoBERTa's dynamic masking).",
    )

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

    @model_validator(mode="after")
    def _copies_are_stored(self) -> Self:
        if self.when == "loading" and self.copies > 1:
            raise ValueError(
                f"mask.copies={self.copies} with mask.when=loading: copies are masked rows in the "
                "store, and masks drawn at loading are other ones in every epoch anyway. Leave "
                "mask.copies=1"
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


class RoundingConfig(Group):
    """Changes the last bits, and with dropout what it draws: as likely a result, and no cause to
    train again. Recorded in checkpoints, not fingerprinted."""

    micro_batch_tokens: PositiveInt = Field(8192, description="Token budget of a micro-batch.")
    threads: PositiveInt | None = Field(None, description="torch threads a worker; null: its CPUs.")
    attention: Literal["auto", "sdpa", "varlen"] = Field(
        "auto",
        description="varlen: torch's packed attention, on CUDA in bf16 without attention dropout; "
        "sdpa: anywhere; auto: varlen where it can run.",
    )
    compile: bool = Field(
        False,
        description="torch.compile the encoder; micro-batches are filled up to one shape, so that "
        "one graph serves all. For GPUs: compiling takes a minute or more at the start.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Compute each block's activations again in the backward pass instead of "
        "keeping them: about a third more FLOPs for much less memory.",
    )
    sharding: Literal["none", "full"] = Field(
        "none",
        description="full: weights, moments and gradients are cut among the training processes "
        "(FSDP2), for models that do not fit one GPU. With adamw and lamb, without compile.",
    )


class SpeedConfig(Group):
    """Changes not a bit."""

    batch_mb: Annotated[float, Field(gt=0)] = Field(4.0, description="Text a step inside a shard.")
    tokenizer: Literal["auto", "nanotoken", "dictionary", "tokenizers"] = Field(
        "auto",
        description="Which engine makes ids, all the same ones: auto is the fastest that is "
        "installed and equals tokenizers on a sample of each shard.",
    )
    workers: Literal["actors", "tasks"] = Field(
        "tasks",
        description="What Ray runs data stages in: tasks, in processes that go on from stage to "
        "stage, or actors, which start anew for each stage.",
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
    finetune: Count | None = Field(None, description="As train, in fine-tuning.")


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
    finetune: FinetuneConfig = FinetuneConfig()
    tasks: Tasks = Field({}, description="Tasks to fine-tune for, by name: tasks.NAME.KEY.")
    evaluate: EvaluateConfig = EvaluateConfig()
    seeds: SeedsConfig = SeedsConfig()

    def resolved_phases(self) -> tuple[PhaseConfig, ...]:
        """The phases with every null filled in; one phase when `phases` is empty."""
        phases = self.phases or (PhaseConfig(max_seq_length=self.pairs.max_seq_length),)
        return tuple(phase.completed(self.train) for phase in phases)

    def resolved_tasks(self) -> dict[str, TaskConfig]:
        """The tasks by name, in the order of names, each filled in from `finetune`."""
        return {name: self.tasks[name].completed(self.finetune) for name in sorted(self.tasks)}

    def seed_for(self, purpose: Literal["split", "pairs", "mask", "train", "finetune"]) -> int:
        """The seed of one purpose: set by itself, or derived from `seed` by SHA-256 (63 bits)."""
        own: int | None = getattr(self.seeds, purpose)
        if own is not None:
            return own
        digest = hashlib.sha256(f"{self.seed}/{purpose}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        check_tasks_fit(self.tasks, self.finetune, self.model)
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
    def _shards_suffice(self) -> Self:
        if self.rounding.sharding == "full" and self.train.optimizer == "muon":
            raise ValueError(
                "rounding.sharding=full leaves each worker a part of every matrix, and "
                "train.optimizer=muon needs whole ones: set train.optimizer=adamw or lamb, or "
                "rounding.sharding=none"
            )
        if self.rounding.sharding == "full" and self.rounding.compile:
            raise ValueError(
                "rounding.sharding=full gathers weights between the encoder's blocks, and "
                "rounding.compile=true makes one graph of them: set rounding.compile=false, or "
                "rounding.sharding=none"
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
    def _vocabulary_comes_with_weights(self) -> Self:
        if self.train.init_from is not None and self.vocab.from_ is None:
            raise ValueError(
                f"train.init_from={self.train.init_from} brings a vocabulary, and this run would "
                f"train another: set vocab.from={self.train.init_from}"
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
