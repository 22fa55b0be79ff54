"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa


def give_back() -> None:
    """Return what Arrow's pool and the C library hold for later use.

    They would keep it, and what one step and the next need at their peaks would add up.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        # Of glibc; other C libraries have no such call and keep little.
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
