"""Each side in a process of its own, in turn: neither lives with what the other does to memory.

Ours tells malloc to keep freed memory, which would speed transformers up too in the same process;
its users' processes do not do that.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.rounds import Times
from bench.train_settings import TrainSettings
from pipeline.stage import StageError

STOP = None


@dataclass(frozen=True)
class Told:
    """What a side's process says at the end: the loss of its first step, and its peak memory."""

    first_loss: float
    memory_bytes: int


def alternate(
    settings: TrainSettings, part: str, names: tuple[str, ...], first: int, steps: int
) -> tuple[dict[str, Times], dict[str, Told]]:
    """Let each side make `first` steps, then `steps` a round, forwards and backwards in turn.

    Raises:
        StageError: a process ended before its time.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    try:
        for name in names:
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, settings, part, name), daemon=True
            )
            process.start()
            there.close()
            pipes[name] = here
            processes.append(process)
            # Made and warmed up one after another, so that none is in the other's way.
            _ask(here, name, (0, first))
        times = {name: Times() for name in names}
        for number in range(settings.rounds):
            start = first + number * steps
            for name in names if number % 2 == 0 else names[::-1]:
                clock, cpu = _ask(pipes[name], name, (start, start + steps))
                times[name].clock.append(clock)
                times[name].cpu.append(cpu)
        told = {name: Told(*_ask(pipes[name], name, STOP)) for name in names}
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return times, told


def _ask(pipe: Connection, name: str, message: Any) -> Any:
    try:
        pipe.send(message)
        return pipe.recv()
    except (EOFError, OSError):
        raise StageError(f"the process of {name} ended; what it said stands above") from None


def _serve(pipe: Connection, settings: TrainSettings, part: str, name: str) -> None:
    """A side's process: ranges of steps come in, their seconds go out."""
    from bench.train_measure import finished, make
    from stages.training.device import peak_memory_gb

    side, device = make(settings, part, name)
    first_loss: float | None = None
    while (steps := pipe.recv()) is not STOP:
        clock, cpu = time.perf_counter(), time.process_time()
        losses = side.steps(range(*steps))
        finished(device)
        pipe.send((time.perf_counter() - clock, time.process_time() - cpu))
        if first_loss is None:
            first_loss = float(losses[0])
    pipe.send((first_loss, round(1e9 * peak_memory_gb(device))))
