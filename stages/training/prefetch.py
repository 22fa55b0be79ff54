"""Runs a function of the step number ahead of its use, in one background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def prefetched(make: Callable[[int], T], steps: range, ahead: int) -> Iterator[Iterator[T]]:
    """An iterator over `make(step)` for each step, with at most `ahead` results waiting.

    An error in `make` is raised where its result would have come. The thread ends with the
    `with` block, whether or not the iterator was read to its end. `ahead` 0 means no thread.
    """
    if ahead == 0:
        yield map(make, steps)
        return

    # Each entry is a result or the error that came instead.
    results: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    done = threading.Event()

    def put(entry: tuple[T | None, BaseException | None]) -> None:
        while not done.is_set():
            try:
                return results.put(entry, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in steps:
                if done.is_set():
                    return
                put((make(step), None))
        except BaseException as error:
            put((None, error))

    def read() -> Iterator[T]:
        for _ in steps:
            result, error = results.get()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        yield read()
    finally:
        done.set()
        thread.join()
