"""Stage vocab: shards -> a WordPiece vocabulary, as transformers writes it.

Words are counted where the shards are, merged in 64 bits, and trained on in one place. Training
text alone is counted; validation text measures coverage.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.stage import Context, Histogram, Result, Table
from pipeline.store import Artifact, ArtifactWriter
from stages.config import VocabConfig
from stages.parallel import JobFailed, Record, run_jobs
from stages.scratch import open_scratch, scratch_names, write_scratch
from stages.tables import shard_files
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.tokenizer_files import VOCAB_FILE, read_vocab, tokenizer_files
from stages.text.vocabulary import VocabularyTooSmall, train, train_huggingface, word_coverage
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation, count_words, merge_counts
from stages.vocabulary_files import SETTINGS

MODEL_MAX_LENGTH = 512
BATCH_ROWS = 512
SAMPLE_ENTRIES = 120
MERGE_SHARDS = 16
"""Counts of so many shards are in memory at a time."""


def normalisation_of(config: VocabConfig) -> Normalisation:
    """The normalisation, with `strip_accents: null` resolved as BERT does."""
    strip = config.lowercase if config.strip_accents is None else config.strip_accents
    return Normalisation(config.lowercase, strip, config.chinese_characters)


def run(context: Context) -> Result:
    """Count words of each shard, merge, train, write the tokeniser's files."""
    config = VocabConfig.model_validate(context.node.config["vocab"])
    shard = context.inputs["shard"]
    names = [*shard_files(shard, "train"), *shard_files(shard, "validation")]
    counted = scratch_names(context.output, "words")
    jobs = [{"shard": name} for name in names if name not in counted]
    context.progress.start(len(names), "shards", done=len(names) - len(jobs))
    arguments = {"shard": shard, "output": context.output, "config": config}
    started = time.perf_counter()
    seconds, text_bytes = 0.0, 0
    for record in run_jobs(context, "stages.vocab:WordCounter", arguments, jobs):
        seconds += record["seconds"]
        text_bytes += record["bytes"]
        context.progress.advance(1)
    context.progress.note(f"words counted in {time.perf_counter() - started:.1f} s; training")
    if set(context.output.finished()) >= {"vocab.txt", "report.json"}:
        report = json.loads(
            context.output.files.read(f"{context.output.data}/report.json") or b"{}"
        )
    else:
        job = {"train": shard_files(shard, "train"), "validation": shard_files(shard, "validation")}
        (report,) = run_jobs(context, "stages.vocab:Trainer", arguments, [job])
    if report["figures"]["entries"] < config.size:
        context.progress.note(
            f"vocab.size={config.size:,} was asked for, {report['figures']['entries']:,} entries "
            f"came out: no other pieces stand together vocab.min_frequency={config.min_frequency} "
            "times in the training text"
        )
    figures = report["figures"] | {"seconds/counting": seconds, "bytes/counted": text_bytes}
    if seconds:
        figures["mb_per_second_core/counting"] = text_bytes / 1e6 / seconds
    context.metrics.log({k: v for k, v in figures.items() if isinstance(v, int | float)}, step=0)
    return Result(
        figures=figures,
        flow=f"{figures['words']:,} words, {figures['distinct_words']:,} distinct -> "
        f"{figures['entries']:,} entries",
        report=[
            _made_table(figures),
            _coverage_table(figures),
            Histogram(
                "Entries by length",
                report["lengths"]["edges"],
                report["lengths"]["counts"],
                "characters, without ##",
            ),
            Table("Characters left out", ["character"], [[c] for c in report["dropped"]]),
        ],
        samples=[
            f"Every {report['sample_step']:,}. entry, the most useful ones first:\n"
            + "  ".join(report["sample"])
        ],
    )


MADE = {
    "entries": "entries",
    "alphabet": "characters kept",
    "merges": "merges",
    "last_merge_count": "the last merge was seen so often",
    "words": "words of the training text",
    "distinct_words": "distinct words",
    "dropped_words": "distinct words with a character left out (always [UNK])",
    "long_words": "distinct words that are too long (always [UNK])",
}


def _made_table(figures: Mapping[str, Any]) -> Table:
    rows = [[words, figures[name]] for name, words in MADE.items() if name in figures]
    return Table("The vocabulary", ["what", "number"], rows)


def _coverage_table(figures: Mapping[str, Any]) -> Table:
    sides = ("training", "validation")
    rows = [
        ["words", *(f"{figures[f'words/{side}']:,}" for side in sides)],
        ["pieces a word", *(f"{figures[f'fertility/{side}']:.3f}" for side in sides)],
        [
            "words that are one piece",
            *(f"{100 * figures[f'single_piece_share/{side}']:.2f} %" for side in sides),
        ],
        [
            "unknown words ([UNK])",
            *(f"{100 * figures[f'unknown_share/{side}']:.4f} %" for side in sides),
        ],
    ]
    return Table("How it spells the text", ["", *sides], rows)


