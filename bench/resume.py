"""Resuming through the whole program, each against an undisturbed run: `python -m bench.resume`.

    driver    killed (SIGKILL) in epoch 1 and in epoch 2, then ended with another `speed`
    phases    two phases, killed in the second
    worker    one of two training processes killed (SIGKILL); Ray starts both again
    counts    1, 2 and 4 workers of half a CPU: the curve over 100 steps, without dropout

The first three have to end with the same weights to the bit (dropout 0.1), the last within 1e-5
relative at each step. About two minutes a run on two CPUs, eleven runs in all. What the loop does
by itself, kills inside a write included, is in tests/stages/training.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "corpus.distributions=[]", "corpus.sample=0.6", "corpus.shards=2",
    "corpus.validation_share=0.2", "vocab.size=2000", "pairs.max_seq_length=64",
    "model.hidden_size=32", "train.steps=300", "train.global_batch_size=8",
    "train.checkpoint_every_steps=10", "train.log_every_steps=1", "evaluate.max_rows=100",
)  # fmt: skip
WAIT_SECONDS = 600
RELATIVE = 1e-5


class Bench:
    """Runs in a folder of their own; the data is prepared once."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.prepared = work / "prepared"
        self.run(
            self.prepared, "--until", "mask", "phases=[{max_seq_length: 64},{max_seq_length: 96}]"
        )

    def start(self, store: Path, *words: str) -> subprocess.Popen[str]:
        """Begin a run."""
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", "run", *SMALL, f"store={store}", *words],
            cwd=self.work,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, store: Path, *words: str) -> None:
        """Run to the end."""
        process = self.start(store, *words)
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"the run failed ({process.returncode}):\n{errors[-3000:]}")

    def store(self, name: str) -> Path:
        """A new store with the data in it."""
        shutil.copytree(self.prepared, self.work / name)
        return self.work / name

    def kill(self, store: Path, when: Callable[[], bool], victim: str | None, *words: str) -> None:
        """Run, and kill when it is time: the driver, or a process of that title and go on."""
        process = self.start(store, *words)
        deadline = time.monotonic() + WAIT_SECONDS
        while not when():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"it ended before it was killed: {process.communicate()[1][-2000:]}"
                )
            time.sleep(0.02)
        if victim is None:
            process.kill()
            process.communicate()
            return
        children = psutil.Process(process.pid).children(recursive=True)
        [*_, last] = [child for child in children if victim in " ".join(child.cmdline())]
        last.kill()
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"the run failed ({process.returncode}):\n{errors[-3000:]}")


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


def equal(what: str, node: str, calm: Path, other: Path) -> None:
    """Compare weights and moments of two runs."""
    left, right = manifest(calm, node), manifest(other, node)
    same = left["output_digest"] == right["output_digest"]
    loss = [m["figures"]["train/loss"] for m in (left, right)]
    print(
        f"{what}: resumed from step {right['figures']['resumed_from']} of "
        f"{right['figures']['steps']}: {'equal to the bit' if same else f'DIFFERS, {loss}'}",
        flush=True,
    )
    if not same:
        raise SystemExit(1)


def driver(bench: Bench) -> None:
    """Killed in epoch 1 and 2, ended with another speed."""
    words = ("--until", "pretrain", "tracking.enabled=false")
    calm, shot = bench.store("driver-calm"), bench.store("driver-shot")
    bench.run(calm, *words)
    for epoch in (0, 1):
        bench.kill(shot, lambda e=epoch: newest(shot, "pretrain/64")["epoch"] >= e, None, *words)  # type: ignore[misc]
    bench.run(shot, *words, "speed.prefetch_batches=0")
    equal("killed twice, then another speed", "pretrain/64", calm, shot)


def phases(bench: Bench) -> None:
    """Killed in the second phase."""
    words = ["--until", "pretrain", "tracking.enabled=false", "train.steps=60"]
    words += ["phases=[{max_seq_length: 64},{max_seq_length: 96, learning_rate: 5e-4}]"]
    calm, shot = bench.store("phases-calm"), bench.store("phases-shot")
    bench.run(calm, *words)
    bench.kill(shot, lambda: newest(shot, "pretrain/96")["step"] >= 20, None, *words)
    bench.run(shot, *words)
    equal("two phases, killed in the second", "pretrain/96", calm, shot)


def worker(bench: Bench) -> None:
    """One of two workers is killed."""
    words = ["--until", "pretrain", "tracking.enabled=false"]
    words += ["cluster.train_workers=2", "cluster.cpus_per_worker=0.5"]
    calm, shot = bench.store("worker-calm"), bench.store("worker-shot")
    bench.run(calm, *words)
    bench.kill(shot, lambda: newest(shot, "pretrain/64")["step"] >= 20, "RayTrainWorker", *words)
    equal("one of two workers killed", "pretrain/64", calm, shot)


def counts(bench: Bench) -> None:
    """1, 2 and 4 workers give one curve."""
    curves = []
    for workers in (1, 2, 4):
        store = bench.store(f"counts-{workers}")
        bench.run(
            store, "--until", "pretrain", f"cluster.train_workers={workers}",
            "cluster.cpus_per_worker=0.5", "train.steps=100", "train.precision=float32",
            "model.hidden_dropout=0", "model.attention_dropout=0",
        )  # fmt: skip
        run_id = manifest(store, "pretrain/64")["tracking_run_id"]
        with closing(sqlite3.connect(bench.work / "runs/mlflow.db")) as database:
            query = "select step, value from metrics where run_uuid = ? and key = 'train/loss'"
            curves.append(dict(database.execute(query, (run_id,)).fetchall()))
    one = curves[0]
    if sorted(one) != list(range(1, 101)):
        raise SystemExit(f"the curve has {len(one)} steps")
    worst = max(abs(c[s] - one[s]) / one[s] for c in curves[1:] for s in one)
    print(f"1, 2 and 4 workers: at most {worst:.1e} relative over 100 steps", flush=True)
    if worst > RELATIVE:
        raise SystemExit(1)


CASES = {case.__name__: case for case in (driver, phases, worker, counts)}


def main(words: Sequence[str]) -> None:
    """Run the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="default: all")
    named = parser.parse_args(words).case or list(CASES)
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(Path(work))
        for name in named:
            CASES[name](bench)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(sys.argv[1:])
