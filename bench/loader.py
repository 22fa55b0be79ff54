"""`clozeline bench loader`: what reads and packs training rows, by itself. See README.md."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.loader_report import lines
from bench.machine import describe
from bench.processes import call, own_folder
from pipeline.stage import UserError

PARTS = ("speed", "memory")
DEFAULT_PARTS = ("speed",)
"""Memory writes a gigabyte."""


@dataclass(frozen=True)
class Settings:
    """A whole measurement. MB are 10^6 bytes.

    Attributes:
        work: an absolute folder for everything that is made on the way.
        files: a mask artifact, or a folder of its Parquet files; "": made from text.
        corpus: files or folders of text; none: Python's documentation on this machine.
        vocab: a vocab.txt; "": one is trained on the text.
        text_field: key or column of the text, in formats that name it.
        base_megabytes: text that rows are made of; they are repeated with other ids.
        rounds: each side runs so often, in turn.
        batch_size: rows of a global batch.
        micro_batch_tokens: token budget of a micro-batch.
        memory_megabytes: stored examples whose peak memory is compared.
    """

    work: str
    files: str = ""
    corpus: tuple[str, ...] = ()
    vocab: str = ""
    text_field: str = "text"
    base_megabytes: float = 14.0
    rounds: int = 3
    batch_size: int = 256
    micro_batch_tokens: int = 8192
    memory_megabytes: tuple[float, ...] = (10.0, 1000.0)

    @property
    def folder(self) -> Path:
        """`work` as a path."""
        return Path(self.work)


def run(
    parts: Sequence[str], settings: Settings, json_file: Path | None = None, keep: bool = False
) -> dict[str, Any]:
    """Measure `parts` (speed, when none is named), print tables, return the figures.

    Args:
        parts: of `PARTS`.
        settings: `work` "" is a temporary folder.
        json_file: where the figures go, too.
        keep: leave the work folder as it is.

    Raises:
        UserError: a part, a path or a number that makes no sense.
        StageError: a measurement failed.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UserError(f"bench loader has no part {unknown[0]!r}; its parts: {', '.join(PARTS)}")
    for path in (*settings.corpus, *filter(None, [settings.vocab, settings.files])):
        if not Path(path).exists():
            raise UserError(f"bench loader: {path} does not exist")
    numbers = (settings.base_megabytes, settings.rounds, settings.batch_size)
    if min(*numbers, settings.micro_batch_tokens, *settings.memory_megabytes) <= 0:
        raise UserError("bench loader: sizes and rounds must be above 0")
    figures: dict[str, Any] = {"machine": describe()}
    with own_folder(settings.work, keep) as folder:
        argument = {**asdict(settings), "work": str(folder)}
        figures["settings"] = {k: v for k, v in argument.items() if k != "work"}
        figures["rows"] = _part("prepare", argument, folder)
        for part in (part for part in PARTS if part in (parts or DEFAULT_PARTS)):
            if part == "speed":
                figures[part] = _part("speed", argument, folder)
            else:
                figures[part] = [
                    _part("memory", {**argument, "megabytes": megabytes}, folder)
                    for megabytes in settings.memory_megabytes
                ]
            if json_file is not None:
                json_file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
            print("\n".join(lines(part, figures)) + "\n", flush=True)
    print("\n".join(lines("machine", figures)))
    return figures


def _part(name: str, argument: dict[str, Any], folder: Path) -> dict[str, Any]:
    print(f"bench: {name}...", file=sys.stderr, flush=True)
    began = time.monotonic()
    result = call(f"bench.loader_parts:{name}", argument, folder, single=True)
    print(f"bench: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return result