class WordCounter:
    """Counts the words of one shard into a scratch file."""

    def __init__(self, shard: Artifact, output: ArtifactWriter, config: VocabConfig) -> None:
        self._shard = shard
        self._output = output
        self._normalisation = normalisation_of(config)

    def __call__(self, job: Record) -> Record:
        """`job["shard"]`: name of the shard's file."""
        began = time.perf_counter()
        size = 0
        parts = []
        with pq.ParquetFile(self._shard.open(job["shard"])) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=["text"]):
                size += batch.column(0).nbytes
                parts.append(count_words(batch.column(0), self._normalisation))
        words, counts = merge_counts(parts)
        table = pa.table({"word": words, "count": counts})
        write_scratch(self._output, f"words/{job['shard']}", table)
        return {"seconds": time.perf_counter() - began, "bytes": size}


class Trainer:
    """Merges the counts and writes the vocabulary."""

    def __init__(self, shard: Artifact, output: ArtifactWriter, config: VocabConfig) -> None:
        self._output = output
        self._config = config

    def __call__(self, job: Record) -> Record:
        """`job["train"]`, `job["validation"]`: names of the shards of either side."""
        config = self._config
        words, counts = self._merged(job["train"])
        began = time.perf_counter()
        try:
            vocab, details = self._train(words, counts)
        except VocabularyTooSmall as error:
            raise JobFailed(str(error)) from None
        if VOCAB_FILE in self._output.finished():
            # `tokenizers`' trainer would not make the same one again: what is there counts.
            path = f"{self._output.data}/{VOCAB_FILE}"
            vocab = read_vocab(self._output.files.read(path) or b"")
        seconds = time.perf_counter() - began
        tokenizer = Tokenizer(vocab, normalisation_of(config), config.max_word_characters)
        sides = {"training": (words, counts), "validation": self._merged(job["validation"])}
        coverage = {
            side: dataclasses.asdict(
                word_coverage(vocab, *counted, max_word_characters=config.max_word_characters)
            )
            for side, counted in sides.items()
        }
        lengths = np.array([len(token.removeprefix("##")) for token in vocab])
        counts_by_length = np.bincount(np.minimum(lengths, 20))
        figures: dict[str, Any] = {
            "entries": len(vocab),
            "distinct_words": len(words),
            "words": int(counts.sum()),
            "seconds/training": seconds,
            **details,
        }
        for side, values in coverage.items():
            figures |= {f"{name}/{side}": value for name, value in values.items()}
        step = max(1, len(vocab) // SAMPLE_ENTRIES)
        report: Record = {
            "figures": {k: v for k, v in figures.items() if k != "dropped_characters"},
            "lengths": {
                "edges": list(range(len(counts_by_length) + 1)),
                "counts": counts_by_length.tolist(),
            },
            "dropped": list(details.get("dropped_characters", ()))[:200],
            "sample": vocab[len(SPECIAL_TOKENS) :: step],
            "sample_step": step,
        }
        report["figures"]["dropped_characters"] = len(details.get("dropped_characters", ()))
        settings = dataclasses.asdict(tokenizer.normalisation) | {
            "max_word_characters": config.max_word_characters
        }
        files = tokenizer_files(tokenizer, MODEL_MAX_LENGTH)
        for name, data in files.items():
            self._output.write_bytes(name, data, rows=len(vocab) if name == VOCAB_FILE else None)
        self._output.write_bytes(SETTINGS, json.dumps(settings, sort_keys=True).encode())
        self._output.write_bytes("report.json", json.dumps(report).encode(), content=False)
        return report

    def _train(self, words: pa.StringArray, counts: Any) -> tuple[list[str], dict[str, Any]]:
        config = self._config
        if config.trainer == "huggingface":
            vocab = train_huggingface(
                words,
                counts,
                config.size,
                limit_alphabet=config.limit_alphabet,
                min_frequency=config.min_frequency,
            )
            return vocab, {}
        vocab, report = train(
            words,
            counts,
            config.size,
            limit_alphabet=config.limit_alphabet,
            min_frequency=config.min_frequency,
            max_word_characters=config.max_word_characters,
        )
        return vocab, dataclasses.asdict(report)

    def _merged(self, names: list[str]) -> tuple[pa.StringArray, Any]:
        parts = []
        for name in names:
            with open_scratch(self._output, f"words/{name}") as source:
                table = pq.read_table(source)
            parts.append((table["word"].combine_chunks(), table["count"].to_numpy()))
            if len(parts) == MERGE_SHARDS:
                parts = [merge_counts(parts)]
        return merge_counts(parts)
