"""What training refuses, through the product: files that were changed or copied by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.serial import config_of
from pipeline.stage import Context, Granted
from pipeline.stop import StopSignal
from pipeline.store import Store
from pipeline.tracking import NoMetrics
from stages.catalog import CATALOG
from tests.conftest import SMALL, Line, Run

pytestmark = pytest.mark.slow
NODE = "pretrain/64"
UNTIL = ("--until", "pretrain", "tracking.enabled=false")


class StopAtStep4:
    """A driver that hears nothing and asks to stop at step 4."""

    def __init__(self) -> None:
        self._asked = 0

    def should_stop(self) -> bool:
        self._asked += 1
        return self._asked == 4

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def fingerprints(clozeline: Run, *words: str) -> dict[str, str]:
    rows = json.loads(clozeline("plan", "--json", *words).stdout)
    return {row["node"]: row["fingerprint"] for row in rows}


def interrupted(store: Path, corpus: Path, made: dict[str, str]) -> Path:
    """The node's folder as a run leaves it that was stopped after step 4; without Ray."""
    from stages import pretrain
    from stages.pretrain_worker import train_here

    config = config_of([*SMALL, f"corpus.paths=['{corpus}']"])
    (node,) = [node for node in CATALOG.nodes(config) if node.name == NODE]
    here = Store(str(store))
    wanted = {**node.inputs, **node.watches}
    inputs = {role: here.find(name, made[name]) for role, name in wanted.items()}
    context = Context(
        node=node,
        inputs={role: artifact for role, artifact in inputs.items() if artifact is not None},
        output=here.begin(NODE, made[NODE], "stopped"),
        fingerprint=made[NODE],
        attempt="stopped",
        granted=Granted(1, 0),
        progress=StopAtStep4(),  # type: ignore[arg-type]
        metrics=NoMetrics(),
        stop=StopSignal(),
    )
    plan = pretrain._plan(context, None, threads=1, use_gpu=False)
    outcome = train_here(plan, StopAtStep4(), 0, 0)  # type: ignore[arg-type]
    assert outcome == {"stopped": True, "step": 4}
    return store / NODE / made[NODE]


def said_by(clozeline: Run, *words: str, check: int) -> str:
    done = clozeline("run", *words, check=check)
    assert "Traceback" not in done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.timeout(600)
def test_what_was_changed_by_hand_is_not_trained_on(
    line: Line, clozeline: Run, corpus: Path, tmp_path: Path
) -> None:
    store = tmp_path / "runs/store"
    line.copy(store, without=["pretrain", "evaluate", "export"])
    stopped = interrupted(store, corpus, fingerprints(clozeline))

    # A person wants to go on at another rate, and copies the unfinished folder under the name that
    # `plan` gives to the changed run: no other way leads a checkpoint to another configuration.
    rate = "train.learning_rate=0.002"
    copied = stopped.parent / fingerprints(clozeline, rate)[NODE]
    assert copied != stopped
    shutil.copytree(stopped, copied)
    said = said_by(clozeline, rate, *UNTIL, check=1)
    assert "the checkpoint of step 4 belongs to another run" in said
    before = config_of([*SMALL, f"corpus.paths=['{corpus}']"]).train.learning_rate
    assert f"train.learning_rate was {before}, is 0.002. Go back to that configuration" in said
    kept = [path.name for path in copied.rglob("checkpoints/*")]
    assert kept == ["step-00000004"] and not (copied / "manifest.json").exists()

    # Two entries change places in the vocabulary: it has as many, and each is there.
    (vocab,) = store.glob("vocab/*/data/vocab.txt")
    entries = vocab.read_text("utf-8").splitlines()
    entries[20], entries[21] = entries[21], entries[20]
    vocab.write_text("\n".join(entries) + "\n", "utf-8")
    said = said_by(clozeline, *UNTIL, check=1)
    assert "holds ids of another vocabulary" in said and "Nothing was trained" in said
    assert "its input vocab is damaged: vocab.txt (other bytes than were written)" in said
    assert "clozeline run --only vocab --force" in said
    assert [path.name for path in stopped.rglob("checkpoints/*")] == ["step-00000004"]

    # Weights of another vocabulary are refused before anything starts.
    (given,) = line.store.glob("export/*/data")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(vocab.parent / name, other)
    words = (f"train.init_from={given}", f"vocab.from={other}")
    said = said_by(clozeline, *words, *UNTIL, check=2)
    assert "has another vocabulary than this run (entry 20 is" in said
