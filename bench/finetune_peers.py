"""`bench.finetune peers`: dev figures, time and tokens/s of ours and of transformers, in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.finetune_data import load, tokenizer_of
from bench.finetune_runs import Recipe, make_job, run_ours, write_start
from bench.finetune_theirs import Theirs
from model.huggingface_files import read_files
from model.huggingface_tasks import start_from_huggingface
from stages.metrics.intervals import over_seeds, welch

OURS, THEIRS = "clozeline", "transformers"


@dataclass(frozen=True)
class Setting:
    """A task's recipe, chosen once for both sides, and how many rows there are; None: all."""

    recipe: Recipe
    train_rows: int | None = None
    dev_rows: int | None = None


SETTINGS: dict[str, Setting] = {
    "sst2": Setting(Recipe(1e-4, batch=16, precision="bf16"), 2000),
    "qnli": Setting(Recipe(1e-4, epochs=2, batch=16, precision="bf16"), 1500),
    "wikigold": Setting(Recipe(1e-4, epochs=3, batch=16, precision="bf16")),
    "squad_v1": Setting(Recipe(1e-4, epochs=2, batch=8, precision="bf16"), 500),
}


def peers(
    name: str,
    data: Path,
    model: Path,
    work: Path,
    seeds: int,
    keep: Callable[[dict[str, Any]], None],
    setting: Setting | None = None,
) -> dict[str, Any]:
    """Figures of one task.

    Args:
        setting: other than that of `SETTINGS`.
        keep: is given the figures so far after each run.
    """
    setting = setting or SETTINGS[name]
    rows = {"train_rows": setting.train_rows, "dev_rows": setting.dev_rows}
    task = load(name, data, tokenizer_of(model), None, **rows)
    start = start_from_huggingface(*read_files(model), task.layout.kind, task.classes)
    given = write_start(work / f"{name}.safetensors", start.state_dict)
    theirs = Theirs(task, model)
    sides = (OURS, THEIRS)
    found: dict[str, Any] = {
        "setting": asdict(setting),
        "layout": asdict(task.layout),
        "rows": {"train": len(task.train.rows), "dev": len(task.dev.rows)},
        "features": {OURS: len(task.train.examples), THEIRS: len(theirs.train)},
        "same_ids": _same_ids(task, theirs),
        "runs": {side: [] for side in sides},
    }
    for seed in range(1, seeds + 1):
        for side in sides:
            if side == OURS:
                folder = work / f"{name}-{seed}"
                job = make_job(task, start.config, given, setting.recipe, seed, folder)
                ran = run_ours(job)
            else:
                ran = theirs.run(setting.recipe, seed)
            found["runs"][side].append(asdict(ran))
            keep(found)
    values = {
        side: [run["figures"][task.layout.metric] for run in found["runs"][side]] for side in sides
    }
    found["figures"] = values
    found["difference"] = asdict(welch(values[OURS], values[THEIRS]))
    for of in ("train_seconds", "train_cpu_seconds", "seconds"):
        found[of] = {s: median(run[of] for run in found["runs"][s]) for s in sides}
    for name, of in (("second", "train_seconds"), ("cpu_second", "train_cpu_seconds")):
        found[f"tokens_per_{name}"] = {
            s: median(run["tokens"] / run[of] for run in found["runs"][s]) for s in sides
        }
    keep(found)
    return found


def _same_ids(task: Any, theirs: Theirs) -> float:
    """The share of their train features that are ours, too, id by id."""
    ids = task.train.examples.input_ids
    ours = {tuple(ids[i].tolist()) for i in range(len(ids))}
    return sum(tuple(f["input_ids"]) in ours for f in theirs.train) / len(theirs.train)


HEADER = (
    "task", "metric", OURS, THEIRS, "difference (95 %, Welch)", "seconds of the steps",
    "real tokens/s", "times as fast",
)  # fmt: skip


def lines(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table: one a task."""
    rows = []
    for name, part in figures.items():
        spreads = [over_seeds(part["figures"][side]) for side in (OURS, THEIRS)]
        low, high = (100 * part["difference"]["interval"][end] for end in ("low", "high"))
        seconds, speeds = part["train_seconds"], part["tokens_per_second"]
        rows.append(
            (
                name,
                part["layout"]["metric"],
                *(f"{100 * s.mean:.2f} ± {100 * (s.deviation or 0):.2f}" for s in spreads),
                f"{100 * part['difference']['value']:+.2f} ({low:+.2f} to {high:+.2f})",
                f"{seconds[OURS]:.1f} / {seconds[THEIRS]:.1f}",
                f"{speeds[OURS]:,.0f} / {speeds[THEIRS]:,.0f}",
                f"{speeds[OURS] / speeds[THEIRS]:.2f}",
            )
        )
    return rows
