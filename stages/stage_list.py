"""The stages: names, versions, the code that makes each result, the libraries that change it.

No stage is imported: its code is named by a string and loaded only when a node of it runs.
"""

from __future__ import annotations

from pipeline.stage import Stage


def text_modules(*names: str) -> tuple[str, ...]:
    """Modules of `stages.text` by their names."""
    return tuple(f"stages.text.{name}" for name in names)


# What makes each result: tests/stages/test_catalog.py holds it against the imports. A package
# counts with everything in it.
TOKENS = (
    "stages.vocabulary_files",
    *text_modules(
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
    version=4,
    run="stages.shard:run",
    modules=(
        "stages.near_duplicates",
        "stages.shard",
        "stages.shard_report",
        "stages.shard_tally",
        "stages.shard_workers",
        "stages.shuffle",
        "stages.tables",
        *text_modules("listing", "folders", "uris", "splitting", "ranges", "dump_ranges"),
        *text_modules("readers", "records", "streams", "python_docs"),
        *text_modules("encodings", "columns", "delimited", "extracted", "mediawiki", "wikicode"),
        *text_modules(
            "preparing", "boilerplate", "quality", "language", "character_kinds", "examples"
        ),
        *text_modules("examples", "line_rules", "measures", "repetition", "segments"),
        *text_modules("near_duplicates", "minhash", "random"),
        *text_modules("buffers", "cleaning", "characters", "composing", "runs", "white_space"),
        *text_modules("unwrapping", "stretches", "sentences", "icu", "plain_lines"),
        *text_modules("abbreviations", "splitters"),
        *text_modules("cutting", "sharding", "cuts", "pieces", "sizes"),
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
        *TOKENS,
        *text_modules("merging", "vocabulary", "existing"),
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
        *TOKENS,
        *text_modules("random", "pairing", "pair_counts", "chunks", "exchange", "truncation"),
        *text_modules(
            "reference_pairs", "sentence_order", "full_sentences", "rows", "parity", "sizes"
        ),
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
        *TOKENS,
        *text_modules("masking", "words_in_rows", "random"),
    ),
    recorded=("numpy", "pyarrow", "ray"),
)
TRAINING_ROWS = (
    "stages.training_rows",
    "stages.mask_options",
    "stages.tables",
    *text_modules("masking", "words_in_rows", "random"),
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
        "stages.training_worker",
        "stages.training_workers",
        *TRAINING_ROWS,
        *TOKENS,
        *text_modules("existing"),
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
        *TRAINING_ROWS,
        *TOKENS,
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
    modules=("stages.export", "stages.tables", *TOKENS, "model"),
    recorded=("torch", "safetensors"),
    deterministic=False,
    needs_ray=False,
)
