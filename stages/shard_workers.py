"""What the workers of stage shard do: read a split, or merge a shard."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store import ArtifactWriter
from stages.config import CorpusConfig
from stages.parallel import Record
from stages.scratch import open_scratch, write_scratch
from stages.tables import write_table
from stages.text.cleaning import CleaningOptions, clean, long_enough
from stages.text.listing import Split
from stages.text.readers import Batch, read
from stages.text.records import ReadOptions
from stages.text.sentences import sentence_ends
from stages.text.sharding import document_rows, merge_shard

PIECE_BYTES = 32_000_000
"""Cleaned text that the first pass holds before it writes a piece."""

PIECE_ROW_GROUP = 256
ROW_GROUP_ROWS = 1024
EXAMPLES_A_REASON = 5
"""Quarantined records kept for the report, so that a common reason hides no rare one."""

SENTENCE_BIN, SENTENCE_BINS = 20, 25
"""Bytes a bar, and bars, of the histogram of sentences; the last bar takes all longer ones."""


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
        tally = Tally()
        held: list[pa.Table] = []
        held_bytes = 0
        options = ReadOptions(
            text_field=self._config.text_field,
            id_field=self._config.id_field,
            source_field=self._config.source_field,
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

    def _rows(self, batch: Batch, split: Split, tally: Tally) -> pa.Table:
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


class Tally:
    """What became of the records of a split; adds up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.cleaning: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.examples: list[dict[str, str]] = []
        self.pieces: list[str] = []

    def reject(self, reasons: Mapping[str, int]) -> None:
        """Count records that were left out, by reason."""
        self.rejects.update({reason: n for reason, n in reasons.items() if n})

    def quarantine(self, examples: list[dict[str, str]]) -> None:
        """Keep a few examples of each reason."""
        kept = Counter(example["reason"] for example in self.examples)
        for example in examples:
            if kept[example["reason"]] < EXAMPLES_A_REASON:
                kept[example["reason"]] += 1
                self.examples.append(example)

    def to_json(self) -> dict[str, Any]:
        """A plain dict that `add` takes."""
        return dict(vars(self))

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what another split told."""
        for name in ("counts", "rejects", "cleaning"):
            getattr(self, name).update(record[name])
        for step, seconds in record["seconds"].items():
            self.seconds[step] += seconds
        self.quarantine(record["examples"])
        # Not what lies in the folder: a killed attempt with another batch size cut other pieces.
        self.pieces += record["pieces"]


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
