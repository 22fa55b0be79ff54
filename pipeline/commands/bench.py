"""`clozeline bench prep`: hands its options to the package that measures, found by name."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from pipeline.stage import UserError


def bench(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Measure, and print what came of it.

    Raises:
        UserError: nothing that can be measured, or numbers that make no sense.
        StageError: a measurement failed.
    """
    if not words or words[0] != "prep":
        raise UserError(
            "bench takes prep: clozeline bench prep [PART...]; see clozeline bench --help"
        )
    settings = importlib.import_module("bench.settings").Settings(
        work=options.work or "",
        corpus=tuple(options.corpus),
        vocab=options.vocab or "",
        text_field=options.text_field,
        base_megabytes=options.base_megabytes,
        rounds=options.rounds,
        peers=not options.no_peers,
        megabytes=options.megabytes,
        cpus=_numbers("--cpus", options.cpus, int),
        distinct_words=options.distinct_words,
        memory_megabytes=_numbers("--memory-megabytes", options.memory_megabytes, float),
    )
    prep = importlib.import_module("bench.prep")
    prep.run(words[1:], settings, options.json, options.keep)


def _numbers(option: str, text: str, kind: type) -> tuple[float, ...]:
    try:
        return tuple(kind(piece) for piece in text.split(","))
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between, not {text!r}") from None
