"""`bench.finetune pays`: an encoder pretrained by this product against the same shape, drawn.

Both arms have the same vocabulary, rows, steps and seeds. The learning rate of each is the best of
three on a slice of train that it did not learn from; dev is looked at by the runs that count alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow.fs import LocalFileSystem

from bench.finetune_data import CUT_SEED, TaskSet, load, tokenizer_of, with_train
from bench.finetune_runs import Recipe, Run, make_job, run_ours, write_start
from model.config import BertConfig
from model.task_start import TaskStart, start_from_pretraining
from stages.metrics.intervals import over_seeds, welch
from stages.training.checkpoint import WEIGHTS
from stages.training.finetuning import drawn_encoder
from stages.training.randomness import permutation
from stages.training.tensor_files import read_tensors
from stages.training.weights import read_model_config

TASKS = ("sst2", "qnli")
PRETRAINED, DRAWN = "pretrained", "drawn"
RATES = (1e-4, 3e-4, 1e-3)
TRAIN_ROWS = {"sst2": 4000, "qnli": 3000}
RECIPE = Recipe(RATES[0], epochs=3, batch=32, precision="bf16")
HELD_SHARE = 0.1
CHOICE_SEED = 100
"""Of the runs that choose a rate; those that count have 1 and up."""

LOCAL = LocalFileSystem()


def pays(
    name: str,
    data: Path,
    artifact: Path,
    work: Path,
    seeds: int,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Figures of one task.

    Args:
        artifact: data folder of a pretraining: weights, model.json and the tokeniser's files.
        keep: is given the figures so far after each run.
    """
    task = load(name, data, tokenizer_of(artifact), train_rows=TRAIN_ROWS[name])
    config = read_model_config(LOCAL, str(artifact))
    weights = read_tensors(LOCAL, f"{artifact}/{WEIGHTS}")
    pretrained = start_from_pretraining(weights, config, task.layout.kind)
    found: dict[str, Any] = {
        "recipe": asdict(RECIPE),
        "rates": RATES,
        "rows": {"train": len(task.train.examples), "dev": len(task.dev.examples)},
        "choice": {PRETRAINED: {}, DRAWN: {}},
        "rate": {},
        "figures": {PRETRAINED: [], DRAWN: []},
        "seconds": {PRETRAINED: [], DRAWN: []},
        "tokens": {PRETRAINED: [], DRAWN: []},
    }

    def start_of(arm: str, seed: int) -> TaskStart:
        if arm == PRETRAINED:
            return pretrained
        return drawn_encoder(config, task.layout.kind, seed)

    def run(task: TaskSet, arm: str, rate: float, seed: int) -> Run:
        label = f"{name}-{arm}-{rate:g}-{seed}"
        start = write_start(work / f"{label}.safetensors", start_of(arm, seed).state_dict)
        return _run(task, config, start, rate, seed, work / label)

    chosen_by = _halves(task)
    for rate in RATES:
        for arm in (PRETRAINED, DRAWN):
            value = run(chosen_by, arm, rate, CHOICE_SEED).figures["accuracy"]
            found["choice"][arm][f"{rate:g}"] = value
            keep(found)
    for arm, values in found["choice"].items():
        found["rate"][arm] = max(RATES, key=lambda rate: values[f"{rate:g}"])
    for seed in range(1, seeds + 1):
        for arm in (PRETRAINED, DRAWN):
            ran = run(task, arm, found["rate"][arm], seed)
            found["figures"][arm].append(ran.figures["accuracy"])
            found["seconds"][arm].append(ran.train_seconds)
            found["tokens"][arm].append(ran.tokens)
            keep(found)
    difference = welch(found["figures"][PRETRAINED], found["figures"][DRAWN])
    found["difference"] = asdict(difference)
    found["majority"] = _majority(task)
    keep(found)
    return found


def _run(
    task: TaskSet, config: BertConfig, start: Path, rate: float, seed: int, folder: Path
) -> Run:
    return run_ours(
        make_job(task, config, start, replace(RECIPE, learning_rate=rate), seed, folder)
    )


def _halves(task: TaskSet) -> TaskSet:
    """Train without a slice, and that slice as dev."""
    rows = len(task.train.examples)
    order = permutation(rows, CUT_SEED, "held")
    held = round(HELD_SHARE * rows)
    return with_train(task, np.sort(order[held:]).tolist(), np.sort(order[:held]).tolist())


def _majority(task: TaskSet) -> float:
    """Accuracy of dev's most frequent class."""
    return float(np.bincount(task.dev.examples.labels).max() / len(task.dev.examples))


HEADER = ("task", "arm", "rate (choice)", "dev accuracy, mean ± deviation", "seeds")


def lines(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table: arms, then their difference."""
    rows: list[tuple[str, ...]] = []
    for name, part in figures.items():
        for arm in (PRETRAINED, DRAWN):
            spread = over_seeds(part["figures"][arm])
            tried = ", ".join(f"{r} {100 * v:.1f}" for r, v in part["choice"][arm].items())
            rows.append(
                (
                    name,
                    arm,
                    f"{part['rate'][arm]:g} ({tried})",
                    f"{100 * spread.mean:.2f} ± {100 * (spread.deviation or 0):.2f}",
                    " ".join(f"{100 * v:.1f}" for v in part["figures"][arm]),
                )
            )
        low, high = (100 * part["difference"]["interval"][end] for end in ("low", "high"))
        value = 100 * part["difference"]["value"]
        rows.append((name, "difference", "", f"{value:+.2f} ({low:+.2f} to {high:+.2f})", ""))
    return rows
