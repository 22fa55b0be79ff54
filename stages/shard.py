"""Stage shard: raw text -> clean documents in shards, validation documents apart.

Two passes. The first reads, cleans, cuts into sentences and hashes, and leaves pieces sorted by the
order key in the work folder. The driver then decides the cuts from keys and sizes alone, and the
second pass merges the range of each shard out of all pieces. A kill loses at most the splits and
shards that were being made.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.stage import Context, Histogram, Result, StageError, Table
from pipeline.store import ArtifactWriter
from stages.config import CorpusConfig
from stages.parallel import Record, run_jobs
from stages.raw import corpus_listing
from stages.scratch import open_scratch, scratch_names, write_scratch
from stages.tables import write_table
from stages.text.cleaning import CleaningOptions, clean, long_enough
from stages.text.listing import DocsListing, Split, splits
from stages.text.readers import UNREADABLE, Batch, read
from stages.text.records import ReadOptions
from stages.text.sentences import sentence_ends
from stages.text.sharding import document_rows, merge_shard, shard_cuts

PIECE_BYTES = 32_000_000
"""Cleaned text that the first pass holds before it writes a piece."""

PIECE_ROW_GROUP = 256
ROW_GROUP_ROWS = 1024
EXAMPLES_A_REASON = 5
"""Quarantined records kept for the report, so that a common reason hides no rare one."""

SENTENCE_BIN, SENTENCE_BINS = 20, 25
"""Bytes a bar, and bars, of the histogram of sentences; the last bar takes all longer ones."""

SAMPLE_CHARACTERS = 400

LEAST_VALIDATION_DOCUMENTS = 2


def run(context: Context) -> Result:
    """Read every split, decide the cuts, write every shard."""
    config = _config(context)
    jobs = _reading_jobs(context, config)
    tally = _tally(context, jobs)
    _check_readable(tally, context.node.settings["corpus"])
    cuts = _cuts(context, config, tally.pieces)
    _write_shards(context, config, cuts, tally.pieces)
    return _result(context, config, tally)


def _config(context: Context) -> CorpusConfig:
    # What the fingerprint leaves out (paths, thresholds) stands in the settings.
    return CorpusConfig.model_validate(
        {**context.node.settings["corpus"], **context.node.config["corpus"]}
    )


def _reading_jobs(context: Context, config: CorpusConfig) -> list[Record]:
    """First pass; returns the jobs of all splits, done before or now."""
    listing = corpus_listing(config, Path.cwd())
    if context.raw is not None and listing.fingerprint_entries() != list(context.raw.entries):
        raise StageError("the corpus changed while the run began: run again, and it is listed anew")
    work = splits(listing)
    jobs: list[Record] = [{"number": i, "split": s.to_json()} for i, s in enumerate(work)]
    if isinstance(listing, DocsListing):
        for absent in listing.missing:
            context.progress.note(f"corpus.distributions: {absent.path} left out: {absent.reason}")
    elif listing.skipped:
        first = ", ".join(f"{s.path} ({s.reason})" for s in listing.skipped[:3])
        context.progress.note(f"{len(listing.skipped)} files are not read: {first}")
    done = scratch_names(context.output, "read")
    missing = [job for job in jobs if f"{job['number']:05d}.json" not in done]
    size, left = sum(s.bytes for s in work), sum(job["split"]["bytes"] for job in missing)
    context.progress.start(size / 1e6, "MB read", done=(size - left) / 1e6)
    arguments = {
        "output": context.output,
        "config": config,
        "seed": context.node.config["seeds"]["split"],
        "batch_bytes": int(context.node.settings["speed"]["batch_mb"] * 1e6),
    }
    documents = 0
    for record in run_jobs(context, "stages.shard:Reader", arguments, missing):
        documents += record["documents"]
        context.progress.advance(record["stored_bytes"] / 1e6, documents=documents)
    if missing and corpus_listing(config, Path.cwd()).fingerprint_entries() != (
        listing.fingerprint_entries()
    ):
        raise StageError("the corpus changed while it was read: run again, and it is read anew")
    return jobs


class Reader:
    """Reads, cleans, cuts and hashes one split."""

    def __init__(
        self, output: ArtifactWriter, config: CorpusConfig, seed: int, batch_bytes: int
    ) -> None:
        self._output = output
        self._config = config
        self._seed = seed
        self._batch_bytes = batch_bytes

    def __call__(self, job: Record) -> Record:
        """`job["split"]`: what to read; `job["number"]` names the pieces."""
        number, split = job["number"], Split.from_json(job["split"])
        tally = _Tally()
        held: list[pa.Table] = []
        held_bytes = 0
        options = ReadOptions(
            text_field=self._config.text_field,
            encoding=self._config.encoding,
            batch_bytes=self._batch_bytes,
        )
        began = time.perf_counter()
        for batch in read(split, options):
            tally.seconds["read"] += time.perf_counter() - began
            table = self._rows(batch, split, tally)
            # A piece without rows has no smallest and largest key for the merge to look at.
            if table.num_rows:
                held.append(table)
            held_bytes += table["text"].nbytes
            if held_bytes >= PIECE_BYTES:
                tally.pieces.append(self._write(number, len(tally.pieces), held))
                held, held_bytes = [], 0
            began = time.perf_counter()
        if held:
            tally.pieces.append(self._write(number, len(tally.pieces), held))
        self._output.files.write(
            f"{self._output.work}/read/{number:05d}.json", json.dumps(tally.to_json()).encode()
        )
        return {"stored_bytes": split.bytes, "documents": tally.counts["documents"]}

    def _rows(self, batch: Batch, split: Split, tally: _Tally) -> pa.Table:
        config = self._config
        tally.counts["in"] += batch.records
        tally.counts["bytes_in"] += batch.bytes
        tally.reject(batch.rejects)
        tally.quarantine([dataclasses.asdict(e) for e in batch.examples])
        began = time.perf_counter()
        lines = split.format == "sentences"
        cleaned = clean(
            batch.documents["text"],
            CleaningOptions(unwrap=config.unwrap and not lines, nfc=config.nfc),
        )
        tally.cleaning.update(cleaned.counts)
        keep, short = long_enough(cleaned.texts, config.min_characters)
        tally.reject(short)
        documents = batch.documents.set_column(
            batch.documents.schema.get_field_index("text"), "text", cleaned.texts
        ).filter(keep)
        texts = documents.column("text")
        cleaned_at = time.perf_counter()
        ends = sentence_ends(texts, "lines" if lines else config.sentences)
        split_at = time.perf_counter()
        rows = document_rows(
            documents,
            ends,
            seed=self._seed,
            validation_share=config.validation_share,
            max_document_bytes=config.max_document_bytes,
        )
        tally.counts["documents"] += documents.num_rows
        tally.counts["sentences"] += len(ends.values)
        tally.counts["bytes_cleaned"] += texts.nbytes
        tally.seconds["clean"] += cleaned_at - began
        tally.seconds["sentences"] += split_at - cleaned_at
        tally.seconds["hash"] += time.perf_counter() - split_at
        return rows

    def _write(self, split: int, piece: int, tables: list[pa.Table]) -> str:
        name = f"{split:05d}-{piece:03d}.parquet"
        table = pa.concat_tables(tables).combine_chunks()
        table = table.take(pc.sort_indices(table, sort_keys=[("key", "ascending")]))
        sized = table.append_column("size", pc.binary_length(table["text"]))
        write_scratch(self._output, f"pieces/{name}", sized, row_group_size=PIECE_ROW_GROUP)
        return name


class _Tally:
    """What became of the records of a split; adds up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.cleaning: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.examples: list[dict[str, str]] = []
        self.pieces: list[str] = []

    def reject(self, reasons: Mapping[str, int]) -> None:
        self.rejects.update({reason: n for reason, n in reasons.items() if n})

    def quarantine(self, examples: list[dict[str, str]]) -> None:
        kept = Counter(example["reason"] for example in self.examples)
        for example in examples:
            if kept[example["reason"]] < EXAMPLES_A_REASON:
                kept[example["reason"]] += 1
                self.examples.append(example)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def add(self, record: Mapping[str, Any]) -> None:
        for name in ("counts", "rejects", "cleaning"):
            getattr(self, name).update(record[name])
        for step, seconds in record["seconds"].items():
            self.seconds[step] += seconds
        self.quarantine(record["examples"])
        # Not what lies in the folder: a killed attempt with another batch size cut other pieces.
        self.pieces += record["pieces"]


