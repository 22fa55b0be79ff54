"""Asking a run to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.stage import Interrupted


class StopSignal:
    """Asked to stop once: nodes end in good order. Twice: without waiting for them."""

    def __init__(self) -> None:
        # A plain number, not an Event: handlers run in the middle of anything, and must not lock.
        self._asked = 0

    def set(self) -> None:
        """Ask to stop; again: at once."""
        self._asked += 1

    def is_set(self) -> bool:
        """Whether it was asked for."""
        return self._asked > 0

    def is_urgent(self) -> bool:
        """Whether it was asked for twice."""
        return self._asked > 1

    def check(self) -> None:
        """Raise `Interrupted` once it was asked for."""
        if self.is_set():
            raise Interrupted("interrupted")

    @contextmanager
    def on_signals(self) -> Iterator[StopSignal]:
        """Set by SIGINT and SIGTERM inside the block; only in the main thread."""

        def ask(_: int, __: FrameType | None) -> None:
            self.set()

        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)
