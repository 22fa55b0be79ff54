"""Peak resident memory of every process below this one, by what it is and what it works for."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

EVERY_SECONDS = 0.25


@dataclass
class Seen:
    """One process during one stage: what it is, its peak in bytes."""

    kind: str
    peak: int


class Peaks:
    """Looks at all processes below this one until `close`.

    Args:
        stage: what is running now. A process that goes on to the next stage has a peak in each.
    """

    def __init__(self, stage: Callable[[], str]) -> None:
        self._stage = stage
        self._seen: dict[tuple[int, str], Seen] = {}
        self._workers: set[int] = set()
        self._last = ""
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peaks", daemon=True)
        self._thread.start()

    def close(self) -> dict[str, dict[str, int]]:
        """Stop looking; the largest peak of each kind of process in each stage, in bytes."""
        self.look()
        self._stop.set()
        self._thread.join()
        largest: dict[str, dict[str, int]] = defaultdict(dict)
        for (_, stage), seen in self._seen.items():
            kinds = largest[stage]
            kinds[seen.kind] = max(kinds.get(seen.kind, 0), seen.peak)
        return {stage: dict(kinds) for stage, kinds in largest.items()}

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.look()

    def look(self) -> None:
        """Look now: at the end of a stage, too, or a short one would not be seen."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        stage = self._stage()
        if stage != self._last:
            for pid, _ in list(self._seen):
                forget_peak(pid)
            self._last = stage
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            try:
                kind = "driver" if process.pid == own.pid else kind_of(process.cmdline())
                peak = peak_bytes(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
                continue
            seen = self._seen.setdefault((process.pid, stage), Seen(kind, 0))
            if kind == "worker":
                self._workers.add(process.pid)
            if process.pid in self._workers:
                # Between two jobs a process of Ray waits under another name.
                seen.kind = "worker"
            seen.peak = max(seen.peak, peak)


def kind_of(command: list[str]) -> str:
    """What a process of Ray does, by its command line."""
    line = " ".join(command)
    if "_Call" in line or "_call" in line:
        return "worker"
    if line.startswith("ray::"):
        return "other workers of Ray"
    return "Ray itself" if "ray" in line else "other"


def forget_peak(pid: int) -> None:
    """Have the kernel begin the peak of a process anew, where it can; else the old one stays."""
    with contextlib.suppress(OSError):
        # "5": see proc(5).
        Path(f"/proc/{pid}/clear_refs").write_text("5", "utf-8")


def peak_bytes(process: psutil.Process) -> int:
    """The peak that the kernel keeps, which no look can miss; elsewhere what is resident now."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    except OSError:
        return int(process.memory_info().rss)
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
