"""Freed memory goes back to the system."""

from __future__ import annotations

import sys

import psutil
import pytest

from stages.memory import give_back


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is asked to give memory back")
def test_what_is_freed_goes_back() -> None:
    process = psutil.Process()
    # Small pieces, which the C library keeps when they are freed behind one that stays.
    held = [bytes(40_000) for _ in range(4_000)]
    stays = held[-1]
    full = process.memory_info().rss
    del held
    give_back()
    assert process.memory_info().rss < full - 100_000_000
    assert len(stays) == 40_000
