"""Stage mask: rows -> rows with masks in place, positions and labels beside."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.stage import Context, Histogram, Result, StageError, Table
from pipeline.store import Artifact, ArtifactWriter
from stages.config import MaskConfig
from stages.mask_options import mask_options
from stages.parallel import JobFailed, Record, run_jobs
from stages.scratch import open_scratch, write_scratch
from stages.tables import LABEL_COUNTS, LABELS, PAIR_KEY, ROW_GROUP_ROWS, shard_files, write_table
from stages.text.buffers import whole
from stages.text.masking import MaskOptions, mask_table
from stages.text.random import Stream
from stages.text.tokenizer_files import vocabulary_digest
from stages.vocabulary_files import check_vocabulary, load_tokenizer

ID_COLUMNS = (
    "input_ids.list.element",
    "mlm_positions.list.element",
    "mlm_labels.list.element",
)
SAMPLES = 5
Z_999 = 3.2905267314919255
"""Of the normal law: 99.9 % lie within."""


def part_name(pairs: str, copy: int) -> str:
    """Pairs part "train-c1-00003.parquet", mask copy 2 -> "train-c1m2-00003.parquet"."""
    split, pass_, number = pairs.split("-", 2)
    return f"{split}-{pass_}m{copy}-{number}"


def run(context: Context) -> Result:
    """Mask the rows of all parts that are not there yet."""
    config = MaskConfig.model_validate(context.node.config["mask"])
    pairs = context.inputs["pairs"]
    wanted: list[Record] = [
        {"pairs": name, "copy": copy}
        for name in shard_files(pairs, context.node.config["split"])
        for copy in range(config.copies)
    ]
    finished = context.output.finished()
    jobs = [job for job in wanted if part_name(job["pairs"], job["copy"]) not in finished]
    context.progress.start(len(wanted), "shards", done=len(wanted) - len(jobs))
    vocab = context.inputs["vocab"]
    arguments = {
        "pairs": pairs,
        "vocab": vocab,
        "output": context.output,
        "config": config,
        "seed": context.node.config["seeds"]["mask"],
    }
    for _ in run_jobs(context, "stages.mask:Masker", arguments, jobs):
        context.progress.advance(1)
    made = context.output.finished()
    # Not part by part: each call reads the records of all parts.
    parts = {
        name: {**part.figures, "bytes/out": part.size}
        for name, part in made.items()
        if name != LABEL_COUNTS
    }
    if LABEL_COUNTS not in made:
        table = _label_counts(context.output, list(parts))
        write_table(context.output, LABEL_COUNTS, [table], row_group_rows=1 << 20, content=False)
    return _result(parts, config)


class Masker:
    """Masks one part of the pairs."""

    def __init__(
        self,
        pairs: Artifact,
        vocab: Artifact,
        output: ArtifactWriter,
        config: MaskConfig,
        seed: int,
    ) -> None:
        self._pairs = pairs
        self._output = output
        self._seed = seed
        self._tokenizer = load_tokenizer(vocab)
        self._digest = vocabulary_digest(self._tokenizer)
        self._unusable = ""
        try:
            self._options = mask_options(config, self._tokenizer)
        except StageError as error:
            # Told by the first job: what fails while a worker is made is no user's mistake to Ray.
            self._unusable = str(error)

    def __call__(self, job: Record) -> Record:
        """`job["pairs"]`: name of the part; `job["copy"]`: number of the mask."""
        if self._unusable:
            raise JobFailed(self._unusable)
        name, copy = job["pairs"], job["copy"]
        figures: dict[str, Any] = {}
        part = write_table(
            self._output,
            part_name(name, copy),
            self._masked(name, copy, figures),
            figures,
            row_group_rows=ROW_GROUP_ROWS,
            byte_stream_split=ID_COLUMNS,
        )
        return {"rows": part.rows}

    def _masked(self, name: str, copy: int, figures: dict[str, Any]) -> Iterator[pa.Table]:
        seconds = {"read": 0.0, "mask": 0.0, "write": 0.0}
        stream = Stream(self._seed, "mask", name, copy)
        total: Counter[str] = Counter()
        labels = np.zeros(len(self._tokenizer.vocab), np.int64)
        predicted: Counter[int] = Counter()
        samples: list[str] = []
        with self._pairs.open(name) as source, pq.ParquetFile(source) as file:
            check_vocabulary(file.schema_arrow.metadata, self._digest, f"{name} of the pairs")
            words = LABELS[
                (file.schema_arrow.metadata or {}).get(PAIR_KEY, b"next_sentence").decode()
            ]
            row = 0
            for group in range(file.num_row_groups):
                began = time.perf_counter()
                table = file.read_row_group(group)
                read = time.perf_counter()
                rows = np.arange(row, row + table.num_rows)
                masked = mask_table(table, self._options, stream, rows)
                row += table.num_rows
                total.update(_tally(table, masked, self._options))
                originals = whole(masked["mlm_labels"]).flatten().to_numpy()
                labels += np.bincount(originals, minlength=len(labels))
                counts = np.diff(whole(masked["mlm_labels"]).offsets.to_numpy())
                predicted.update(dict(enumerate(np.bincount(counts).tolist())))
                if not samples and "-00000" in name:
                    samples = self._decode(masked.slice(0, SAMPLES), words)
                done = time.perf_counter()
                yield masked
                seconds["read"] += read - began
                seconds["mask"] += done - read
                seconds["write"] += time.perf_counter() - done
        # Before the part's own record: a part that exists has its label counts.
        used = np.flatnonzero(labels)
        table = pa.table({"id": used.astype(np.uint32), "count": labels[used]})
        write_scratch(self._output, f"labels/{part_name(name, copy)}", table, durable=False)
        figures |= dict(total) | {
            "predicted": [predicted[i] for i in range(max(predicted, default=0) + 1)],
            "samples": samples,
            "seconds": sum(seconds.values()),
            **{f"seconds/{step}": value for step, value in seconds.items()},
        }

    def _decode(self, rows: pa.Table, labels: Mapping[bool, str]) -> list[str]:
        vocab = self._tokenizer.vocab
        out = []
        for row in rows.to_pylist():
            shown = [vocab[i] for i in row["input_ids"]]
            for place, label in zip(row["mlm_positions"], row["mlm_labels"], strict=True):
                shown[place] = f"[{shown[place].strip('[]') or shown[place]}→{vocab[label]}]"
            label = f"{labels[row['is_next']]}\n" if row["is_next"] is not None else ""
            # What is marked keeps its ##, or it could not be told apart.
            out.append(label + " ".join(shown).replace(" ##", ""))
        return out


def _tally(table: pa.Table, masked: pa.Table, options: MaskOptions) -> dict[str, int]:
    """Counts of rows, tokens and labels, of what stands there now, and of rows off the rule."""
    ids = whole(masked["input_ids"])
    labels = whole(masked["mlm_labels"])
    lengths = np.diff(ids.offsets.to_numpy()).astype(np.int64)
    counts = np.diff(labels.offsets.to_numpy()).astype(np.int64)
    positions = whole(masked["mlm_positions"]).flatten().to_numpy().astype(np.int64)
    starts = (ids.offsets.to_numpy()[:-1] - ids.offsets.to_numpy()[0]).astype(np.int64)
    shown = ids.flatten().to_numpy()[np.repeat(starts, counts) + positions]
    originals = labels.flatten().to_numpy()
    before = whole(table["input_ids"])
    offsets = before.offsets.to_numpy().astype(np.int64)
    candidate = options.candidates(before.flatten().to_numpy(), offsets - offsets[0])
    summed = np.concatenate(([0], np.cumsum(candidate)))
    rule = np.minimum(options.quota(lengths), np.diff(summed[offsets - offsets[0]]))
    return {
        "rows": len(lengths),
        "tokens": int(lengths.sum()),
        "labels_total": int(counts.sum()),
        "shown/mask": int((shown == options.mask_id).sum()),
        "shown/original": int((shown == originals).sum()),
        "shown/random": int(((shown != options.mask_id) & (shown != originals)).sum()),
        # A word that would exceed the rule's count is skipped, so whole words may be fewer.
        "rows_under_rule": (int((counts < rule).sum()) if options.strategy == "per_token" else 0),
        "rows_over_rule": int((counts > rule).sum()),
    }


def _label_counts(output: ArtifactWriter, names: list[str]) -> pa.Table:
    """How often each id is a label, over all parts: the unigram baseline of a split."""
    tables = []
    for name in names:
        try:
            with open_scratch(output, f"labels/{name}") as source:
                tables.append(pq.read_table(source))
        # Gone or torn in a power cut; the part itself is whole.
        except (OSError, pa.ArrowInvalid):
            tables.append(_labels_of(output, name))
    summed = pa.concat_tables(tables).group_by("id").aggregate([("count", "sum")])
    return summed.rename_columns({"count_sum": "count"}).select(["id", "count"]).sort_by("id")


def _labels_of(output: ArtifactWriter, name: str) -> pa.Table:
    """How often each id is a label, from a part that is there."""
    with output.fs.open_input_file(f"{output.data}/{name}") as source:
        column = pq.read_table(source, columns=["mlm_labels"])["mlm_labels"]
    counts = np.bincount(whole(column).flatten().to_numpy())
    used = np.flatnonzero(counts)
    return pa.table({"id": used.astype(np.uint32), "count": counts[used]})


def _result(parts: Mapping[str, Mapping[str, Any]], config: MaskConfig) -> Result:
    total: Counter[str] = Counter()
    predicted: Counter[int] = Counter()
    for figures in parts.values():
        total.update({k: v for k, v in figures.items() if isinstance(v, int)})
        predicted.update(dict(enumerate(figures["predicted"])))
    count = max(1, total["labels_total"])
    figures = {
        "rows": total["rows"],
        "tokens": total["tokens"],
        "labels": total["labels_total"],
        "masked_share": total["labels_total"] / max(1, total["tokens"]),
        "share/mask": total["shown/mask"] / count,
        "share/random": total["shown/random"] / count,
        "share/original": total["shown/original"] / count,
        "rows_under_rule": total["rows_under_rule"],
        "rows_over_rule": total["rows_over_rule"],
        "bytes/out": sum(f["bytes/out"] for f in parts.values()),
        "cap": config.max_predictions,
        "seconds": sum(f["seconds"] for f in parts.values()),
    }
    steps = {s: sum(f[f"seconds/{s}"] for f in parts.values()) for s in ("read", "mask", "write")}
    figures |= {f"seconds/{step}": value for step, value in steps.items()}
    figures["tokens_per_second_core"] = total["tokens"] / max(1e-9, sum(steps.values()))
    # Tokens of one span share their fate, so that their number says too much of the interval.
    independent = config.strategy != "span" or not config.span_together
    intervals = {
        name: wilson(total[f"shown/{name}"], count, Z_999)
        for name in ("mask", "random", "original")
    }
    if independent:
        for name, (low, high) in intervals.items():
            figures |= {f"share/{name}_low": low, f"share/{name}_high": high}
    shown = [
        [
            words,
            total[f"shown/{name}"],
            _percent(total[f"shown/{name}"] / count),
            " to ".join(map(_percent, intervals[name])) if independent else "",
            _percent(wanted),
        ]
        for name, words, wanted in (
            ("mask", "[MASK]", config.mask_share),
            ("random", "a random token", config.random_share),
            ("original", "the token itself", 1 - config.mask_share - config.random_share),
        )
    ]
    masked = [
        ["rows", f"{total['rows']:,}"],
        ["tokens", f"{total['tokens']:,}"],
        ["positions to predict", f"{total['labels_total']:,}"],
        ["share of the tokens", _percent(figures["masked_share"])],
        ["most in a row", f"{config.max_predictions:,}"],
        ["rows with fewer than the rule says", f"{total['rows_under_rule']:,}"],
        ["rows with more than the rule says", f"{total['rows_over_rule']:,}"],
    ]
    histogram = [predicted[i] for i in range(max(predicted, default=0) + 1)]
    return Result(
        figures=figures,
        counts={"in": total["rows"], "out": total["rows"]},
        unit="rows",
        report=[
            Table("What is masked", ["what", "number"], masked),
            Table(
                "What stands at these positions",
                ["what", "number", "share", "99.9 % interval", "rule"],
                shown,
            ),
            _steps_table(figures, steps),
            Histogram(
                "Rows by positions to predict",
                [float(i) for i in range(len(histogram) + 1)],
                histogram,
                "positions",
            ),
        ],
        samples=[sample for figures in parts.values() for sample in figures["samples"]][:20],
    )


def _steps_table(figures: Mapping[str, Any], steps: Mapping[str, float]) -> Table:
    """Seconds of all workers together, and tokens a second of one of them."""
    rows = [
        [step, f"{spent:.2f}", f"{figures['tokens'] / spent / 1e6:.2f}"]
        for step, spent in {**steps, "together": sum(steps.values())}.items()
        if spent
    ]
    title = f"Time a step ({figures['bytes/out'] / 1e6:,.1f} MB stored)"
    return Table(title, ["step", "seconds", "million tokens/s a core"], rows)


def wilson(hits: int, count: int, z: float) -> tuple[float, float]:
    """The score interval of a share (Wilson, 1927); z: quantile of the normal law."""
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return middle - half, middle + half


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
