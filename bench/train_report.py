"""The figures of training as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.commands.text import size, table


def lines(part: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """The table of one part."""
    yield from _ladder(figures) if part == "ladder" else _comparison(figures)


def _comparison(figures: Mapping[str, Any]) -> Iterator[str]:
    shape = figures["shape"]
    yield (
        f"{shape['size']} at {shape['length']}, steps of {shape['rows']} rows, dropout "
        f"{figures['dropout']:g}, medians of {figures['rounds']} rounds in turn"
    )
    rows = []
    for name, speed in figures["tokens_per_second"].items():
        padding = 0.0 if name == "clozeline" else figures["padding_share"]
        rounds = [n / s for n, s in zip(figures["tokens"], figures["seconds"][name], strict=True)]
        memory = figures.get("memory", {}).get(name)
        rows.append(
            (
                name,
                f"{speed:,.0f}",
                f"{min(rounds):,.0f} to {max(rounds):,.0f}",
                f"{figures['tokens_per_cpu_second'][name]:,.0f}",
                f"{figures['tflops_per_second'][name]:.3g}",
                f"{100 * figures['mfu'][name]:.1f} %" if "mfu" in figures else "",
                f"{100 * padding:.1f} %",
                size(memory) if memory else "",
                f"{figures['first_losses'][name]:.3f}",
            )
        )
    header = ("", "real tokens/s", "rounds", "a CPU second", "model TFLOP/s", "MFU", "padding")
    yield from table((*header, "peak memory", "first loss"), rows)
    if "times_as_fast" in figures:
        each = figures["times_as_fast_by_round"]
        yield (
            f"clozeline is {figures['times_as_fast']:.2f} times as fast by the clock (rounds "
            f"{min(each):.2f} to {max(each):.2f}), {figures['times_as_fast_on_cpu']:.2f} times by "
            "CPU time"
        )


def _ladder(figures: Mapping[str, Any]) -> Iterator[str]:
    for found in figures["shapes"]:
        shape = found["shape"]
        yield f"{shape['size']} at {shape['length']}, steps of {shape['rows']} rows"
        rows = []
        for name, rung in found["rungs"].items():
            if "left_out" in rung:
                rows.append((name, "", "", "", "", "", f"left out: {rung['left_out']}"))
                continue
            share = "" if name == "all" else f"{rung['share_of_all']:.2f}"
            mfu = f"{100 * rung['mfu']:.1f} %" if rung["mfu"] else ""
            tflops = f"{rung['tflops_per_second']:.3g}"
            speed = f"{rung['tokens_per_second']:,.0f}"
            rows.append((name, speed, share, tflops, mfu, size(rung["memory_bytes"]), ""))
        header = ("", "real tokens/s", "of all", "model TFLOP/s", "MFU", "peak memory", "note")
        yield from table(header, rows)
