"""`clozeline bench`: hands its options to the package that measures, found by name."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence

from pipeline.stage import UserError


def bench(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Measure, and print what came of it.

    Raises:
        UserError: nothing that can be measured, or numbers that make no sense.
        StageError: a measurement failed.
    """
    subject = _SUBJECTS.get(words[0]) if words else None
    if subject is None:
        names = ", ".join(_SUBJECTS)
        raise UserError(
            f"bench takes {names}: clozeline bench prep [PART...]; see clozeline bench --help"
        )
    subject(options, words[1:])


def _prep(options: argparse.Namespace, parts: Sequence[str]) -> None:
    sizes = options.memory_megabytes or "100,1000"
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
        memory_megabytes=_numbers("--memory-megabytes", sizes, float),
    )
    prep = importlib.import_module("bench.prep")
    prep.run(parts, settings, options.json, options.keep)


def _loader(options: argparse.Namespace, parts: Sequence[str]) -> None:
    loader = importlib.import_module("bench.loader")
    sizes = options.memory_megabytes or "10,1000"
    settings = loader.Settings(
        work=options.work or "",
        files=str(options.files.resolve()) if options.files else "",
        corpus=tuple(options.corpus),
        vocab=options.vocab or "",
        text_field=options.text_field,
        base_megabytes=options.base_megabytes,
        rounds=options.rounds,
        batch_size=options.batch_size,
        micro_batch_tokens=options.micro_batch_tokens,
        memory_megabytes=_numbers("--memory-megabytes", sizes, float),
    )
    loader.run(parts, settings, options.json, options.keep)


def _train(options: argparse.Namespace, parts: Sequence[str]) -> None:
    importlib.import_module("bench.train_command").run(parts, options)


def _numbers(option: str, text: str, kind: type) -> tuple[float, ...]:
    try:
        return tuple(kind(piece) for piece in text.split(","))
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between, not {text!r}") from None


_SUBJECTS: dict[str, Callable[[argparse.Namespace, Sequence[str]], None]] = {
    "prep": _prep,
    "loader": _loader,
    "train": _train,
}
