"""The figures as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.machine import sentence
from pipeline.commands.text import size, table

Figures = Mapping[str, Any]


def lines(part: str, figures: Figures) -> Iterator[str]:
    """The table of one part, or "machine": what all of them belong to."""
    yield from _PARTS[part](figures)


def _chain(figures: Figures) -> Iterator[str]:
    part = figures["chain"]
    yield (
        f"The whole chain on one core: {part['megabytes']:.2f} MB, {part['documents']:,} "
        f"documents, {part['tokens']:,} tokens in rows of 128, medians of {part['rounds']} rounds "
        "in turn"
    )
    ours, cpu = part["times_as_fast_as"], part["mb_per_cpu_second"]
    rows = []
    for name, speed in part["mb_per_second_core"].items():
        times = f"{ours[name]:.1f}" if name in ours else ""
        spread = [part["megabytes"] / seconds for seconds in part["seconds"][name]]
        rounds = f"{min(spread):.2f} to {max(spread):.2f}"
        rows.append((name, f"{speed:.2f}", rounds, f"{cpu[name]:.2f}", times))
    header = ("", "MB/s/core", "rounds", "MB a CPU second", "clozeline is times as fast")
    yield from table(header, rows)
    steps = ", ".join(f"{name} {ms:.1f}" for name, ms in part["ms_per_mb"].items())
    yield f"clozeline's ms a MB: {steps}. It reads files and writes results; the others do not."
    for name, about in part["about"].items():
        yield f"{name}: {about}."
    yield from part["left_out"]


def _kernels(figures: Figures) -> Iterator[str]:
    part = figures["kernels"]
    yield f"Each kernel on one core, {part['megabytes']:.2f} MB"
    rows = [
        (name, f"{row['ms_per_mb']:.2f}", f"{row['mb_per_second_core']:,.1f}")
        for name, row in part["kernels"].items()
    ]
    yield from table(("kernel", "ms a MB", "MB/s/core"), rows)
    yield from (f"left out: {line}" for line in part["left_out"])


def _vocabulary(figures: Figures) -> Iterator[str]:
    part = figures["vocabulary"]
    yield "The vocabulary on one core"
    rows = [
        ("counting words", f"{part['counting_mb_per_second_core']:.1f} MB/s/core"),
        (
            f"{part['distinct_words']:,} distinct words to {part['entries']:,} entries",
            f"{part['training_seconds']:.1f} s",
        ),
    ]
    yield from table(("", ""), rows)


def _stages(figures: Figures) -> Iterator[str]:
    part = figures["stages"]
    yield (
        f"Through the Ray stages: {part['megabytes']:.0f} MB, {part['documents']:,} documents, "
        f"{part['new_words_per_mb']:,.0f} new words a MB"
    )
    lddl = figures.get("chain", {}).get("mb_per_second_core", {}).get("NVIDIA LDDL")
    rows = []
    for run in part["runs"]:
        speed = run["mb_per_second_core"]
        rows.append(
            (
                str(run["cpus"]),
                *(f"{seconds:.1f} s" for seconds in run["seconds"].values()),
                f"{sum(run['fixed_seconds'].values()):.1f} s",
                f"{speed:.2f}",
                f"{run['mb_per_second_core_without_fixed_cost']:.2f}",
                f"{speed / lddl:.1f}" if lddl else "",
            )
        )
    names = tuple(part["runs"][0]["seconds"])
    yield from table(
        ("CPUs", *names, "of it fixed", "MB/s/core", "without fixed", "x LDDL a core"), rows
    )
    for run in part["runs"]:
        fixed = ", ".join(f"{name} {s:.1f}" for name, s in run["fixed_seconds"].items())
        yield (
            f"{run['cpus']} CPUs: fixed seconds {fixed}; before them Ray starts in "
            f"{run['ray_start_seconds']:.1f} s"
        )
    if "scaling" in part:
        fewer, more = part["scaling_of"]
        yield (
            f"{more} CPUs are {part['scaling']:.2f} times as fast as {fewer} "
            f"({part['scaling_without_fixed_cost']:.2f} without fixed cost)"
        )
    if not lddl:
        yield "for the ratio to LDDL measure the chain in the same run, with lddl installed"


def _memory(figures: Figures) -> Iterator[str]:
    part = figures["memory"]
    yield "Peak resident memory of the largest process of a kind"
    columns = [f"{megabytes:.0f} MB" for megabytes in part["megabytes"]]
    names = dict.fromkeys(
        (stage, kind)
        for run in part["runs"]
        for stage, kinds in run["peaks"].items()
        for kind in kinds
    )
    rows = []
    for stage, kind in sorted(names, key=lambda name: (name[1] != "worker", name[1])):
        peaks = [run["peaks"].get(stage, {}).get(kind, 0) for run in part["runs"]]
        rows.append((f"{kind}, {stage}", *(size(peak) if peak else "-" for peak in peaks)))
    rows.append(
        ("largest shard's text", *(size(run["largest_shard_bytes"]) for run in part["runs"]))
    )
    yield from table(("", *columns), rows)
    worst = ", ".join(size(peak) for peak in part["worst_worker_bytes"])
    yield f"worst worker: {worst}; they differ by {100 * part['differ']:.1f} %"


def _machine(figures: Figures) -> Iterator[str]:
    yield sentence(figures["machine"])


_PARTS: Mapping[str, Callable[[Figures], Iterator[str]]] = {
    "chain": _chain,
    "kernels": _kernels,
    "vocabulary": _vocabulary,
    "stages": _stages,
    "memory": _memory,
    "machine": _machine,
}
