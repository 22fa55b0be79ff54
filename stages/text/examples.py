"""Examples of documents that a rule refused, for a person to read."""

from __future__ import annotations

from typing import NamedTuple

EXAMPLES_A_REASON = 5
"""Kept of each reason, so that a common one hides no rare one."""


class Example(NamedTuple):
    """A refused text: its row, the reason it is counted under, and the figure measured."""

    row: int
    reason: str
    detail: str
