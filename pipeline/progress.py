"""Progress of nodes: live lines on a terminal, a plain line now and then anywhere else.

Everything goes to standard error; results and `--json` own standard output.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

PLAIN_SECONDS = 15.0
PLAIN_SHARE = 0.05
PLAIN_LONGEST_SECONDS = 300.0
TICK_SECONDS = 1.0


@dataclass
class Count:
    """How far a node is. Times in seconds of a monotonic clock."""

    total: float | None = None
    unit: str = ""
    done: float = 0.0
    before: float = 0.0
    started: float = 0.0
    counted: float | None = None
    figures: dict[str, float | int | str] = field(default_factory=dict)

    def rate(self, now: float) -> float | None:
        """Units a second up to the last one; None before anything was done."""
        # Not up to now: between two counts the figure would fall, and jump at the next.
        elapsed = (now if self.counted is None else self.counted) - self.started
        made = self.done - self.before
        return made / elapsed if elapsed > 0 and made > 0 else None

    def text(self, now: float) -> str:
        """One line: "300/800 steps, 15 steps/s, 0:33 left, loss 5.31, 27,000 tokens/s"."""
        if self.total is None and not self.unit:
            return "starting"
        amount = short(self.done)
        if self.total is not None:
            amount += f"/{short(self.total)}"
        parts = [f"{amount} {self.unit}".strip()]
        rate = self.rate(now)
        if rate is not None:
            # A slow count reads better the other way round.
            slow = rate < 0.1
            each = f"{short(rate)} {self.unit.split(' ')[0]}".strip() + "/s"
            parts.append(f"{short(1 / rate)} s each" if slow else each)
            if self.total is not None and self.done < self.total:
                since = 0.0 if self.counted is None else now - self.counted
                left = max(0.0, (self.total - self.done) / rate - since)
                parts.append(f"{clock(left)} left")
        parts += [_named(name, value) for name, value in self.figures.items()]
        return ", ".join(parts)


def _named(name: str, value: float | int | str) -> str:
    """ "27,000 tokens/s" for a count, "loss 5.31" for the rest."""
    if isinstance(value, int):
        return f"{short(value)} {name}"
    return f"{name} {value if isinstance(value, str) else short(value)}"


def short(value: float) -> str:
    """A number in few characters: 12345 -> "12,345", 0.123456 -> "0.123", 8.0 -> "8"."""
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= limit and math.isfinite(size):
            return f"{value / limit:.3g}{letter}"
    if size >= 1000 or (size < 1e6 and value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """A duration: "0:07", "12:05", "3:00:10"."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, second = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


class Line:
    """`pipeline.stage.Progress` of one node."""

    def __init__(self, board: Board, name: str) -> None:
        self.name = name
        self.count = Count(started=time.monotonic())
        self.opened = time.monotonic()
        self.printed: float | None = None
        self.task: TaskID | None = None
        self.lock = threading.Lock()
        self._board = board

    def start(self, total: float | None, unit: str, done: float = 0) -> None:
        """Begin (or begin again) counting up to `total` `unit`s; `done` were there before."""
        with self.lock:
            self.count = Count(total, unit, float(done), float(done), time.monotonic())
        self._board.changed(self, first=True)

    def advance(self, amount: float = 1, **figures: float | int | str) -> None:
        """Count `amount` more; `figures` are shown behind the bar."""
        with self.lock:
            self.count.done += amount
            self.count.counted = time.monotonic()
            # In the order of the newest: after a start some are missing at first.
            left = {k: v for k, v in self.count.figures.items() if k not in figures}
            self.count.figures = {**figures, **left}
        self._board.changed(self)

    def note(self, text: str) -> None:
        """Print one permanent line under the node's name."""
        self._board.print(f"{self.name}: {text}")

    def text(self, now: float) -> str:
        """How far the node is."""
        with self.lock:
            return self.count.text(now)


class Board:
    """All nodes' lines. Safe from any thread.

    Args:
        stream: where to print; standard error by default.
        live: draw live lines; None: if the stream is a terminal.
        plain_seconds: time between two plain lines of a node at the beginning. It grows with the
            node's age, so that a log of days stays short.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        live: bool | None = None,
        plain_seconds: float = PLAIN_SECONDS,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal if live is None else live
        self._plain_seconds = plain_seconds
        self._lines: dict[str, Line] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._rich: RichProgress | None = None
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def line(self, name: str) -> Line:
        """The line of a node; the same object for the same name."""
        with self._lock:
            if name not in self._lines:
                self._lines[name] = Line(self, name)
            return self._lines[name]

    def print(self, text: str) -> None:
        """Print one permanent line."""
        with self._lock:
            self._console.print(text, markup=False)

    def finish(self, name: str) -> None:
        """A node is over: take its live line away, or print its last plain line."""
        with self._lock:
            line = self._lines.pop(name, None)
            if line is None:
                return
            if line.task is not None and self._rich is not None:
                self._rich.remove_task(line.task)
            elif line.printed is not None:
                self._print_plain(line, time.monotonic())
            if not self._lines and self._rich is not None:
                # An idle display would redraw over what others print.
                self._rich.stop()
                self._rich = None

    def close(self) -> None:
        """Finish every line and stop drawing."""
        self._closed.set()
        for name in list(self._lines):
            self.finish(name)

    def changed(self, line: Line, first: bool = False) -> None:
        """A line counted on. Called by `Line`."""
        if self._closed.is_set():
            return
        if first:
            with self._lock:
                self._begin(line)
        elif not self._live and line.printed is not None:
            self._print_if_due(line, time.monotonic())

    def _begin(self, line: Line) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        if not self._live:
            line.printed = time.monotonic()
            if line.count.unit:
                self._print_plain(line, line.printed)
            return
        if self._rich is None:
            self._rich = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn(
                    "{task.fields[text]}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                ),
                console=self._console,
                transient=True,
                expand=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._rich.start()
        if line.task is None:
            line.task = self._rich.add_task(line.name, total=None, text="")
        self._draw(line, time.monotonic())

    def _tick(self) -> None:
        period = (
            min(0.2, self._plain_seconds) if self._live else min(TICK_SECONDS, self._plain_seconds)
        )
        while not self._closed.wait(period):
            now = time.monotonic()
            with self._lock:
                for line in self._lines.values():
                    if self._live:
                        self._draw(line, now)
                    elif line.printed is not None:
                        self._print_if_due(line, now)

    def _draw(self, line: Line, now: float) -> None:
        if line.task is not None and self._rich is not None:
            count = line.count
            self._rich.update(
                line.task, total=count.total, completed=count.done, text=line.text(now)
            )

    def _print_if_due(self, line: Line, now: float) -> None:
        pause = max(
            self._plain_seconds, min(PLAIN_SHARE * (now - line.opened), PLAIN_LONGEST_SECONDS)
        )
        if line.printed is not None and now - line.printed >= pause:
            with self._lock:
                if now - line.printed >= pause:
                    self._print_plain(line, now)

    def _print_plain(self, line: Line, now: float) -> None:
        line.printed = now
        self.print(f"{line.name}: {line.text(now)}")
