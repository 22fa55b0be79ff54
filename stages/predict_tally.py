"""What became of the rows of `clozeline predict`: results, and what could not be used and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline.stage import StageError
from stages.predict_output import Row
from stages.prediction_rows import Unusable
from stages.prediction_tags import Tagged

EXAMPLES = 3


class Tally:
    """Counts rows as they pass.

    Attributes:
        rows: that came in.
        truncated: results whose input lost its end.
        reasons: of rows that gave none.
        examples: reason -> the first of its rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.truncated = 0
        self.reasons: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def skip(self, number: int, found: Unusable) -> None:
        """Count a row without result."""
        self.reasons[found.reason] += 1
        shown = self.examples.setdefault(found.reason, [])
        if len(shown) < EXAMPLES:
            shown.append(f"row {number}: {found.detail}")

    def see(self, row: Row) -> None:
        """Count a result."""
        self.truncated += not isinstance(row, Tagged) and bool(row.get("truncated"))

    def to_json(self) -> dict[str, Any]:
        """As a worker sends it."""
        return {
            "rows": self.rows,
            "truncated": self.truncated,
            "reasons": dict(self.reasons),
            "examples": self.examples,
        }

    def add(self, other: dict[str, Any]) -> None:
        """Add what `to_json` gave."""
        self.rows += other["rows"]
        self.truncated += other["truncated"]
        self.reasons.update(other["reasons"])
        for reason, shown in other["examples"].items():
            own = self.examples.setdefault(reason, [])
            own += shown[: EXAMPLES - len(own)]

    def lines(self) -> Iterator[str]:
        """For a person, on standard error; nothing where all is well."""
        if self.truncated:
            yield f"{self.truncated:,} of {self.rows:,} rows were longer than the model reads"
        if self.reasons:
            yield f"{self.reasons.total():,} of {self.rows:,} rows skipped:"
        for reason, count in sorted(self.reasons.items(), key=lambda item: (-item[1], item[0])):
            yield f"  {reason} ({count:,}): {'; '.join(self.examples[reason])}"

    def require(self, most: float) -> None:
        """Refuse a result that leaves too much out.

        Raises:
            StageError: more than the share `most` of the rows were skipped.
        """
        skipped = self.reasons.total()
        if skipped > most * self.rows:
            raise StageError(
                f"{skipped:,} of {self.rows:,} rows could not be used ({skipped / self.rows:.1%}; "
                f"--max-unusable-share allows {most:.1%})"
            )
