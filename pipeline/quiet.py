"""Keeps what native code writes to standard error away from the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def native_stderr_aside() -> Iterator[IO[bytes]]:
    """Inside the block file descriptor 2, which Ray's C++ writes to, is a temporary file.

    `sys.stderr` goes on to where it went before; child processes inherit the file. Yields it.
    """
    sys.stderr.flush()
    before = sys.stderr
    outside = os.dup(2)
    with (
        tempfile.TemporaryFile() as aside,
        os.fdopen(outside, "w", buffering=1, encoding=before.encoding, errors="replace") as ours,
    ):
        kept = os.dup(2)
        os.dup2(aside.fileno(), 2)
        sys.stderr = ours
        try:
            yield aside
        finally:
            ours.flush()
            sys.stderr = before
            os.dup2(kept, 2)
            os.close(kept)


def said_aside(aside: IO[bytes], most: int = 8000) -> str:
    """The end of what was written there, at most so many bytes."""
    size = aside.seek(0, os.SEEK_END)
    aside.seek(max(0, size - most))
    return aside.read().decode(errors="replace")
