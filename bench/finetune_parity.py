"""`bench.finetune parity`: the first losses of ours and of transformers' models, step by step."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench.finetune_data import LAYOUTS, Layout, TaskSet, load, tokenizer_of
from bench.finetune_padded import batch_loss, open_model, padded, their_losses
from bench.finetune_runs import Recipe, make_job, run_ours, write_start
from model.huggingface_files import read_files
from model.huggingface_tasks import start_from_huggingface, write_task_folder
from model.task_heads import BertForTask
from model.task_start import build_task
from stages.training.task_packing import TaskOrder
from stages.training.weights import weights_of

STEPS, ROWS, ASKED, SEED = 50, 1000, 1e-4, 11
RECIPE = Recipe(5e-5, epochs=1, batch=16, dropout=0.0)

# Shorter rows than a task of the product has, so that all of it takes minutes.
SHORTER: dict[str, Layout] = {
    **LAYOUTS,
    "qnli": replace(LAYOUTS["qnli"], max_length=64),
    "wikigold": replace(LAYOUTS["wikigold"], max_length=64, overlap=16),
    "squad_v1": replace(LAYOUTS["squad_v1"], max_length=96, overlap=16, question=32),
}


def parity(
    name: str, data: Path, model: Path, work: Path, steps: int = STEPS, rows: int = ROWS
) -> dict[str, Any]:
    """Figures of one task."""
    task = load(name, data, tokenizer_of(model), SHORTER[name], train_rows=rows, dev_rows=1)
    kind = task.layout.kind
    start = start_from_huggingface(*read_files(model), kind, task.classes)
    config = replace(start.config, hidden_dropout=0.0, attention_dropout=0.0)
    drawn = torch.Generator().manual_seed(SEED)
    whole = build_task(replace(start, config=config), kind, task.columns, drawn)
    (work / name).mkdir()
    return compare(task, whole, work / name, steps) | {
        "layout": asdict(task.layout),
        "train_features": len(task.train.examples),
    }


def compare(
    task: TaskSet, model: BertForTask, work: Path, steps: int, seed: int = SEED
) -> dict[str, Any]:
    """Run both from the weights of `model`, which has no dropout.

    Args:
        work: folder, for files on the way.
    """
    torch.set_num_threads(1)
    write_task_folder(work / "theirs", model, task.classes)
    theirs = open_model(work / "theirs", task.layout.kind)
    weights = write_start(work / "ours.safetensors", weights_of(model))
    job = make_job(task, model.config, weights, RECIPE, seed, work / "steps", steps, looked=False)
    ours = run_ours(job)
    began = time.perf_counter()
    first_padded = _padded_difference(theirs, job) if task.layout.kind == "span" else None
    others = list(their_losses(theirs, job.examples, job.train, seed, steps))
    relative = [abs(a - b) / abs(b) for a, b in zip(ours.losses, others, strict=True)]
    return {
        "steps": steps,
        "ours": list(ours.losses),
        "theirs": others,
        "largest_relative": max(relative),
        "at_step": 1 + relative.index(max(relative)),
        "asked": ASKED,
        "tokens": ours.tokens,
        "seconds": {"ours": ours.train_seconds, "theirs": time.perf_counter() - began},
        "padded_first_relative": first_padded,
    }


@torch.no_grad()
def _padded_difference(model: Any, job: Any) -> float:
    """How far off their loss of the first batch is where padding is in its softmax."""
    order = TaskOrder(len(job.examples), job.train.global_batch_size, job.seed)
    examples = job.examples.take(order.rows(0))
    alone = batch_loss(model, examples)
    return float((2.0 * model(**padded(examples)).loss - alone).abs() / alone)


def lines(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table: one a task."""
    rows: list[tuple[str, ...]] = []
    for name, part in figures.items():
        far = part["padded_first_relative"]
        rows.append(
            (
                name,
                f"{part['steps']} of {RECIPE.batch} rows",
                f"{part['theirs'][0]:.4f} to {part['theirs'][-1]:.4f}",
                f"{part['largest_relative']:.1e} (step {part['at_step']})",
                "within" if part["largest_relative"] <= part["asked"] else "MISSED",
                "" if far is None else f"{far:.1e}",
            )
        )
    return rows


HEADER = ("task", "steps", "loss", "largest relative difference", "1e-4", "padded as it comes")
