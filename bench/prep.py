"""`clozeline bench prep`: data preparation beside what others run. See README.md."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.machine import describe
from bench.processes import call, own_folder
from bench.report import lines
from bench.settings import DEFAULT_PARTS, ONE_CORE, PARTS, Settings
from pipeline.stage import UserError


def run(
    parts: Sequence[str],
    settings: Settings,
    json_file: Path | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """Measure `parts` (all but memory, when none is named), print tables, return the figures.

    Args:
        parts: of `PARTS`, in any order.
        settings: `work` "" is a temporary folder.
        json_file: where the figures go, too.
        keep: leave the work folder as it is.

    Raises:
        UserError: a part, a path or a number that makes no sense.
        StageError: a measurement failed.
    """
    wanted = _checked(parts, settings)
    figures: dict[str, Any] = {"machine": describe()}
    with own_folder(settings.work, keep) as folder:
        settings = replace(settings, work=str(folder))
        argument = asdict(settings)
        figures["settings"] = {k: v for k, v in argument.items() if k != "work"}
        figures["base"] = _part("prepare", argument, settings)
        for part in wanted:
            figures[part] = _part(part, argument, settings)
            if json_file is not None:
                # After each part, so that what was measured outlives an interruption.
                json_file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
            print("\n".join(lines(part, figures)) + "\n", flush=True)
    print("\n".join(lines("machine", figures)))
    return figures


def _part(name: str, argument: dict[str, Any], settings: Settings) -> dict[str, Any]:
    print(f"bench: {name}...", file=sys.stderr, flush=True)
    began = time.monotonic()
    result = call(f"bench.parts:{name}", argument, settings.folder, single=name in ONE_CORE)
    print(f"bench: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return result


def _checked(parts: Sequence[str], settings: Settings) -> list[str]:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UserError(f"bench prep has no part {unknown[0]!r}; its parts: {', '.join(PARTS)}")
    for path in (*settings.corpus, *filter(None, [settings.vocab])):
        if not Path(path).exists():
            raise UserError(f"bench prep: {path} does not exist")
    numbers = (
        settings.base_megabytes,
        settings.megabytes,
        settings.rounds,
        settings.distinct_words,
        *settings.cpus,
        *settings.memory_megabytes,
    )
    if min(numbers) <= 0 or not settings.cpus or not settings.memory_megabytes:
        raise UserError("bench prep: sizes, rounds and CPUs must be above 0")
    return [part for part in PARTS if part in (parts or DEFAULT_PARTS)]