def _tally(context: Context, jobs: list[Record]) -> _Tally:
    tally = _Tally()
    output = context.output
    for job in jobs:
        data = output.files.read(f"{output.work}/read/{job['number']:05d}.json")
        assert data is not None
        tally.add(json.loads(data))
    return tally


def _check_readable(tally: _Tally, settings: Mapping[str, Any]) -> None:
    bad = sum(n for reason, n in tally.rejects.items() if reason in UNREADABLE)
    share = bad / max(1, tally.counts["in"])
    if share > settings["max_unreadable_share"]:
        reasons = ", ".join(f"{n} {r}" for r, n in tally.rejects.items() if r in UNREADABLE)
        examples = "; ".join(
            f"{e['source']} {e['where']}".strip() + f": {e['detail']}" for e in tally.examples[:3]
        )
        raise StageError(
            f"{bad} of {tally.counts['in']} documents could not be read ({reasons}), more than "
            f"corpus.max_unreadable_share={settings['max_unreadable_share']:g} allows. "
            f"Examples: {examples}"
        )
    if not tally.counts["documents"]:
        reasons = ", ".join(f"{n} {reason}" for reason, n in tally.rejects.items()) or "none found"
        raise StageError(
            f"no document is left of {tally.counts['in']} ({reasons}): "
            "check corpus.paths, corpus.format and corpus.min_characters"
        )


