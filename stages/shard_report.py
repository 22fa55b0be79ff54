"""The figures and the report of stage shard, from what its workers told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from pipeline.stage import Context, Histogram, Result, Table
from stages.parallel import Record
from stages.shard_tally import Tally
from stages.text.sizes import SENTENCE_BIN, SENTENCE_BINS, summed

SAMPLE_CHARACTERS = 400


def shard_result(context: Context, tally: Tally, regrouped: Record) -> Result:
    """Figures, counts, tables, histograms and samples of the whole stage."""
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
            f"copies/{side}": sum(p.figures["copies"] for p in shards),
            f"parts/{side}": sum(p.figures["rows"] for p in shards),
            f"bytes/{side}": sum(sizes),
            f"largest_shard_over_mean/{side}": max(sizes) * len(sizes) / max(1, sum(sizes)),
            f"smallest_shard_over_mean/{side}": min(sizes) * len(sizes) / max(1, sum(sizes)),
        }
    seconds = dict(tally.seconds)
    if regrouped:
        seconds["regroup"] = regrouped["seconds"]
    seconds["merge"] = sum(p.figures["seconds"] for p in parts.values())
    # Duplicates are dropped wherever they meet: in a piece, in a group of pieces, in a shard.
    duplicates = (
        tally.counts["duplicate_documents"]
        + regrouped.get("duplicate_documents", 0)
        + total["duplicate_documents"]
    )
    figures |= {
        "bytes/in": tally.counts["bytes_in"],
        "bytes/cleaned": tally.counts["bytes_cleaned"],
        "bytes/scratch": max(tally.counts["bytes_pieces"], regrouped.get("bytes", 0)),
        "bytes/stored": sum(p.size for p in parts.values()),
        "sentences": total["sentences"],
        "duplicates": duplicates,
        **{f"seconds/{step}": value for step, value in seconds.items()},
        **{f"cleaned/{step}": value for step, value in tally.cleaning.items()},
        **{f"languages/{name}": value for name, value in tally.languages.items()},
        **{f"encodings/{name}": value for name, value in tally.encodings.items()},
        "mb_per_second_core": tally.counts["bytes_in"] / 1e6 / max(1e-9, sum(seconds.values())),
    }
    counts = {
        "in": tally.counts["in"],
        "out": total["documents"],
        "duplicate": duplicates,
        **({"near_duplicate": near} if (near := total["near_duplicate_documents"]) else {}),
        **tally.rejects,
    }
    for part in parts.values():
        tally.quarantine(part.figures["examples"])
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
            *_found_table("Encodings that were detected", "encoding", "files", tally.encodings),
            *_found_table("Languages", "language", "documents", tally.languages),
            _examples_table(tally),
            _bytes_table(figures),
            _time_table(seconds, tally.counts["bytes_in"]),
        ],
        samples=_samples(context, parts),
    )


def _sides_table(figures: Mapping[str, Any], sides: Mapping[str, list[Any]]) -> Table:
    rows: list[list[Any]] = [
        ["documents", *(figures[f"documents/{side}"] for side in sides)],
        ["sentences", *(sum(p.figures["sentences"] for p in shards) for shards in sides.values())],
        ["text", *(f"{figures[f'bytes/{side}'] / 1e6:,.2f} MB" for side in sides)],
        ["shards", *(figures[f"shards/{side}"] for side in sides)],
        *(
            [
                f"{which} shard over their mean",
                *(f"{figures[f'{which}_shard_over_mean/{side}']:.3f}" for side in sides),
            ]
            for which in ("smallest", "largest")
        ),
    ]
    if figures["copies/train"]:
        rows.insert(1, ["copies of documents", *(figures[f"copies/{side}"] for side in sides)])
    names = ["training" if side == "train" else side for side in sides]
    return Table("What the shards hold", ["", *names], rows)


def _sizes_histogram(sides: Mapping[str, list[Any]]) -> Histogram:
    counted = summed(*(p.figures["document_sizes"] for shards in sides.values() for p in shards))
    first = next((i for i, n in enumerate(counted) if n), 0)
    edges = [2.0 ** (i - 10) for i in range(first, len(counted) + 1)]
    return Histogram("Documents by size", edges, counted[first:], "kB, doubling")


def _sentences_histogram(sides: Mapping[str, list[Any]]) -> Histogram:
    counted = summed(*(p.figures["sentence_sizes"] for shards in sides.values() for p in shards))
    edges = [float(SENTENCE_BIN * i) for i in range(SENTENCE_BINS + 1)]
    return Histogram("Sentences by length", edges, counted, "bytes; the last bar: all longer ones")


CLEANED = {
    "controls": "control characters removed",
    "invisible": "invisible characters removed",
    "spaces": "tabs and special spaces made plain spaces",
    "line_breaks": "line breaks of other systems made newlines",
    "white_space": "white space that was too much removed",
    "joined_lines": "hard-wrapped lines joined",
    "nfc_documents": "documents composed (Unicode NFC)",
}


def _cleaning_table(tally: Tally) -> Table:
    rows = [[words, tally.cleaning[step]] for step, words in CLEANED.items()]
    return Table("What cleaning did", ["step", "times"], [row for row in rows if row[1]])


def _found_table(title: str, what: str, counted: str, found: Mapping[str, int]) -> list[Table]:
    rows: list[list[Any]] = [[name, n] for name, n in sorted(found.items())]
    return [Table(title, [what, counted], rows)] if rows else []


def _bytes_table(figures: Mapping[str, Any]) -> Table:
    words = {
        "in": "text read",
        "cleaned": "text cleaned",
        "scratch": "intermediate files, removed at the end",
        "stored": "shards as stored",
    }
    rows = [[w, f"{figures[f'bytes/{name}'] / 1e6:,.2f} MB"] for name, w in words.items()]
    return Table("Bytes", ["", "size"], rows)


def _time_table(seconds: Mapping[str, float], size: int) -> Table:
    return Table(
        "Where the time went",
        ["step", "seconds, all CPUs together", "MB of text read a second and CPU"],
        [
            [s, round(value, 2), round(size / 1e6 / max(value, 1e-9), 1)]
            for s, value in seconds.items()
        ],
    )


def _examples_table(tally: Tally) -> Table:
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
