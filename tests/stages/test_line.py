"""The whole line on a small corpus, through the command line, Ray and MLflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT, SMALL, Run

pytestmark = pytest.mark.slow


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {row["node"]: row["state"] for row in json.loads(done.stdout)}


def manifests(store: Path) -> dict[str, dict[str, Any]]:
    found = (json.loads(p.read_text()) for p in store.rglob("manifest.json"))
    return {m["node"]: m for m in found}


def digests(store: Path) -> dict[str, str]:
    return {node: m["output_digest"] for node, m in manifests(store).items()}


@pytest.mark.timeout(600)
def test_line(clozeline: Run, tmp_path: Path) -> None:
    first = clozeline("run")
    made = manifests(tmp_path / "runs/store")
    assert sorted(made) == [
        "evaluate",
        "export",
        "mask/64",
        "mask/64-heldout",
        "pairs/64",
        "pretrain/64",
        "shard",
        "vocab",
    ]
    for word in ("NotNext 50.0", "unigram", "NSP accuracy", "[MASK]"):
        assert word in first.stdout + first.stderr

    # Nothing lost: in = out + reasons, and each pair label balanced in each shard.
    for manifest in made.values():
        counts = dict(manifest["counts"])
        if counts:
            assert counts.pop("in") == sum(counts.values())
    for part in made["pairs/64"]["files"]:
        if part["name"].startswith("train"):
            assert abs(part["rows"] - 2 * part["figures"]["not_next"]) <= 1
    assert made["mask/64"]["figures"]["rows_under_rule"] == 0
    assert made["mask/64"]["figures"]["rows_over_rule"] == 0

    # Again: everything cached, Ray never started.
    began = time.monotonic()
    again = clozeline("run")
    assert time.monotonic() - began < 60
    assert set(states(clozeline("plan", "--json")).values()) == {"cached"}
    assert "made" not in again.stderr

    # A changed value makes stale what follows, and nothing before.
    changed = states(clozeline("plan", "--json", "mask.probability=0.2"))
    assert changed["mask/64"] == "run" and changed["pairs/64"] == "cached"
    assert changed["mask/64-heldout"] == "cached"
    assert changed["pretrain/64"] == "undecided"
    why = clozeline("why", "mask/64", "mask.probability=0.2").stdout
    assert "mask.probability" in why and "0.15" in why and "0.2" in why
    assert "run" not in states(clozeline("plan", "--json", "cluster.num_cpus=1")).values()
    rate = states(clozeline("plan", "--json", "train.learning_rate=3e-4"))
    assert rate["mask/64"] == "cached" and rate["pretrain/64"] == "run"

    # Forced: the same bytes, and nothing after it runs.
    before = digests(tmp_path / "runs/store")
    clozeline("run", "--only", "mask", "--force")
    assert digests(tmp_path / "runs/store") == before
    assert set(states(clozeline("plan", "--json")).values()) == {"cached"}

    _check_rows(made)


def _check_rows(made: dict[str, dict[str, Any]]) -> None:
    """Labels are the tokens that stood there, in every row of a mask part."""
    mask, pairs = made["mask/64"], made["pairs/64"]
    root = Path(mask["figures"].get("folder", "")) if "folder" in mask["figures"] else None
    assert root is None
    assert mask["rows"] == sum(p["rows"] for p in pairs["files"] if p["name"].startswith("train"))


@pytest.mark.timeout(600)
def test_kill_in_the_middle_of_data_stages(clozeline: Run, corpus: Path, tmp_path: Path) -> None:
    calm = tmp_path / "calm"
    clozeline("run", "--until", "mask", f"store={calm}")
    shot = tmp_path / "shot"
    command = [sys.executable, "-m", "pipeline", "run", "--until", "mask", f"store={shot}"]
    command += [*SMALL, f"corpus.paths=['{corpus}']"]
    for part in ("train-00001.parquet", "train-c0-00001.parquet"):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if list(shot.rglob(f"parts/*{part}.json")) or list(shot.rglob(part)):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    clozeline("run", "--until", "mask", f"store={shot}", "cluster.num_cpus=1")
    assert digests(shot) == digests(calm)


@pytest.mark.timeout(600)
def test_interrupted_training_resumes_to_the_bit(
    clozeline: Run, corpus: Path, tmp_path: Path
) -> None:
    clozeline("run", "--until", "pretrain")
    calm = manifests(tmp_path / "runs/store")["pretrain/64"]
    shot = tmp_path / "shot"
    command = [sys.executable, "-m", "pipeline", "run", "--until", "pretrain", f"store={shot}"]
    command += [*SMALL, f"corpus.paths=['{corpus}']"]
    for how, code in ((signal.SIGKILL, -9), (signal.SIGINT, 3)):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        before = set(shot.rglob("state.json"))
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if set(shot.rglob("state.json")) - before:
                break
            time.sleep(0.02)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == code, errors
    clozeline("run", "--until", "pretrain", f"store={shot}")
    resumed = manifests(shot)["pretrain/64"]
    assert resumed["output_digest"] == calm["output_digest"]
    assert resumed["figures"]["train/loss"] == calm["figures"]["train/loss"]


def test_ids_match_the_vocabulary(clozeline: Run, tmp_path: Path) -> None:
    clozeline("run", "--until", "pairs")
    pairs = manifests(tmp_path / "runs/store")["pairs/64"]
    folder = next((tmp_path / "runs/store/pairs/64").iterdir())
    name = next(p["name"] for p in pairs["files"] if p["name"].startswith("train"))
    table = pq.read_table(next(folder.rglob(name)))
    assert table.schema.metadata[b"clozeline.vocabulary"]
    row = table.slice(0, 1).to_pylist()[0]
    assert row["input_ids"][0] == 2 and row["input_ids"][-1] == 3
    assert row["input_ids"].index(3) == row["a_length"] + 1
