"""What became of the records of a split: counts, reasons, examples, seconds."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from stages.text.readers import Example
from stages.text.records import snippet

EXAMPLES_A_REASON = 5
"""Quarantined records kept for the report, so that a common reason hides no rare one."""


class Tally:
    """What became of the records of a split; adds up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.cleaning: Counter[str] = Counter()
        self.encodings: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.examples: list[dict[str, str]] = []
        self.pieces: list[str] = []

    def reject(self, reasons: Mapping[str, int]) -> None:
        """Count records that were left out, by reason."""
        self.rejects.update({reason: n for reason, n in reasons.items() if n})

    def quarantine(self, examples: list[dict[str, str]]) -> None:
        """Keep a few examples of each reason."""
        kept = Counter(example["reason"] for example in self.examples)
        for example in examples:
            if kept[example["reason"]] < EXAMPLES_A_REASON:
                kept[example["reason"]] += 1
                self.examples.append(example)

    def to_json(self) -> dict[str, Any]:
        """A plain dict that `add` takes."""
        return dict(vars(self))

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what another split told."""
        for name in ("counts", "rejects", "cleaning", "encodings"):
            getattr(self, name).update(record[name])
        for step, seconds in record["seconds"].items():
            self.seconds[step] += seconds
        self.quarantine(record["examples"])
        # Not what lies in the folder: a killed attempt with another batch size cut other pieces.
        self.pieces += record["pieces"]


def kept(
    documents: pa.RecordBatch, keep: pa.Array, reasons: Mapping[str, int], tally: Tally
) -> pa.RecordBatch:
    """The documents to keep; the others are counted under `reasons`."""
    tally.reject(reasons)
    return documents.filter(keep) if any(reasons.values()) else documents


def examples(documents: pa.RecordBatch, reason: str, detail: str) -> list[dict[str, str]]:
    """The first documents that a step of cleaning dropped, as they are quarantined."""
    first = documents.slice(0, EXAMPLES_A_REASON).to_pylist()
    return [
        dataclasses.asdict(
            Example(reason, d["source"], d["id"], detail, snippet(d["text"].encode()))
        )
        for d in first
    ]


class Clock:
    """Adds the time between laps to what each step took."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """The time since the last lap went to `step`."""
        now = time.perf_counter()
        self._seconds[step] += now - self._last
        self._last = now
