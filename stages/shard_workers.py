"""What the workers of stage shard do: read a split, or merge a shard."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store import ArtifactWriter
from stages.corpus_config import CorpusConfig
from stages.near_duplicates import near_duplicate_options, write_bands
from stages.parallel import JobFailed, Record
from stages.scratch import write_scratch_buffer, write_scratch_json
from stages.shard_tally import EXAMPLES_A_REASON, Clock, Tally, preparing_options, quarantined
from stages.shuffle import Dropped, Layout, merged_ranges
from stages.tables import write_table
from stages.text.language import MissingLibraryError, UnknownLanguageError
from stages.text.listing import Split
from stages.text.near_duplicates import band_rows
from stages.text.pieces import write_piece
from stages.text.preparing import prepare_documents
from stages.text.readers import Batch, read
from stages.text.records import ReadOptions
from stages.text.sentences import sentence_ends
from stages.text.sharding import (
    PROVENANCE_SCHEMA,
    SHARD_SCHEMA,
    copies,
    document_hash,
    document_rows,
    is_sampled,
    merge_rows,
)
from stages.text.sizes import document_sizes, sentence_sizes, summed
from stages.text.splitters import SplitterError
from stages.text.uris import RemoteFailure

PIECE_BYTES = 16_000_000
"""Cleaned text that the first pass holds before it writes a piece."""

ROW_GROUP_BYTES = 8_000_000
"""Text of a row group of a shard: what a reader that streams holds at a time."""


class Reader:
    """Reads, cleans, cuts and hashes one split."""

    def __init__(
        self,
        output: ArtifactWriter,
        config: CorpusConfig,
        seed: int,
        batch_bytes: int,
        packed: bool = True,
    ) -> None:
        """`packed`: whether pieces are compressed."""
        self._output = output
        self._packed = packed
        self._config = config
        self._seed = seed
        self._batch_bytes = batch_bytes
        self._near = near_duplicate_options(config)
        self._bands: list[pa.Table] = []

    def __call__(self, job: Record) -> Record:
        """`job["split"]`: what to read; `job["number"]` names the pieces."""
        number, split = job["number"], Split.from_json(job["split"])
        tally = Tally()
        self._bands.clear()
        try:
            self._read(number, split, tally)
            record = f"read/{number:05d}.json"
            write_scratch_json(self._output, record, tally.to_json(), durable=False)
        except RemoteFailure as error:
            raise JobFailed(str(error)) from None
        except OSError as error:
            first = split.files[0] if split.files else split.source
            raise JobFailed(f"reading {first} and what goes with it: {error}") from None
        return {"stored_bytes": split.bytes, "documents": tally.counts["documents"]}

    def _read(self, number: int, split: Split, tally: Tally) -> None:
        held: list[pa.Table] = []
        held_bytes = 0
        options = ReadOptions(
            text_field=split.text_field,
            id_field=split.id_field,
            source_field=split.source_field,
            encoding=split.encoding,
            batch_bytes=self._batch_bytes,
        )
        began = time.perf_counter()
        for batch in read(split, options):
            tally.seconds["read"] += time.perf_counter() - began
            documents = self._clean(batch, split.format, tally)
            # Of a long document the raw text is not held while it is cut.
            del batch
            table = self._rows(documents, split, tally)
            del documents
            if table.num_rows:
                held.append(table)
            held_bytes += table["text"].nbytes
            if held_bytes >= PIECE_BYTES:
                self._write(number, held, tally)
                held, held_bytes = [], 0
            began = time.perf_counter()
        if held:
            self._write(number, held, tally)

    def _rows(self, documents: pa.RecordBatch, split: Split, tally: Tally) -> pa.Table:
        config = self._config
        clock = Clock(tally.seconds)
        lines = split.format == "sentences"
        origin = document_hash(documents["text"])
        share = split.sample
        if share < 1:
            keep = is_sampled(self._seed, origin, share)
            tally.reject({"not_sampled": len(keep) - int(np.count_nonzero(keep))})
            documents, origin = documents.filter(pa.array(keep)), origin.filter(pa.array(keep))
        clock.lap("hash")
        texts = documents["text"]
        if self._near is not None:
            self._bands.append(band_rows(texts, origin, self._near))
            clock.lap("near duplicates")
        try:
            ends = sentence_ends(texts, "lines" if lines else config.sentences, config.language)
        except SplitterError as error:
            where = "" if error.row is None else _place(documents, error.row)
            raise JobFailed(f"corpus.sentences: {error}{where}") from error
        clock.lap("sentences")
        rows = document_rows(
            documents,
            ends,
            seed=self._seed,
            validation_share=config.validation_share,
            max_document_bytes=config.max_document_bytes,
            origin=origin,
            repeat=split.repeat,
        )
        tally.counts["documents"] += documents.num_rows
        tally.counts["rows"] += rows.num_rows
        tally.counts["bytes_cleaned"] += texts.nbytes
        clock.lap("hash")
        return rows

    def _clean(self, batch: Batch, format: str, tally: Tally) -> pa.RecordBatch:
        """What is left of the documents; those that are dropped are counted."""
        tally.counts["in"] += batch.records
        tally.counts["bytes_in"] += batch.bytes
        tally.encodings.update(batch.encodings)
        tally.reject(batch.rejects)
        tally.quarantine([dataclasses.asdict(e) for e in batch.examples])
        clock, documents = Clock(tally.seconds), batch.documents
        try:
            prepared = prepare_documents(documents["text"], preparing_options(self._config, format))
        except (MissingLibraryError, UnknownLanguageError) as error:
            raise JobFailed(str(error)) from None
        tally.cleaning.update(prepared.counts)
        tally.languages.update(prepared.languages)
        tally.reject(prepared.reasons)
        tally.quarantine(
            quarantined(documents, [(e.row, e.reason, e.detail) for e in prepared.examples])
        )
        # The raw texts are large: they are not filtered too.
        left = documents.select(["source", "id"]).filter(prepared.keep)
        clock.lap("clean")
        return left.append_column(documents.schema.field("text"), prepared.texts)

    def _write(self, split: int, tables: list[pa.Table], tally: Tally) -> None:
        clock = Clock(tally.seconds)
        name = f"{split:05d}-{len(tally.pieces):03d}.arrow"
        table = pa.concat_tables(tables).combine_chunks()
        tables.clear()
        merged = merge_rows([table], self._config.deduplicate)
        del table
        data = write_piece(merged.rows, self._packed)
        write_scratch_buffer(self._output, f"pieces/{name}", data, durable=False)
        if self._bands:
            write_bands(self._output, name, self._bands)
            self._bands.clear()
        tally.counts["duplicate_rows"] += merged.duplicate_rows
        tally.counts["duplicate_documents"] += merged.duplicate_documents
        tally.counts["bytes_pieces"] += data.size
        tally.pieces.append(name)
        clock.lap("scratch")


def _place(documents: pa.RecordBatch, row: int) -> str:
    source, name = documents.column("source")[row].as_py(), documents.column("id")[row].as_py()
    return f" (document {name} of {source})" if name else f" (document {source})"


class Merger:
    """Merges a range of keys into one shard, a part of it at a time."""

    def __init__(self, output: ArtifactWriter, layout: Layout, deduplicate: bool) -> None:
        self._output = output
        self._layout = layout
        self._deduplicate = deduplicate
        self._dropped = Dropped(output, layout.dropped)

    def __call__(self, job: Record) -> Record:
        """`job["low"]` <= key < `job["high"]`, of `job["side"]`, become `job["name"]`."""
        figures: dict[str, Any] = {}
        try:
            write_table(
                self._output,
                job["name"],
                self._shard(job, figures),
                figures,
                row_group_rows=1 << 20,
                dictionary=("part",),
            )
        except (OSError, ValueError) as error:
            raise JobFailed(f"merging {job['name']}: {error}") from None
        return {"name": job["name"], "documents": figures["documents"]}

    def _shard(self, job: Record, figures: dict[str, Any]) -> Iterator[pa.Table]:
        """Row groups of a shard; at the end, its figures and where its rows came from."""
        began = time.perf_counter()
        found = _Found()
        provenance = []
        number, most = 0, 1
        while number < most:
            # Copies come in rounds, so that no two of a document stand side by side.
            for rows in row_groups(copies(self._ranges(job, number, found), number)):
                most = max(most, int(pc.max(rows["repeat"]).as_py()))
                found.add(rows, number)
                provenance.append(rows.select(PROVENANCE_SCHEMA.names))
                yield rows.select(SHARD_SCHEMA.names)
            number += 1
        if not provenance:
            yield SHARD_SCHEMA.empty_table()
        # Where documents came from stands outside the content: a moved file changes no shard.
        write_table(
            self._output,
            f"provenance/{job['name']}",
            provenance or [PROVENANCE_SCHEMA.empty_table()],
            row_group_rows=1 << 20,
            content=False,
            dictionary=("part", "source"),
        )
        figures |= found.figures() | {"seconds": time.perf_counter() - began}

    def _ranges(self, job: Record, number: int, found: _Found) -> Iterator[pa.Table]:
        for merged in merged_ranges(
            self._output, self._layout, job["side"], job["low"], job["high"], self._deduplicate
        ):
            rows, out = self._dropped.split(merged.rows)
            if number == 0:
                found.counts["duplicate_rows"] += merged.duplicate_rows
                found.counts["duplicate_documents"] += merged.duplicate_documents
                found.drop(out)
            yield rows


class _Found:
    """What a shard holds, added up row group by row group."""

    def __init__(self) -> None:
        names = ("rows", "documents", "copies", "duplicate_rows", "duplicate_documents")
        more = ("near_duplicate_documents", "bytes", "sentences")
        self.counts = Counter(dict.fromkeys((*names, *more), 0))
        self.examples: list[dict[str, str]] = []
        self.document_sizes: list[int] = []
        self.sentence_sizes: list[int] = []

    def add(self, rows: pa.Table, number: int) -> None:
        """Count rows: of the first round, or of a round of copies."""
        documents = int(np.count_nonzero(rows["part"].to_numpy() == 0))
        self.counts["documents" if number == 0 else "copies"] += documents
        self.counts["rows"] += rows.num_rows
        self.counts["bytes"] += int(pc.sum(rows["size"]).as_py())
        self.counts["sentences"] += len(rows["sentence_ends"].combine_chunks().flatten())
        self.document_sizes = summed(self.document_sizes, document_sizes(rows))
        self.sentence_sizes = summed(self.sentence_sizes, sentence_sizes(rows))

    def drop(self, rows: pa.Table) -> None:
        """Count rows of near duplicates, and keep a few as examples."""
        first = rows.filter(pc.equal(rows["part"], 0))
        self.counts["near_duplicate_documents"] += first.num_rows
        room = min(EXAMPLES_A_REASON - len(self.examples), first.num_rows)
        for batch in first.slice(0, room).to_batches():
            found = [(i, "near_duplicate", "") for i in range(batch.num_rows)]
            self.examples += quarantined(batch, found)

    def figures(self) -> dict[str, Any]:
        """As they stand in the record of the shard."""
        return {
            **self.counts,
            "document_sizes": self.document_sizes,
            "sentence_sizes": self.sentence_sizes,
            "examples": self.examples,
        }


def row_groups(tables: Iterable[pa.Table], size: int = ROW_GROUP_BYTES) -> Iterator[pa.Table]:
    """Cut the rows of all tables into groups of `size` bytes of text, and what is over a row.

    The groups depend on the rows alone, not on the tables that they come in.
    """
    held: list[pa.Table] = []
    filled = 0
    for table in tables:
        ends = np.cumsum(table["size"].to_numpy().astype(np.int64))
        start = before = 0
        while start < table.num_rows:
            end = int(np.searchsorted(ends, before + size - filled)) + 1
            end = min(end, table.num_rows)
            held.append(table.slice(start, end - start))
            filled += int(ends[end - 1]) - before
            if filled >= size:
                yield pa.concat_tables(held).combine_chunks()
                held, filled = [], 0
            start, before = end, int(ends[end - 1])
    if held:
        yield pa.concat_tables(held).combine_chunks()
