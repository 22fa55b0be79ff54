"""A run of the whole program beside this process, to be killed at a moment of one's choice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.processes import HOME

WENT_ON = re.compile(r"goes on from the checkpoint of step ([\d,]+)")


class Run:
    """A run of the program that goes on beside this one.

    Args:
        work: the current folder of the run; what it says is kept there.
        name: of it, in the file that holds what it says.
        words: overrides and choices.
        wait_seconds: for anything that is waited for.
    """

    def __init__(self, work: Path, name: str, words: Sequence[str], wait_seconds: float) -> None:
        number = len(list(work.glob("*.log")))
        self._said = work / f"{number:02d}-{name}.log"
        self._wait_seconds = wait_seconds
        with self._said.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "run", *words],
                cwd=work,
                env={**os.environ, "PYTHONPATH": str(HOME)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def said(self) -> str:
        """All that it printed so far."""
        return self._said.read_text("utf-8", "replace")

    def went_on_from(self) -> int:
        """The step of the checkpoint that it began with; 0 when it said nothing of one."""
        found = WENT_ON.findall(self.said())
        return int(found[-1].replace(",", "")) if found else 0

    def end(self) -> None:
        """Wait for a good end."""
        with self._not_left_behind():
            code = self._process.wait()
        if code:
            raise SystemExit(f"a run failed ({code}):\n{self.said()[-3000:]}")

    def until(self, when: Callable[[], bool], every: float = 0.02) -> None:
        """Wait for something that happens while it runs."""
        deadline = time.monotonic() + self._wait_seconds
        with self._not_left_behind():
            while not when():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"it was not killed in time:\n{self.said()[-3000:]}")
                time.sleep(every)

    @contextmanager
    def _not_left_behind(self) -> Iterator[None]:
        """When this process is to end meanwhile, so is the run."""
        try:
            yield
        except BaseException:
            self.kill_all()
            raise

    def workers(self) -> list[psutil.Process]:
        """Its training processes."""
        found = []
        for child in self._below():
            with suppress(psutil.Error):
                if "RayTrainWorker" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def kill_driver(self) -> None:
        """SIGKILL to the driver alone; the others notice, and may write until then."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """SIGKILL to the driver and whatever it started, as when a machine is switched off."""
        below = self._below()
        self._process.kill()
        for process in below:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()

    def _below(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        with suppress(psutil.Error):
            found += psutil.Process(self._process.pid).children(recursive=True)
        return found
