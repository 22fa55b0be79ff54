"""What a measurement is asked for, as it travels to the processes that measure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PARTS = ("chain", "kernels", "vocabulary", "stages", "memory")
DEFAULT_PARTS = ("chain", "kernels", "vocabulary", "stages")
"""All but memory, which prepares the most text."""

ONE_CORE = frozenset({"chain", "kernels", "vocabulary"})
"""Parts that run in a process of one thread on one core."""


@dataclass(frozen=True)
class Settings:
    """A whole measurement. MB are 10^6 bytes of raw UTF-8 text throughout.

    Attributes:
        work: an absolute folder for everything that is made on the way.
        corpus: files or folders of text; none: Python's documentation on this machine.
        vocab: a vocab.txt; "": one is trained on the text, outside of all times.
        text_field: key or column of the text, in formats that name it.
        base_megabytes: text of the chain and the kernels, and what the large corpora vary.
        rounds: each side of a comparison runs so often, in turn.
        peers: whether the others run too.
        megabytes: text that goes through the Ray stages.
        cpus: CPUs of the runs through the Ray stages, in order.
        distinct_words: what the vocabulary is trained from.
        memory_megabytes: corpora whose peak memory is compared.
    """

    work: str
    corpus: tuple[str, ...] = ()
    vocab: str = ""
    text_field: str = "text"
    base_megabytes: float = 14.0
    rounds: int = 3
    peers: bool = True
    megabytes: float = 500.0
    cpus: tuple[int, ...] = (1, 2)
    distinct_words: int = 500_000
    memory_megabytes: tuple[float, ...] = (100.0, 1000.0)

    @property
    def folder(self) -> Path:
        """`work` as a path."""
        return Path(self.work)

    @property
    def documents(self) -> Path:
        """The base text: JSON lines with "id" and "text"."""
        return self.folder / "documents.jsonl"

    @property
    def vocab_file(self) -> Path:
        """The vocabulary of every part and peer."""
        return Path(self.vocab) if self.vocab else self.folder / "vocab.txt"

    def to_json(self) -> str:
        """What `from_json` takes."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that `to_json` was called on."""
        row: dict[str, Any] = json.loads(text)
        for name in ("corpus", "cpus", "memory_megabytes"):
            row[name] = tuple(row[name])
        return cls(**row)
