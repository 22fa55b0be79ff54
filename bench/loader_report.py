"""The figures of `clozeline bench loader` as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.machine import sentence
from pipeline.commands.text import size, table


def lines(part: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """The table of one part, or "machine": what all of them belong to."""
    if part == "machine":
        yield sentence(figures["machine"])
    elif part == "speed":
        yield from _speed(figures["speed"], figures["settings"])
    else:
        yield from _memory(figures["memory"])


def _speed(part: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Million tokens a second of one process on one core: {part['rows']:,} rows, "
        f"{size(part['stored_bytes'])} stored, {part['tokens']:,} tokens read each time, medians "
        f"of {settings['rounds']} rounds in turn; packed: shared out and cut into micro-batches of "
        f"{settings['micro_batch_tokens']:,} tokens"
    )
    rows = []
    for name, speeds in part["reading"].items():
        cells = [
            f"{speeds[how][by] / 1e6:.1f}"
            for how in ("alone", "packed")
            for by in ("tokens_per_second", "tokens_per_cpu_second")
        ]
        rows.append((name, *cells))
    yield from table(("", "alone", "a CPU second", "packed", "a CPU second"), rows)
    yield "Milliseconds from nothing to the first batch"
    seeks = [
        (name, f"{row['first']:.1f}", f"{row['late']:.1f}")
        for name, row in part["first_batch"].items()
    ]
    yield from table(("", "the first of all", "at 95 % of an epoch"), seeks)


def _memory(part: list[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "Peak resident memory of a process that reads and packs (each as many rows as the largest "
        "has), and of one that trains"
    )
    rows = [
        (
            size(run["bytes"]),
            f"{run['rows']:,}",
            f"{run['reader']['tokens']:,}",
            *(
                size(run[who][when])
                for who in ("reader", "worker")
                for when in ("started_bytes", "peak_bytes")
            ),
        )
        for run in part
    ]
    header = ("stored", "rows", "tokens read", "with torch", "reads", "with torch", "trains")
    yield from table(header, rows)
    for who, words in (("reader", "reading"), ("worker", "training")):
        peaks = [run[who]["peak_bytes"] for run in part]
        yield f"{words}: peaks differ by {100 * (max(peaks) / min(peaks) - 1):.1f} %"
