"""What became of the records of a split: counts, reasons, examples, seconds."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from stages.corpus_config import CorpusConfig
from stages.text.cleaning import CleaningOptions
from stages.text.language import LanguageOptions
from stages.text.preparing import PreparingOptions
from stages.text.quality import QualityOptions
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
        self.languages: Counter[str] = Counter()
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
        for name in ("counts", "rejects", "cleaning", "encodings", "languages"):
            getattr(self, name).update(record[name])
        for step, seconds in record["seconds"].items():
            self.seconds[step] += seconds
        self.quarantine(record["examples"])
        # Not what lies in the folder: a killed attempt with another batch size cut other pieces.
        self.pieces += record["pieces"]


WHOLE_LINES = frozenset({"sentences", "mediawiki", "wikiextractor", "wikitext"})
"""Formats whose lines are sentences or paragraphs: never wrapped, whatever a mixed corpus says."""


def preparing_options(config: CorpusConfig, format: str) -> PreparingOptions:
    """What the config says of cleaning a source of this format."""
    quality = config.quality.model_dump()
    return PreparingOptions(
        boilerplate=config.boilerplate,
        cleaning=CleaningOptions(
            unwrap=config.unwrap and format not in WHOLE_LINES,
            nfc=config.nfc,
            invisible=config.invisible,
            line_breaks=config.line_breaks,
            white_space=config.white_space,
        ),
        min_characters=config.min_characters,
        max_characters=config.max_characters,
        quality=QualityOptions(**quality),
        languages=LanguageOptions(config.languages, config.min_language_probability),
    )


def quarantined(
    documents: pa.RecordBatch, found: Sequence[tuple[int, str, str]]
) -> list[dict[str, str]]:
    """Examples for a person, from (row, reason, detail)."""
    made = []
    for row, reason, detail in found:
        source, name = documents["source"][row].as_py(), documents["id"][row].as_py()
        start = snippet(documents["text"][row].as_py().encode())
        made.append(dataclasses.asdict(Example(reason, source, name, detail, start)))
    return made


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
