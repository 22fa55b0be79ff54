"""Timing: each side in turn, the order turned round every time, medians at the end."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Times:
    """Seconds of each round of one side: by the clock, and of this process on its CPU."""

    clock: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median by the clock."""
        return median(self.clock)

    @property
    def cpu_seconds(self) -> float:
        """The median on the CPU: less than by the clock where others want it, too."""
        return median(self.cpu)


def timed(call: Callable[[], object], times: Times) -> None:
    """Run once. What earlier calls left behind is collected first, outside of the time."""
    gc.collect()
    clock, cpu = time.perf_counter(), time.process_time()
    call()
    times.cpu.append(time.process_time() - cpu)
    times.clock.append(time.perf_counter() - clock)


def alternate(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Times]:
    """Run all sides `rounds` times, forwards and backwards in turn, so that drift hits all."""
    times = {name: Times() for name in sides}
    gc.collect()
    # No side pays for the collector's looks at what the others have imported.
    gc.freeze()
    try:
        for number in range(rounds):
            names = list(sides) if number % 2 == 0 else list(sides)[::-1]
            for name in names:
                timed(sides[name], times[name])
    finally:
        gc.unfreeze()
    return times
