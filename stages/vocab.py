"""Stage vocab: shards -> a WordPiece vocabulary, as transformers writes it.

Words are counted where the shards are, merged in 64 bits, and trained on in one place. Training
text alone is counted; validation text measures coverage. An existing vocabulary is measured the
same way, and used as it is.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.stage import Context, Result, StageError
from pipeline.store import Artifact, ArtifactWriter
from stages.config import VocabConfig
from stages.parallel import JobFailed, Record, run_jobs
from stages.scratch import open_scratch, scratch_names, write_scratch
from stages.tables import shard_files
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.tokenizer_files import VOCAB_FILE, read_vocab, tokenizer_files
from stages.text.vocabulary import VocabularyTooSmall, train, train_huggingface, word_coverage
from stages.text.word_counts import Counted, add_up, merge_counts, most_frequent
from stages.text.wordpiece import Tokenizer
from stages.text.words import BLOCK_BYTES, count_words
from stages.vocab_report import describe_entries, vocab_result
from stages.vocabulary_files import SETTINGS
from stages.vocabulary_source import VocabularySource, list_vocabulary, vocabulary_source

MODEL_MAX_LENGTH = 512
MERGE_ROWS = 2_000_000
"""Counts that are read before they are added up."""
MOST_WORDS = 4
"""Times vocab.max_words: the rarest of more distinct words are forgotten while counts are added up,
so that memory is flat (1 GB)."""


def run(context: Context) -> Result:
    """Count words of each shard, merge, train, write the tokeniser's files."""
    node = context.node
    config = VocabConfig.model_validate(node.settings.get("vocab", node.config["vocab"]))
    source = vocabulary_source(config, Path.cwd())
    if context.raw is not None and (
        list(list_vocabulary(config, Path.cwd()).entries) != list(context.raw.entries)
    ):
        raise StageError("vocab.from changed while the run began: run again, and it is read anew")
    shard = context.inputs["shard"]
    names = [*shard_files(shard, "train"), *shard_files(shard, "validation")]
    counted = scratch_names(context.output, "words")
    jobs = [{"shard": name} for name in names if name not in counted]
    context.progress.start(len(names), "shards", done=len(names) - len(jobs))
    arguments = {"shard": shard, "output": context.output, "config": config, "source": source}
    started = time.perf_counter()
    seconds, text_bytes = 0.0, 0
    for record in run_jobs(context, "stages.vocab:WordCounter", arguments, jobs):
        seconds += record["seconds"]
        text_bytes += record["bytes"]
        context.progress.advance(1)
    then = "training" if source.tokens is None else f"using {' and '.join(source.files)}"
    context.progress.note(f"words counted in {time.perf_counter() - started:.1f} s; {then}")
    if set(context.output.finished()) >= {"vocab.txt", "report.json"}:
        report = json.loads(
            context.output.files.read(f"{context.output.data}/report.json") or b"{}"
        )
    else:
        job = {"train": shard_files(shard, "train"), "validation": shard_files(shard, "validation")}
        (report,) = run_jobs(context, "stages.vocab:Trainer", arguments, [job])
    if source.tokens is None and report["figures"]["entries"] < config.size:
        context.progress.note(
            f"vocab.size={config.size:,} was asked for, {report['figures']['entries']:,} entries "
            f"came out: no other pieces stand together vocab.min_frequency={config.min_frequency} "
            "times in the training text"
        )
    figures = report["figures"] | {"seconds/counting": seconds, "bytes/counted": text_bytes}
    if seconds:
        figures["mb_per_second_core/counting"] = text_bytes / 1e6 / seconds
    context.metrics.log({k: v for k, v in figures.items() if isinstance(v, int | float)}, step=0)
    return vocab_result(figures, report["entries"], existing=source.tokens is not None)


class WordCounter:
    """Counts the words of one shard into a scratch file."""

    def __init__(
        self,
        shard: Artifact,
        output: ArtifactWriter,
        config: VocabConfig,
        source: VocabularySource,
    ) -> None:
        self._shard = shard
        self._output = output
        self._normalisation = source.normalisation

    def __call__(self, job: Record) -> Record:
        """`job["shard"]`: name of the shard's file."""
        began = time.perf_counter()
        size = 0
        parts = []
        with pq.ParquetFile(self._shard.open(job["shard"])) as file:
            for batch in file.iter_batches(batch_size=_batch_rows(file), columns=["text"]):
                size += batch.column(0).nbytes
                parts.append(count_words(batch.column(0), self._normalisation))
        words, counts = merge_counts(parts)
        table = pa.table({"word": words, "count": counts})
        write_scratch(self._output, f"words/{job['shard']}", table)
        return {"seconds": time.perf_counter() - began, "bytes": size}


