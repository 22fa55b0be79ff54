"""Measures in this process: sides in turn, medians; and the peak memory of one side alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import torch

from bench import train_processes
from bench.rounds import Times, alternate
from bench.train_examples import fitting, load, random
from bench.train_settings import LADDER, RUNGS, Shape, Switches, TrainSettings
from bench.train_sides import Ours, Side, Theirs, rows_of
from model.config import SIZES, BertConfig
from stages.training.device import apply, peak_memory_gb, place, this_machine
from stages.training.examples import Examples
from stages.training.flops import model_flops, peak_flops

OURS, THEIRS = "clozeline", "transformers"
ENTRIES = 30_522
RANDOM_ROWS = 4096
WARM_UP, WARM_UP_CUDA = 2, 10
"""Steps. On CUDA kernels are loaded and chosen in them, and compiled anew for new lengths."""


def compare(settings: TrainSettings, part: str) -> dict[str, Any]:
    """Ours beside transformers in the shape of `part`, each in a process of its own."""
    shape, device = settings.shape(part), torch.device(settings.device)
    config, examples = _data(settings, shape, settings.dropout)
    names = (OURS, THEIRS) if settings.peers else (OURS,)
    first = _warm_up(device)
    times, told = train_processes.alternate(settings, part, names, first, shape.steps)
    figures = _figures(times, config, examples, shape, device)
    return figures | {
        "shape": asdict(shape),
        "dropout": settings.dropout,
        "first_losses": {name: side.first_loss for name, side in told.items()},
        "memory": {name: side.memory_bytes for name, side in told.items()},
    }


def make(settings: TrainSettings, part: str, name: str) -> tuple[Side, torch.device]:
    """A side of a part, and where it runs."""
    shape, device = settings.shape(part), _device(settings)
    config, examples = _data(settings, shape, settings.dropout)
    if name == THEIRS:
        return _theirs(config, examples, shape, settings, device), device
    switches = Switches(precision=settings.precision)
    return _ours(config, examples, shape, switches, device), device


def finished(device: torch.device) -> None:
    """Wait until what was launched is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ladder(settings: TrainSettings) -> dict[str, Any]:
    """On a GPU: ours with each switch on and off, and transformers, in each shape of `LADDER`.

    Attention dropout is 0 on both sides, which varlen needs; hidden dropout is as asked. Each rung
    runs in turn with the first; one that does not fit or cannot be compiled says why.
    """
    device, found = _device(settings), []
    for usual in LADDER:
        shape = settings.sized(usual)
        config, examples = _data(settings, shape, 0.0)
        rungs = dict(RUNGS) | ({THEIRS: None} if settings.peers else {})
        rows = {}
        for name, switches in rungs.items():
            rows[name] = _rung(config, examples, shape, switches, settings, device)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        found.append({"shape": asdict(shape), "rungs": rows})
    return {"shapes": found}


def _rung(
    config: BertConfig,
    examples: Examples,
    shape: Shape,
    switches: Switches | None,
    settings: TrainSettings,
    device: torch.device,
) -> dict[str, Any]:
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        side: Side = (
            _theirs(config, examples, shape, settings, device)
            if switches is None
            else _ours(config, examples, shape, switches, device)
        )
        side.steps(range(WARM_UP))
        used = round(1e9 * peak_memory_gb(device))
        sides = {"this": side, "all": _ours(config, examples, shape, Switches(), device)}
        # TF32 is a setting of the process, which the side that was made last has changed.
        precision = settings.precision if switches is None else switches.precision
        apply(place(settings.device, precision, this_machine()))
        figures = _rounds(sides, config, examples, shape, settings.rounds, device)
    except (RuntimeError, ValueError) as error:  # Of memory too.
        return {"left_out": (str(error).splitlines() or [repr(error)])[0][:200]}
    return {
        "tokens_per_second": figures["tokens_per_second"]["this"],
        "share_of_all": figures["tokens_per_second"]["this"] / figures["tokens_per_second"]["all"],
        "tflops_per_second": figures["tflops_per_second"]["this"],
        "mfu": figures["mfu"]["this"] if "mfu" in figures else None,
        "memory_bytes": used,
    }


