"""What `clozeline bench train` does before it measures: examples from text."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.processes import call
from bench.settings import Settings
from bench.train import checked, settings_of
from bench.train import run as measure
from pipeline.stage import UserError


def run(parts: Sequence[str], options: argparse.Namespace) -> None:
    """Make examples of `--corpus`, unless `--examples` gives some, and measure on them.

    Raises:
        UserError: options that make no sense.
        StageError: a measurement failed.
    """
    settings = settings_of(options, options.examples)
    wanted = checked(parts, settings)
    if options.work:
        Path(options.work).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="clozeline-bench-", dir=options.work)).resolve()
    try:
        if not settings.examples:
            # Saved to be measured elsewhere, they are of the length that was asked for.
            saves = options.save_examples is not None
            lengths = [options.length] if saves else settings.lengths(wanted)
            files = tuple(_make(options, folder, lengths))
            settings = dataclasses.replace(settings, examples=files)
        if not options.save_examples:
            measure(parts, settings, folder, options.json)
    finally:
        if options.keep:
            print(f"bench: what was made lies in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _make(options: argparse.Namespace, folder: Path, lengths: Sequence[int]) -> list[str]:
    for path in (*options.corpus, *filter(None, [options.vocab])):
        if not Path(path).exists():
            raise UserError(f"bench train: {path} does not exist")
    of_text = Settings(
        work=str(folder),
        corpus=tuple(options.corpus),
        vocab=options.vocab or "",
        text_field=options.text_field,
        base_megabytes=options.base_megabytes,
    )
    saved = Path(options.save_examples) if options.save_examples else None
    files = {
        length: str((saved or folder / f"rows-{length}.parquet").resolve()) for length in lengths
    }
    print("bench: examples...", file=sys.stderr, flush=True)
    argument = {"settings": asdict(of_text), "files": list(files.items())}
    made = call("bench.train_data:make", argument, folder)
    for length, rows in made["rows"]:
        print(
            f"bench: {rows:,} rows of at most {length} of {made['entries']:,} pieces",
            file=sys.stderr,
        )
    return list(files.values())
