"""Resuming through the whole program, each against an undisturbed run: `python -m bench.resume`.

    driver    killed (SIGKILL) in epoch 1, with all of its processes while a checkpoint is being
              written, and in epoch 2; then ended with another `speed`
    phases    two phases, killed in the second
    worker    one of two training processes killed (SIGKILL); Ray starts both again
    counts    1, 2 and 4 workers of half a CPU: the curve over 100 steps, without dropout

The first three have to end with the same weights and moments to the bit (dropout 0.1), and their
losses have to be the same at each step; the last within 1e-5 relative at each step. Thirteen runs
of a small model in all. What the loop does by itself is in tests/stages/training.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from bench.processes import own_folder
from bench.running import Run

TWO_PHASES = "phases=[{max_seq_length: 64},{max_seq_length: 96, steps: 60, learning_rate: 5e-4}]"
SMALL = (
    "corpus.distributions=[]", "corpus.sample=0.4", "corpus.shards=2",
    "corpus.validation_share=0.2", "vocab.size=2000", "model.hidden_size=32", "train.steps=500",
    "train.global_batch_size=8", "train.checkpoint_every_steps=10", "train.log_every_steps=1",
    "evaluate.max_rows=100", TWO_PHASES,
)  # fmt: skip
FIRST, SECOND = "pretrain/64", "pretrain/96"
ONE_PHASE = ("--until", FIRST)
RELATIVE = 1e-5


class Bench:
    """Runs in a folder of their own; the data is prepared once."""

    def __init__(self, work: Path, wait_seconds: float) -> None:
        self.work = work
        self._wait_seconds = wait_seconds

    def start(self, store: Path, *words: str) -> Run:
        """Begin a run."""
        words = (*SMALL, f"store={store}", *words)
        return Run(self.work, store.name, words, self._wait_seconds)

    def run(self, store: Path, *words: str) -> None:
        """Run to the end."""
        self.start(store, *words).end()

    @cached_property
    def prepared(self) -> Path:
        """A store with the data."""
        self.run(self.work / "prepared", "--until", "mask")
        return self.work / "prepared"

    @cached_property
    def calm(self) -> Path:
        """A store with the data and both phases, undisturbed."""
        store = self.copy(self.prepared, "calm")
        self.run(store, "--until", "pretrain")
        return store

    def copy(self, store: Path, name: str, without: str = "") -> Path:
        """A new store with what another one holds, without a node."""
        shutil.copytree(store, self.work / name)
        if without:
            shutil.rmtree(self.work / name / without)
        return self.work / name

    def losses(self, artifact: dict[str, Any]) -> dict[int, float]:
        """Loss by step, as tracked."""
        run_id = artifact["tracking_run_id"]
        with closing(sqlite3.connect(self.work / "runs/mlflow.db")) as database:
            query = "select step, value from metrics where run_uuid = ? and key = 'train/loss'"
            return dict(database.execute(query, (run_id,)).fetchall())

    def equal(self, case: str, node: str, calm: Path, other: Path) -> None:
        """Compare the weights, moments and losses of two runs.

        Raises:
            SystemExit: they differ, or the other one was not resumed.
        """
        left, right = manifest(calm, node), manifest(other, node)
        step, steps = (right["figures"][name] for name in ("resumed_from", "steps"))
        curves = [self.losses(artifact) for artifact in (left, right)]
        differ = [s for s, loss in curves[1].items() if curves[0].get(s) != loss]
        missing = set(range(step + 1, steps + 1)) - curves[1].keys()
        say(case, f"went on from step {step} and ended at {steps}")
        if not step or missing:
            raise SystemExit(f"{case}: not resumed, or the losses of {len(missing)} steps lack")
        if left["output_digest"] != right["output_digest"] or differ:
            raise SystemExit(
                f"{case}: DIFFERS from the undisturbed run: losses of {len(differ)} of "
                f"{len(curves[1])} steps" + (f", first of step {min(differ)}" if differ else "")
            )
        say(case, f"equal to the bit: weights, moments, the losses of {len(curves[1])} steps")


def newest(store: Path, node: str) -> dict[str, Any]:
    """The state of the newest checkpoint; step -1 when there is none."""
    try:
        # Folders are renamed and removed while a run writes there.
        found = sorted((store / node).rglob("checkpoints/step-*/state.json"))
        state: dict[str, Any] = json.loads(found[-1].read_text())["state"]
    except (IndexError, FileNotFoundError):
        return {"step": -1, "epoch": -1}
    return state


def manifest(store: Path, node: str) -> dict[str, Any]:
    """Of the one artifact of a node."""
    (path,) = (store / node).glob("*/manifest.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def say(case: str, text: str) -> None:
    """Print a line at once."""
    print(f"{case}: {text}", flush=True)


def half_written(store: Path, node: str) -> list[Path]:
    """Checkpoints of which some file is there, under the names they have while they are written."""
    with suppress(FileNotFoundError):
        folders = (store / node).rglob("checkpoints/tmp-*")
        return [folder for folder in folders if any(folder.iterdir())]
    return []


def kill_in_write(run: Run, store: Path, node: str) -> Path:
    """Kill all of a resumed run while a checkpoint is half there; returns its folder."""
    run.until(lambda: 0 < run.went_on_from() < newest(store, node)["step"])
    (worker,) = run.workers()

    def stopped_in_write() -> bool:
        if not half_written(store, node):
            return False
        worker.suspend()
        while worker.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        if half_written(store, node):
            return True
        worker.resume()
        return False

    run.until(stopped_in_write, every=0.0002)
    run.kill_all()
    (folder,) = half_written(store, node)
    return folder


def kill_in_epoch(bench: Bench, store: Path, epoch: int) -> None:
    """Kill the driver of a run in an epoch, counted from 0."""
    run = bench.start(store, *ONE_PHASE)
    run.until(lambda: newest(store, FIRST)["epoch"] >= epoch)
    state = newest(store, FIRST)
    run.kill_driver()
    say(
        "driver",
        f"began at step {run.went_on_from()}, killed in epoch {state['epoch'] + 1} after the "
        f"checkpoint of step {state['step']}",
    )
    if state["epoch"] != epoch:
        raise SystemExit(f"driver: that was not epoch {epoch + 1}")


def driver(bench: Bench) -> None:
    """Killed in epoch 1, in a write, and in epoch 2; ended with another speed."""
    calm, shot = bench.calm, bench.copy(bench.prepared, "driver")
    kill_in_epoch(bench, shot, 0)
    run = bench.start(shot, *ONE_PHASE)
    folder = kill_in_write(run, shot, FIRST)
    files = [f"{path.name} ({path.stat().st_size:,} bytes)" for path in sorted(folder.iterdir())]
    say(
        "driver",
        f"began at step {run.went_on_from()}, killed with all of its processes while "
        f"{folder.name} held {', '.join(files)}",
    )
    kill_in_epoch(bench, shot, 1)
    if folder.exists():
        raise SystemExit(f"driver: {folder.name} is still there")
    bench.run(shot, *ONE_PHASE, "speed.prefetch_batches=0")
    bench.equal("driver", FIRST, calm, shot)


def phases(bench: Bench) -> None:
    """Killed in the second phase."""
    shot = bench.copy(bench.calm, "phases", without=SECOND)
    run = bench.start(shot, "--until", "pretrain")
    run.until(lambda: newest(shot, SECOND)["step"] >= 20)
    run.kill_all()
    step = newest(shot, SECOND)["step"]
    say("phases", f"killed in the second phase after the checkpoint of step {step}")
    bench.run(shot, "--until", "pretrain")
    bench.equal("phases", SECOND, bench.calm, shot)


def worker(bench: Bench) -> None:
    """One of two workers is killed."""
    words = [*ONE_PHASE, "train.steps=60", "cluster.train_workers=2", "cluster.cpus_per_worker=0.5"]
    calm, shot = bench.copy(bench.prepared, "worker-calm"), bench.copy(bench.prepared, "worker")
    bench.run(calm, *words)
    run = bench.start(shot, *words)
    run.until(lambda: newest(shot, FIRST)["step"] >= 20 and len(run.workers()) == 2)
    victim = run.workers()[-1]
    say("worker", f"killed one of two after the checkpoint of step {newest(shot, FIRST)['step']}")
    victim.kill()
    run.end()
    bench.equal("worker", FIRST, calm, shot)


def counts(bench: Bench) -> None:
    """1, 2 and 4 workers give one curve."""
    curves = []
    for workers in (1, 2, 4):
        store = bench.copy(bench.prepared, f"counts-{workers}")
        bench.run(
            store, *ONE_PHASE, f"cluster.train_workers={workers}", "cluster.cpus_per_worker=0.5",
            "train.steps=100", "train.precision=float32", "model.hidden_dropout=0",
            "model.attention_dropout=0",
        )  # fmt: skip
        curves.append(bench.losses(manifest(store, FIRST)))
    one = curves[0]
    if sorted(one) != list(range(1, 101)):
        raise SystemExit(f"the curve has {len(one)} steps")
    worst = max(abs(c[s] - one[s]) / one[s] for c in curves[1:] for s in one)
    say("counts", f"1, 2 and 4 workers: at most {worst:.1e} relative over 100 steps")
    if worst > RELATIVE:
        raise SystemExit(1)


CASES = {case.__name__: case for case in (driver, phases, worker, counts)}


def main(words: Sequence[str]) -> None:
    """Run the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--keep", action="store_true", help="keep the stores and what runs said")
    parser.add_argument(
        "--wait-seconds", type=float, default=600, help="the longest wait for the moment of a kill"
    )
    given = parser.parse_args(words)
    began = time.monotonic()
    with own_folder("", given.keep) as work:
        bench = Bench(work, given.wait_seconds)
        for name in given.case or list(CASES):
            CASES[name](bench)
    used = os.times()
    print(
        f"{time.monotonic() - began:.0f} s, {used.children_user + used.children_system:.0f} s of "
        "CPU in runs that ended",
        flush=True,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(sys.argv[1:])