def _batch_rows(file: pq.ParquetFile) -> int:
    """So many documents make about BLOCK_BYTES: smaller batches are slow to count."""
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    size = sum(int(c.total_uncompressed_size) for c in columns if c.path_in_schema == "text")
    return max(1, BLOCK_BYTES * int(metadata.num_rows) // max(1, size))


class Trainer:
    """Merges the counts and writes the vocabulary."""

    def __init__(
        self,
        shard: Artifact,
        output: ArtifactWriter,
        config: VocabConfig,
        source: VocabularySource,
    ) -> None:
        self._output = output
        self._config = config
        self._source = source

    def __call__(self, job: Record) -> Record:
        """`job["train"]`, `job["validation"]`: names of the shards of either side."""
        source = self._source
        counted, mass = self._merged(job["train"])
        began = time.perf_counter()
        try:
            vocab, details, dropped = self._entries(counted, mass)
        except VocabularyTooSmall as error:
            raise JobFailed(str(error)) from None
        if source.tokens is None and VOCAB_FILE in self._output.finished():
            # `tokenizers`' trainer would not make the same one again: what is there counts.
            path = f"{self._output.data}/{VOCAB_FILE}"
            vocab = read_vocab(self._output.files.read(path) or b"")
        seconds = time.perf_counter() - began
        figures: dict[str, Any] = {
            **details,
            "entries": len(vocab),
            "distinct_words": len(counted[0]),
            "words": mass,
            "dropped_characters": len(dropped),
            "seconds/training": seconds,
        }
        for side, words in (
            ("training", counted),
            ("validation", self._merged(job["validation"])[0]),
        ):
            coverage = word_coverage(vocab, *words, max_word_characters=source.max_word_characters)
            figures |= {f"{k}/{side}": v for k, v in dataclasses.asdict(coverage).items()}
        report: Record = {"figures": figures, "entries": describe_entries(vocab, dropped)}
        tokenizer = Tokenizer(vocab, source.normalisation, source.max_word_characters)
        settings = dataclasses.asdict(source.normalisation) | {
            "max_word_characters": source.max_word_characters
        }
        files = tokenizer_files(tokenizer, MODEL_MAX_LENGTH)
        for name, data in files.items():
            self._output.write_bytes(name, data, rows=len(vocab) if name == VOCAB_FILE else None)
        self._output.write_bytes(SETTINGS, json.dumps(settings, sort_keys=True).encode())
        self._output.write_bytes("report.json", json.dumps(report).encode(), content=False)
        return report

    def _entries(
        self, counted: Counted, mass: int
    ) -> tuple[list[str], dict[str, Any], tuple[str, ...]]:
        """The entries, figures of how they came about, and the characters left out."""
        config = self._config
        if self._source.tokens is not None:
            return list(self._source.tokens), {}, ()
        words, counts = most_frequent(*counted, config.max_words)
        left_out = {
            "required": len(config.required),
            "left_out_words": len(counted[0]) - len(words),
            "left_out_word_mass": mass - int(counts.sum()),
        }
        if config.trainer == "huggingface":
            vocab = train_huggingface(
                words,
                counts,
                config.size,
                special_tokens=[*SPECIAL_TOKENS, *config.required],
                limit_alphabet=config.limit_alphabet,
                min_frequency=config.min_frequency,
            )
            return vocab, left_out, ()
        vocab, report = train(
            words,
            counts,
            config.size,
            required=config.required,
            limit_alphabet=config.limit_alphabet,
            min_frequency=config.min_frequency,
            max_word_characters=config.max_word_characters,
        )
        return vocab, dataclasses.asdict(report) | left_out, report.dropped_characters

    def _merged(self, names: list[str]) -> tuple[Counted, int]:
        """Counts over shards, in the order of their names, and occurrences of all words."""
        return add_up(map(self._read, names), MOST_WORDS * self._config.max_words, MERGE_ROWS)

    def _read(self, name: str) -> Counted:
        with open_scratch(self._output, f"words/{name}") as source:
            table = pq.read_table(source)
        return table["word"].combine_chunks(), table["count"].to_numpy()
