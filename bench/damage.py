"""Files of every format, damaged in every way that happens: the sources of a mixed corpus."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.formats import COMPRESS, stored
from stages.text.readers import FORMATS

BETWEEN = (b"\0", b"\xff\xfe", b'"', b"<page>", b"\n\n", b"</doc>", b"{")
"""What may stand where it should not."""

LONG = "A line of five megabytes. " * 200_000


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Cut, with a bit turned over, or with something between."""
    at = generator.randrange(len(data))
    other = bytes([data[at] ^ 1 << generator.randrange(8)])
    return generator.choice(
        [
            data[:at],
            data[:at] + other + data[at + 1 :],
            data[:at] + generator.choice(BETWEEN) + data[at:],
        ]
    )


def write_damaged(
    top: Path, texts: Sequence[str], generator: random.Random, variants: int
) -> list[dict[str, Any]]:
    """Write a folder for each format.

    Args:
        top: folder of all of them.
        texts: documents of each file.
        variants: files of each format and compression.

    Returns:
        Sources as `corpus.sources` has them.
    """
    for format in FORMATS:
        folder = top / format
        folder.mkdir(parents=True)
        whole = stored(format, texts)
        for ending, compress in COMPRESS.items():
            packed = compress(whole)
            for i in range(variants):
                (folder / f"{i}{ending}").write_bytes(damaged(packed, generator))
            (folder / f"empty{ending}").write_bytes(b"")
        other = whole.decode("utf-8", "replace").encode("cp1252", "replace")
        (folder / "cp1252").write_bytes(other)
        (folder / "long").write_bytes(stored(format, [*texts[:1], LONG, *texts[1:]]))
        # Nobody writes to it: opening it would wait without an end.
        os.mkfifo(folder / "fifo")
        for name, goal in (("loop", "loop"), ("again", "."), ("gone", "nothing")):
            (folder / name).symlink_to(goal)
    return [{"name": f, "paths": [str(top / f)], "format": f} for f in FORMATS]
