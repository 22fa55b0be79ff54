"""What others run for the same job: text in memory to masked pairs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Missing(Exception):  # noqa: N818 - named for what it says
    """A peer that is not installed here; the text says how to install it."""


class Peer(Protocol):
    """Made once, outside of all times; called once a round.

    Attributes:
        name: as in the table.
        about: one line: what of it runs, and what does not.
    """

    name: str
    about: str

    def __call__(self, texts: Sequence[str]) -> int:
        """Prepare documents; returns the number of rows."""
        ...


def find(vocab_file: Path, texts: Sequence[str]) -> tuple[list[Peer], list[str]]:
    """The peers that are installed, and a line on each one that is not."""
    from bench.peers.google import Google
    from bench.peers.lddl import Lddl

    found: list[Peer] = []
    absent: list[str] = []
    for make in (Lddl, Google):
        try:
            found.append(make(vocab_file, texts))
        except Missing as error:
            absent.append(f"{make.name} is left out: {error}")
    return found, absent
