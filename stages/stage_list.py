"""The stages: names, versions, the code that makes each result, the libraries that change it.

No stage is imported: its code is named by a string and loaded only when a node of it runs.
"""

from __future__ import annotations

from pipeline.stage import Stage


def _text(*names: str) -> tuple[str, ...]:
    return tuple(f"stages.text.{name}" for name in names)


# What makes each result: tests/stages/test_catalog.py holds it against the imports. A package
# counts with everything in it.
_TOKENS = (
    "stages.vocabulary_files",
    *_text(
        "buffers",
        "special_tokens",
        "word_counts",
        "words",
        "engines",
        "wordpiece",
        "tokenizer_files",
    ),
)

SHARD = Stage(
    name="shard",
    version=2,
    run="stages.shard:run",
    modules=(
        "stages.near_duplicates",
        "stages.shard",
        "stages.shard_report",
        "stages.shard_tally",
        "stages.shard_workers",
        "stages.shuffle",
        "stages.tables",
        *_text("listing", "folders", "uris", "splitting", "ranges", "dump_ranges"),
        *_text("readers", "records", "streams", "python_docs"),
        *_text("encodings", "columns", "delimited", "extracted", "mediawiki", "wikicode"),
        *_text("preparing", "boilerplate", "quality", "language", "character_kinds", "examples"),
        *_text("line_rules", "measures", "repetition", "segments"),
        *_text("near_duplicates", "minhash", "random"),
        *_text("buffers", "cleaning", "characters", "composing", "runs", "white_space"),
        *_text("unwrapping", "stretches", "sentences", "icu", "plain_lines"),
        *_text("abbreviations", "splitters"),
        *_text("cutting", "sharding", "cuts", "pieces", "sizes"),
    ),
    libraries=("icu4py",),
    recorded=("python", "pyarrow", "ray"),
)
VOCAB = Stage(
    name="vocab",
    version=1,
    run="stages.vocab:run",
    modules=(
        "stages.vocab",
        "stages.vocab_report",
        "stages.vocabulary_source",
        "stages.tables",
        *_TOKENS,
        *_text("merging", "vocabulary", "existing"),
    ),
    libraries=("tokenizers",),
    recorded=("pyarrow", "ray"),
)
PAIRS = Stage(
    name="pairs",
    version=3,
    run="stages.pairs:run",
    modules=(
        "stages.pairs",
        "stages.pairs_report",
        "stages.tables",
        *_TOKENS,
        *_text("random", "pairing", "pair_counts", "chunks", "exchange", "truncation"),
        *_text("reference_pairs", "sentence_order", "full_sentences", "rows", "parity", "sizes"),
    ),
    libraries=("tokenizers",),
    recorded=("nanotoken", "numpy", "pyarrow", "ray"),
)
MASK = Stage(
    name="mask",
    version=1,
    run="stages.mask:run",
    modules=(
        "stages.mask",
        "stages.mask_options",
        "stages.tables",
        *_TOKENS,
        *_text("masking", "words_in_rows", "random"),
    ),
    recorded=("numpy", "pyarrow", "ray"),
)
_TRAINING_ROWS = (
    "stages.training_rows",
    "stages.mask_options",
    "stages.tables",
    *_text("masking", "words_in_rows", "random"),
)
PRETRAIN = Stage(
    name="pretrain",
    version=2,
    run="stages.pretrain:run",
    modules=(
        "stages.pretrain",
        "stages.pretrain_worker",
        "stages.given_weights",
        "stages.initial_weights",
        "stages.vocabulary_source",
        "stages.mix",
        *_TRAINING_ROWS,
        *_TOKENS,
        *_text("existing"),
        "stages.training",
        "model",
    ),
    recorded=("torch", "numpy", "pyarrow", "ray"),
    deterministic=False,
)
EVALUATE = Stage(
    name="evaluate",
    version=1,
    run="stages.evaluate:run",
    modules=(
        "stages.evaluate",
        "stages.metrics.intervals",
        *_TRAINING_ROWS,
        *_TOKENS,
        "stages.training",
        "model",
    ),
    recorded=("torch", "tokenizers"),
    deterministic=False,
)
EXPORT = Stage(
    name="export",
    version=1,
    run="stages.export:run",
    modules=("stages.export", "stages.tables", *_TOKENS, "model"),
    recorded=("torch", "safetensors"),
    deterministic=False,
    needs_ray=False,
)
