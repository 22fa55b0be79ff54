"""SIGTERM to a training worker: first a checkpoint, then the end.

Sent by a machine that is taken away, by a scheduler at the end of its time, or by `kill`. Ray's
own handler ends the process at once, and the steps since the last checkpoint are made again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

GRACE_SECONDS = 30.0
"""What a worker has to end in; then it ends as at a second SIGTERM."""

LOOK_SECONDS = 0.25


class Leaving:
    """Handles SIGTERM: notes the first one that comes while training, passes on all others.

    Args:
        otherwise: the handler before.
    """

    def __init__(self, otherwise: Callable[[int, FrameType | None], Any]) -> None:
        self._otherwise = otherwise
        self._trains = False
        # A plain value, not an Event: a handler must not lock.
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, in the middle of anything."""
        if self._asked or not self._trains:
            self._otherwise(number, frame)
        self._asked = True

    @contextmanager
    def training(self, tell: Callable[[], None]) -> Iterator[None]:
        """Train inside the block.

        Args:
            tell: called once, in another thread, when this process has to end.
        """
        ended = threading.Event()

        def watch() -> None:
            while not self._asked:
                if ended.wait(LOOK_SECONDS):
                    return
            tell()
            if not ended.wait(GRACE_SECONDS):
                os.kill(os.getpid(), signal.SIGTERM)

        self._trains = True
        threading.Thread(target=watch, name="leaving", daemon=True).start()
        try:
            yield
        finally:
            self._trains = False
            ended.set()


def install() -> None:
    """Handle SIGTERM in this process from now on; only in the main thread."""
    before = signal.getsignal(signal.SIGTERM)
    if callable(before) and not isinstance(before, Leaving):
        signal.signal(signal.SIGTERM, Leaving(before))


@contextmanager
def training(tell: Callable[[], None]) -> Iterator[None]:
    """As `Leaving.training`, with the handler of this process, from any thread.

    Nothing is handled where none is installed.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not isinstance(handler, Leaving):
        yield
        return
    with handler.training(tell):
        yield
