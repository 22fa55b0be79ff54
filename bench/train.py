"""`clozeline bench train`: a training step of ours beside transformers'. See README.md.

`python -m bench.train` is the same on a bare machine with a GPU: torch, NumPy, pyarrow,
safetensors and, for the comparison, transformers are enough. It takes a file of examples that
another machine made with `clozeline bench train --save-examples FILE`, any shard of a mask
artifact, or random rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import describe, sentence
from bench.processes import call
from bench.train_examples import fitting
from bench.train_report import lines
from bench.train_settings import PARTS, TrainSettings
from pipeline.stage import StageError, UserError


def run(
    parts: Sequence[str], settings: TrainSettings, folder: Path, json_file: Path | None = None
) -> dict[str, Any]:
    """Measure `parts`, print tables, return the figures. Each part has processes of its own.

    Args:
        parts: of `PARTS`; none: mini and base, and the ladder on a GPU.
        settings: what to measure on.
        folder: exists; for files on the way.
        json_file: where the figures go, too.

    Raises:
        UserError: a part or a number that makes no sense.
        StageError: a measurement failed.
    """
    wanted = checked(parts, settings)
    figures: dict[str, Any] = {"machine": describe(), "settings": asdict(settings)}
    for part in wanted:
        print(f"bench: {part}...", file=sys.stderr, flush=True)
        began = time.monotonic()
        argument = {"settings": asdict(settings), "part": part}
        found = call("bench.train:measure", argument, folder)
        figures[part] = found
        print(f"bench: {part} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if json_file is not None:
            # After each part, so that what was measured outlives an interruption.
            json_file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
        print("\n".join(lines(part, found)) + "\n", flush=True)
    print(sentence(figures["machine"]))
    return figures


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """One part, in this process."""
    from bench import train_measure

    settings = TrainSettings(**argument["settings"])
    if argument["part"] == "ladder":
        return train_measure.ladder(settings)
    return train_measure.compare(settings, argument["part"])


def device_here() -> str:
    """Where a measurement runs when nothing is said."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `python -m bench.train`, which `clozeline bench train` has too."""
    add = parser.add_argument
    add(
        "--examples",
        action="append",
        default=[],
        metavar="FILE",
        help="Parquet file of masked rows (random ones); again for rows of another length",
    )
    add("--entries", type=int, metavar="N", help="of the vocabulary, where the file has no size")
    add("--rows", type=int, metavar="N", help="of a step (64 on CPUs)")
    add("--steps", type=int, metavar="N", help="of a round")
    add("--precision", choices=("bf16", "float32"), default="bf16", help="of both sides (bf16)")
    add("--dropout", type=float, default=0.1, help="of both sides (0.1)")
    add("--threads", type=int, metavar="N", help="of torch (all CPUs)")
    add("--device", choices=("cpu", "cuda"), help="(the GPU where there is one)")
    add("--full", action="store_true", help="random rows without any padding")


def settings_of(options: argparse.Namespace, examples: Sequence[str]) -> TrainSettings:
    """The settings that options say."""
    return TrainSettings(
        examples=tuple(examples),
        entries=options.entries,
        rounds=options.rounds,
        rows=options.rows,
        steps=options.steps,
        precision=options.precision,
        dropout=options.dropout,
        threads=options.threads,
        device=options.device or device_here(),
        peers=not options.no_peers,
        full=getattr(options, "full", False),
    )


def checked(parts: Sequence[str], settings: TrainSettings) -> list[str]:
    """The parts to measure.

    Raises:
        UserError: one of them, or a number, makes no sense.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UserError(f"bench train has no part {unknown[0]!r}; its parts: {', '.join(PARTS)}")
    numbers = [settings.rounds, settings.rows, settings.steps, settings.threads, settings.entries]
    if any(number is not None and number < 1 for number in numbers):
        raise UserError("bench train: rounds, rows, steps, threads and entries must be above 0")
    if not 0.0 <= settings.dropout < 1.0:
        raise UserError(f"bench train: --dropout must lie in [0, 1), not {settings.dropout:g}")
    for file in settings.examples:
        if not Path(file).exists():
            raise UserError(f"bench train: {file} does not exist")
    if "ladder" in parts and settings.device == "cpu":
        raise UserError("bench train: the ladder needs a GPU, and torch sees none here")
    usual = PARTS if settings.device == "cuda" else PARTS[:2]
    wanted = [part for part in PARTS if part in (parts or usual)]
    if settings.examples:
        for length in settings.lengths(wanted):
            try:
                fitting(settings.examples, length)
            except (OSError, ValueError) as error:
                raise UserError(f"bench train: {error}") from None
    return wanted


def main(words: Sequence[str] | None = None) -> int:
    """The command of a bare machine."""
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each side (5)")
    parser.add_argument("--no-peers", action="store_true", help="measure only what is ours")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    add_options(parser)
    options = parser.parse_args(words)
    try:
        with tempfile.TemporaryDirectory(prefix="clozeline-bench-") as folder:
            settings = settings_of(options, options.examples)
            run(options.parts, settings, Path(folder), options.json)
    except (UserError, StageError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