def _cuts(
    context: Context, config: CorpusConfig, pieces: list[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """First keys of the shards of each side, from (key, size) of all rows: 13 bytes a document."""
    keys, sizes, held_out, parts = [], [], [], []
    for name in pieces:
        with open_scratch(context.output, f"pieces/{name}") as source:
            table = pq.read_table(source, columns=["key", "size", "validation", "part"])
        keys.append(table["key"].to_numpy())
        sizes.append(table["size"].to_numpy())
        held_out.append(table["validation"].to_numpy(zero_copy_only=False))
        parts.append(table["part"].to_numpy())
    key, size = np.concatenate(keys), np.concatenate(sizes)
    validation, part = np.concatenate(held_out), np.concatenate(parts)
    first = part == 0
    documents = {
        "train": len(np.unique(key[first & ~validation])),
        "validation": len(np.unique(key[first & validation])),
    }
    total = sum(documents.values())
    if total < 2:
        copies = int(np.count_nonzero(first))
        equal = f" (its {copies:,} documents are equal)" if copies > 1 else ""
        raise StageError(
            f"the corpus holds one document only{equal}: NotNext pairs and a validation split "
            "need at least two. Give more documents, or split it (corpus.format=sentences: a blank line "
            "between documents)"
        )
    for side, least in (("validation", LEAST_VALIDATION_DOCUMENTS), ("train", 1)):
        if documents[side] < least:
            raise StageError(
                f"{documents[side]} of {total} documents fell to the {side} side: set "
                "corpus.validation_share so that both sides get some (now "
                f"{config.validation_share:g}), or give more documents"
            )
    return {
        "train": shard_cuts(key[~validation], size[~validation], config.shard_bytes, config.shards),
        "validation": shard_cuts(key[validation], size[validation], config.shard_bytes),
    }


def _write_shards(
    context: Context,
    config: CorpusConfig,
    cuts: Mapping[str, np.ndarray[Any, Any]],
    pieces: list[str],
) -> None:
    """Second pass."""
    jobs = []
    for side, keys in cuts.items():
        bounds = [0, *(int(k) for k in keys), 2**64]
        jobs += [
            {"name": f"{side}-{i:05d}.parquet", "side": side, "low": low, "high": high}
            for i, (low, high) in enumerate(itertools.pairwise(bounds))
        ]
    finished = context.output.finished()
    missing = [job for job in jobs if job["name"] not in finished]
    context.progress.start(len(jobs), "shards", done=len(jobs) - len(missing))
    arguments = {
        "output": context.output,
        "pieces": pieces,
        "deduplicate": config.deduplicate,
    }
    for _ in run_jobs(context, "stages.shard:Merger", arguments, missing):
        context.progress.advance(1)


class Merger:
    """Merges the range of one shard out of all pieces."""

    def __init__(self, output: ArtifactWriter, pieces: list[str], deduplicate: bool) -> None:
        self._output = output
        self._pieces = pieces
        self._deduplicate = deduplicate

    def __call__(self, job: Record) -> Record:
        """`job["low"]` <= key < `job["high"]`, of `job["side"]`, become `job["name"]`."""
        began = time.perf_counter()
        tables = [t for piece in self._pieces for t in self._range(piece, job)]
        shard = merge_shard(tables, self._deduplicate)
        rows = shard.rows
        figures: dict[str, Any] = {
            **shard.counts,
            "bytes": pc.sum(pc.binary_length(rows["text"])).as_py() or 0,
            "sentences": len(rows["sentence_ends"].combine_chunks().values),
            "document_sizes": document_sizes(rows),
            "sentence_sizes": sentence_sizes(rows),
        }
        # Where documents came from stands outside the content: a moved file changes no shard.
        write_table(
            self._output,
            f"provenance/{job['name']}",
            [shard.provenance],
            row_group_rows=1 << 20,
            content=False,
        )
        figures["seconds"] = time.perf_counter() - began
        write_table(self._output, job["name"], [rows], figures, row_group_rows=ROW_GROUP_ROWS)
        return {"documents": shard.counts["documents"]}

    def _range(self, piece: str, job: Record) -> Iterator[pa.Table]:
        wanted = job["side"] == "validation"
        with pq.ParquetFile(open_scratch(self._output, f"pieces/{piece}")) as file:
            column = file.schema_arrow.get_field_index("key")
            for group in range(file.num_row_groups):
                statistics = file.metadata.row_group(group).column(column).statistics
                if statistics.max < job["low"] or statistics.min >= job["high"]:
                    continue
                table = file.read_row_group(group)
                keys = table["key"].to_numpy()
                mine = keys >= np.uint64(job["low"])
                if job["high"] < 2**64:
                    mine &= keys < np.uint64(job["high"])
                mine &= table["validation"].to_numpy(zero_copy_only=False) == wanted
                yield table.filter(pa.array(mine)).drop_columns(["size"])


def document_sizes(rows: pa.Table) -> list[int]:
    """How many rows have 2**(i - 10) to 2**(i - 9) kB of text, by i."""
    sizes = pc.binary_length(rows["text"]).to_numpy()
    doublings = np.floor(np.log2(np.maximum(sizes, 1) / 1000)).astype(np.int64)
    return list(np.bincount(np.maximum(doublings + 10, 0)).tolist())


def sentence_sizes(rows: pa.Table) -> list[int]:
    """[SENTENCE_BINS] how many sentences have i * SENTENCE_BIN bytes and more, white space too."""
    ends = rows["sentence_ends"].combine_chunks()
    values = ends.flatten().to_numpy().astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), values[:-1]])[: len(values)]
    offsets = ends.offsets.to_numpy()
    firsts = (offsets - offsets[0])[:-1]
    # A row without sentences would name the first sentence of the next one, which is as well.
    starts[firsts[firsts < len(values)]] = 0
    bins = np.minimum((values - starts) // SENTENCE_BIN, SENTENCE_BINS - 1)
    return list(np.bincount(bins, minlength=SENTENCE_BINS).tolist())


def _result(context: Context, config: CorpusConfig, tally: _Tally) -> Result:
    parts = {n: p for n, p in context.output.finished().items() if p.digest is not None}
    sides = {
        side: [p for n, p in parts.items() if n.startswith(f"{side}-")]
        for side in ("train", "validation")
    }
    total: Counter[str] = Counter()
    figures: dict[str, Any] = {}
    for side, shards in sides.items():
        sizes = [p.figures["bytes"] for p in shards]
        for p in shards:
            total.update({k: v for k, v in p.figures.items() if isinstance(v, int)})
        figures |= {
            f"shards/{side}": len(shards),
            f"documents/{side}": sum(p.figures["documents"] for p in shards),
            f"parts/{side}": sum(p.figures["rows"] for p in shards),
            f"bytes/{side}": sum(sizes),
            f"largest_shard_over_mean/{side}": max(sizes) * len(sizes) / max(1, sum(sizes)),
        }
    seconds = dict(tally.seconds) | {"merge": sum(p.figures["seconds"] for p in parts.values())}
    figures |= {
        "bytes/in": tally.counts["bytes_in"],
        "bytes/cleaned": tally.counts["bytes_cleaned"],
        "sentences": total["sentences"],
        "duplicates": total["duplicate_documents"],
        **{f"seconds/{step}": value for step, value in seconds.items()},
        **{f"cleaned/{step}": value for step, value in tally.cleaning.items()},
        "mb_per_second_core": tally.counts["bytes_in"] / 1e6 / max(1e-9, sum(seconds.values())),
    }
    counts = {
        "in": tally.counts["in"],
        "out": total["documents"],
        "duplicate": total["duplicate_documents"],
        **tally.rejects,
    }
    quarantine = json.dumps(tally.examples, indent=1, ensure_ascii=False).encode()
    context.output.write_bytes("quarantine.json", quarantine, content=False)
    return Result(
        figures=figures,
        counts=counts,
        unit="documents",
        report=[
            _sides_table(figures, sides),
            _sizes_histogram(sides),
            _sentences_histogram(sides),
            _cleaning_table(tally),
            _examples_table(tally),
            Table(
                "Where the time went",
                ["step", "seconds, all CPUs together"],
                [[step, round(value, 2)] for step, value in seconds.items()],
            ),
        ],
        samples=_samples(context, parts),
    )


def _sides_table(figures: Mapping[str, Any], sides: Mapping[str, list[Any]]) -> Table:
    rows: list[list[Any]] = [
        ["documents", *(figures[f"documents/{side}"] for side in sides)],
        ["sentences", *(sum(p.figures["sentences"] for p in shards) for shards in sides.values())],
        ["text", *(f"{figures[f'bytes/{side}'] / 1e6:,.2f} MB" for side in sides)],
        ["shards", *(figures[f"shards/{side}"] for side in sides)],
        [
            "largest shard over their mean",
            *(f"{figures[f'largest_shard_over_mean/{side}']:.3f}" for side in sides),
        ],
    ]
    names = ["training" if side == "train" else side for side in sides]
    return Table("What the shards hold", ["", *names], rows)


def _sizes_histogram(sides: Mapping[str, list[Any]]) -> Histogram:
    counted = _summed(p.figures["document_sizes"] for shards in sides.values() for p in shards)
    first = next((i for i, n in enumerate(counted) if n), 0)
    edges = [2.0 ** (i - 10) for i in range(first, len(counted) + 1)]
    return Histogram("Documents by size", edges, counted[first:], "kB, doubling")


def _sentences_histogram(sides: Mapping[str, list[Any]]) -> Histogram:
    counted = _summed(p.figures["sentence_sizes"] for shards in sides.values() for p in shards)
    edges = [float(SENTENCE_BIN * i) for i in range(SENTENCE_BINS + 1)]
    return Histogram("Sentences by length", edges, counted, "bytes; the last bar: all longer ones")


def _summed(histograms: Iterable[list[int]]) -> list[int]:
    return [sum(bins) for bins in itertools.zip_longest(*histograms, fillvalue=0)]


CLEANED = {
    "controls": "control characters removed",
    "invisible": "invisible characters removed",
    "spaces": "tabs and special spaces made plain spaces",
    "line_breaks": "line breaks of other systems made newlines",
    "white_space": "white space that was too much removed",
    "joined_lines": "hard-wrapped lines joined",
    "nfc_documents": "documents composed (Unicode NFC)",
}


def _cleaning_table(tally: _Tally) -> Table:
    rows = [[words, tally.cleaning[step]] for step, words in CLEANED.items()]
    return Table("What cleaning did", ["step", "times"], [row for row in rows if row[1]])


def _examples_table(tally: _Tally) -> Table:
    columns = ("reason", "source", "where", "detail", "snippet")
    used = [c for c in columns if any(e[c] for e in tally.examples)]
    rows = [
        [e[c].replace("_", " ") if c == "reason" else e[c] for c in used] for e in tally.examples
    ]
    rows.sort(key=lambda row: str(row[0]))
    return Table("Examples of what was left out", used, rows)


def _samples(context: Context, parts: Mapping[str, Any]) -> list[str]:
    """The beginnings of a few documents."""
    name = next(iter(sorted(n for n in parts if n.startswith("train-"))))
    with pq.ParquetFile(context.output.fs.open_input_file(f"{context.output.data}/{name}")) as file:
        batch = next(file.iter_batches(batch_size=5, columns=["text"]))
    return [_beginning(str(text)) for text in batch.column(0).to_pylist()]


def _beginning(text: str) -> str:
    if len(text) <= SAMPLE_CHARACTERS:
        return text
    return text[:SAMPLE_CHARACTERS].rsplit(maxsplit=1)[0] + " …"