def _rounds(
    sides: Mapping[str, Side],
    config: BertConfig,
    examples: Examples,
    shape: Shape,
    rounds: int,
    device: torch.device,
) -> dict[str, Any]:
    """All sides make the same steps in each round, after the same steps of warm-up."""
    at = dict.fromkeys(sides, _warm_up(device))
    for name, side in sides.items():
        side.steps(range(at[name]))
    finished(device)

    def turn(name: str) -> Callable[[], None]:
        def call() -> None:
            sides[name].steps(range(at[name], at[name] + shape.steps))
            at[name] += shape.steps
            finished(device)

        return call

    times = alternate({name: turn(name) for name in sides}, rounds)
    return _figures(times, config, examples, shape, device)


def _warm_up(device: torch.device) -> int:
    return WARM_UP if device.type == "cpu" else WARM_UP_CUDA


def _figures(
    times: Mapping[str, Times],
    config: BertConfig,
    examples: Examples,
    shape: Shape,
    device: torch.device,
) -> dict[str, Any]:
    """What follows from the seconds of rounds, and from the steps that they made."""
    first, rounds = _warm_up(device), len(next(iter(times.values())).clock)
    starts = range(first, first + rounds * shape.steps, shape.steps)
    tokens = [
        sum(rows_of(examples, step, shape.rows).tokens for step in range(s, s + shape.steps))
        for s in starts
    ]

    def rates(seconds: list[float]) -> float:
        return median(n / s for n, s in zip(tokens, seconds, strict=True))

    padded = len(tokens) * shape.steps * shape.rows * shape.length
    speeds = {name: rates(t.clock) for name, t in times.items()}
    on_cpu = {name: rates(t.cpu) for name, t in times.items()}
    lengths = examples.input_ids.lengths
    pairs, squares = len(examples), int((lengths**2).sum())
    flops = model_flops(config, examples.tokens, squares, examples.masked, pairs) / examples.tokens
    figures: dict[str, Any] = {
        "rounds": rounds,
        "tokens_per_second": speeds,
        "tokens_per_cpu_second": on_cpu,
        "seconds": {name: t.clock for name, t in times.items()},
        "cpu_seconds": {name: t.cpu for name, t in times.items()},
        "tokens": tokens,
        "padding_share": 1.0 - sum(tokens) / padded,
        "tflops_per_second": {name: 1e-12 * flops * speed for name, speed in speeds.items()},
    }
    if OURS in times and THEIRS in times:
        each = zip(times[OURS].clock, times[THEIRS].clock, strict=True)
        figures["times_as_fast"] = speeds[OURS] / speeds[THEIRS]
        figures["times_as_fast_by_round"] = [theirs / ours for ours, theirs in each]
        figures["times_as_fast_on_cpu"] = on_cpu[OURS] / on_cpu[THEIRS]
    most = peak_flops(torch.cuda.get_device_name(device), "bf16") if device.type == "cuda" else None
    if most is not None:
        # In float32 too: the ladder compares with what the device could do.
        figures["mfu"] = {name: flops * speed / most for name, speed in speeds.items()}
    return figures


def _data(
    settings: TrainSettings, shape: Shape, attention_dropout: float
) -> tuple[BertConfig, Examples]:
    entries = settings.entries or ENTRIES
    if settings.examples:
        file = fitting(settings.examples, shape.length)
        examples, entries = load(file, shape.length, settings.entries)
    else:
        examples = random(RANDOM_ROWS, shape.length, entries, seed=1, full=settings.full)
    config = BertConfig(vocab_size=entries, **SIZES[shape.size])  # type: ignore[arg-type]
    config = replace(config, hidden_dropout=settings.dropout, attention_dropout=attention_dropout)
    return config, examples


def _ours(
    config: BertConfig, examples: Examples, shape: Shape, switches: Switches, device: torch.device
) -> Ours:
    return Ours(config, examples, shape.rows, shape.length, device, switches)


def _theirs(
    config: BertConfig,
    examples: Examples,
    shape: Shape,
    settings: TrainSettings,
    device: torch.device,
) -> Theirs:
    return Theirs(config, examples, shape.rows, shape.length, device, settings.precision)


def _device(settings: TrainSettings) -> torch.device:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return torch.device(settings.device)
