"""Each kernel of the chain by itself, on one core: what a MB costs."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.documents import read_lines, work_items
from bench.rounds import Times, timed
from bench.settings import Settings
from pipeline.digest import TableDigest
from pipeline.store import Store
from stages.config import MaskConfig
from stages.corpus_config import CorpusConfig
from stages.mask import ID_COLUMNS
from stages.tables import ROW_GROUP_ROWS, write_table
from stages.text.cleaning import clean
from stages.text.masking import MaskOptions, mask_table
from stages.text.pairing import Sentences, make_pairs
from stages.text.random import Stream
from stages.text.readers import read
from stages.text.records import ReadOptions
from stages.text.rows import gather
from stages.text.sentences import sentence_ends
from stages.text.sharding import SHARD_SCHEMA, document_rows
from stages.text.tokenizer_files import read_vocab
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

BATCH_BYTES = 4_000_000
SLOW_ENGINE_BYTES = 2_000_000
"""Text for `tokenizers` itself, which takes a second for a MB or two."""

# What there is to choose from lies in these modules, wherever it comes from.
_SENTENCES, _SHARDING, _WORDPIECE = (
    importlib.import_module(f"stages.text.{name}")
    for name in ("sentences", "sharding", "wordpiece")
)

SEED = 12345
LENGTH = 128


@dataclass
class Bench:
    """Times calls and keeps what they cost; `skipped` holds a line on each that cannot run."""

    rounds: int
    rows: dict[str, dict[str, float]]
    skipped: list[str]

    def run(self, name: str, megabytes: float, call: Callable[[], Any]) -> Any:
        """Time a call; returns what it last returned."""
        times, kept = Times(), [None]

        def keep() -> None:
            kept[0] = call()

        for _ in range(self.rounds):
            kept[0] = None
            timed(keep, times)
        self.rows[name] = {
            "megabytes": megabytes,
            "seconds": times.seconds,
            "ms_per_mb": 1e3 * times.seconds / megabytes,
            "mb_per_second_core": megabytes / times.seconds,
        }
        return kept[0]


def measure(settings: Settings) -> dict[str, Any]:
    """ms a MB of raw text and MB/s/core of every kernel, medians of `settings.rounds`."""
    size = sum(len(text.encode()) for text in read_lines(settings.documents)) / 1e6
    bench = Bench(settings.rounds, {}, [])
    rows = _shard_kernels(bench, settings, size)
    ids = _pair_kernels(bench, settings, rows, size)
    _mask_kernels(bench, settings, ids, size)
    return {"megabytes": size, "kernels": bench.rows, "left_out": bench.skipped}


def _shard_kernels(bench: Bench, settings: Settings, size: float) -> pa.Table:
    work = work_items(CorpusConfig(paths=(str(settings.documents),)))
    options = ReadOptions(batch_bytes=BATCH_BYTES)
    batches = bench.run(
        "read JSON lines", size, lambda: [b for split in work for b in read(split, options)]
    )
    documents = [batch.documents for batch in batches]
    cleaned = bench.run("clean", size, lambda: [clean(d["text"]).texts for d in documents])
    documents = [
        d.set_column(d.schema.get_field_index("text"), "text", texts).filter(
            pc.greater(pc.binary_length(texts), 0)
        )
        for d, texts in zip(documents, cleaned, strict=True)
    ]
    ends: list[pa.ListArray] = []
    for method in getattr(_SENTENCES, "METHODS", ("icu", "lines")):
        try:
            found = bench.run(
                f"sentences, {method}",
                size,
                functools.partial(_ends, documents, method),
            )
        except (ImportError, ValueError) as error:
            bench.skipped.append(f"sentences, {method}: {error}")
            continue
        ends = ends or found
    pieces = bench.run(
        "hash and order",
        size,
        lambda: [
            document_rows(d, e, seed=SEED, validation_share=0.02, max_document_bytes=1_000_000)
            for d, e in zip(documents, ends, strict=True)
        ],
    )
    bench.run("write pieces", size, lambda: [_parquet(piece) for piece in pieces])
    merge = getattr(_SHARDING, "merge_rows", None) or _SHARDING.merge_shard
    shard = bench.run("merge and deduplicate", size, lambda: merge(pieces))
    rows: pa.Table = shard.rows.select(SHARD_SCHEMA.names).combine_chunks()
    _stored(bench, settings, "shard", rows, size, ())
    return rows


def _ends(documents: list[pa.RecordBatch], method: Any) -> list[pa.ListArray]:
    return [sentence_ends(d["text"], method) for d in documents]


def _pair_kernels(bench: Bench, settings: Settings, rows: pa.Table, size: float) -> pa.Table:
    vocab = read_vocab(settings.vocab_file.read_bytes())
    texts, ends = rows["text"].combine_chunks(), rows["sentence_ends"].combine_chunks()
    few = int(np.searchsorted(np.cumsum(pc.binary_length(texts).to_numpy()), SLOW_ENGINE_BYTES))
    few = max(1, min(few, len(texts)))
    encoded = None
    for engine in get_args(_WORDPIECE.Engine):
        part = slice(0, few) if engine == "tokenizers" else slice(0, len(texts))
        share = (
            pc.sum(pc.binary_length(texts[part])).as_py() / pc.sum(pc.binary_length(texts)).as_py()
        )

        def cold(engine: Any = engine, part: slice = part) -> Any:
            tokenizer = Tokenizer(vocab, Normalisation(), engine=engine)
            return tokenizer, tokenizer.encode(texts[part], ends[part])

        try:
            tokenizer, found = bench.run(f"tokenise, {engine}, cold", size * share, cold)
        except (ImportError, ValueError) as error:
            bench.skipped.append(f"tokenise, {engine}: {error}")
            continue
        if engine != "tokenizers":
            warm = functools.partial(tokenizer.encode, texts, ends)
            bench.run(f"tokenise, {engine}, warm", size, warm)
            encoded = found
    assert encoded is not None
    tokenizer = Tokenizer(vocab, Normalisation())
    documents = rows["document"].combine_chunks()
    sentences = Sentences(
        lengths=np.diff(encoded.sentence_offsets),
        documents=encoded.document_offsets,
        origins=np.arange(len(texts)),
        word_starts=~tokenizer.is_continuation[encoded.ids],
    )
    plan = bench.run(
        "pairs",
        size,
        lambda: make_pairs(sentences, max_seq_length=LENGTH, stream=Stream(SEED, "pairs")),
    )
    table: pa.Table = bench.run(
        "gather",
        size,
        lambda: gather(
            encoded.ids,
            plan,
            documents,
            cls_id=vocab.index("[CLS]"),
            sep_id=vocab.index("[SEP]"),
            vocabulary_size=len(vocab),
        ),
    )
    _stored(bench, settings, "pairs", table, size, ID_COLUMNS[:1])
    return table


def _mask_kernels(bench: Bench, settings: Settings, rows: pa.Table, size: float) -> None:
    vocab = read_vocab(settings.vocab_file.read_bytes())
    tokenizer = Tokenizer(vocab, Normalisation())
    masked = None
    for strategy in _choices(MaskConfig, "strategy"):
        options = MaskOptions(
            cls_id=vocab.index("[CLS]"),
            sep_id=vocab.index("[SEP]"),
            mask_id=vocab.index("[MASK]"),
            ordinary=tokenizer.is_ordinary,
            continuation=tokenizer.is_continuation,
            max_predictions=20,
            strategy=strategy,  # type: ignore[arg-type]
        )

        def mask(options: MaskOptions = options) -> pa.Table:
            stream = Stream(SEED, "mask")
            return pa.concat_tables(
                mask_table(
                    rows.slice(low, ROW_GROUP_ROWS).combine_chunks(),
                    options,
                    stream,
                    np.arange(low, min(low + ROW_GROUP_ROWS, rows.num_rows)),
                )
                for low in range(0, rows.num_rows, ROW_GROUP_ROWS)
            )

        found = bench.run(f"masks, {strategy.replace('_', ' ')}", size, mask)
        masked = masked or found
    _stored(bench, settings, "masked", masked, size, ID_COLUMNS)


def _stored(
    bench: Bench,
    settings: Settings,
    name: str,
    table: pa.Table,
    size: float,
    columns: tuple[str, ...],
) -> None:
    """Digest, write (digests, hashes of files and the record of the part with it) and read."""
    file = f"train-{name}.parquet"

    def digest() -> str:
        of = TableDigest(table.schema)
        of.update(table)
        return of.hexdigest()

    folder = settings.folder / "kernels"
    store = Store(str(folder))
    number = 0

    def write() -> str:
        nonlocal number
        number += 1
        # A part that is there already would not be written again.
        output = store.begin(f"kernel-{name}-{number}", "0" * 64, "bench")
        write_table(output, file, [table], row_group_rows=ROW_GROUP_ROWS, byte_stream_split=columns)
        return f"{output.data}/{file}"

    bench.run(f"digest of {name} rows", size, digest)
    path = bench.run(f"write {name} rows", size, write)
    bench.run(f"read {name} rows", size, lambda: pq.read_table(path))


def _parquet(table: pa.Table) -> int:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=256)
    return sink.tell()


def _choices(group: Any, field: str) -> tuple[str, ...]:
    """The values that a setting may have."""
    return get_args(group.model_fields[field].annotation)
