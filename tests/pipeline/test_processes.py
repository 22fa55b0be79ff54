"""The machine under real processes: kill -9, two runs at once, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_graph
from toy_graph import POEMS, Ran

from pipeline.store import Store

Run = Callable[..., Ran]
NODES = ["split", "count/long", "count/short", "total"]

pytestmark = pytest.mark.slow


def start(store: Path, corpus: Path, cpus: int = 2, **settings: Any) -> subprocess.Popen[str]:
    config = json.dumps({"settings": settings, "driver_cpus": cpus})
    command = [sys.executable, toy_graph.__file__, str(store), str(corpus), config]
    environment = {"PYTHONPATH": str(Path.cwd()), "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def ended(child: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    out, _ = child.communicate(timeout=60)
    return child.returncode, json.loads(out) if out else {}


def wait_for(path: Path) -> None:
    for _ in range(400):
        if path.exists():
            return
        time.sleep(0.025)
    raise AssertionError(f"{path} did not come")


def digests(store: Path) -> dict[str, list[str]]:
    """As a stranger would read them: every manifest.json anywhere under the store."""
    found: dict[str, list[str]] = {}
    for path in sorted(store.rglob("manifest.json")):
        manifest = json.loads(path.read_text())
        found.setdefault(manifest["node"], []).append(manifest["output_digest"])
    return found


@pytest.mark.parametrize("node", ["split", "count/long", "total"])
def test_a_killed_run_leaves_no_result_and_a_rerun_makes_only_what_is_missing(
    node: str, run: Run, corpus: Path, tmp_path: Path
) -> None:
    part = "total.json" if node == "total" else "nobody.txt"
    marker, made = tmp_path / "marker", tmp_path / "made"
    child = start(
        tmp_path / "store",
        corpus,
        # One node at a time: a kill between a part and its line in `made` would be miscounted.
        cpus=1,
        behave=[f"{node}:{part}:hang"],
        marker=str(marker),
        made=str(made),
    )
    wait_for(marker)
    child.kill()
    child.communicate()
    before = made.read_text().splitlines() if made.exists() else []
    assert node not in digests(tmp_path / "store")

    began = time.monotonic()
    again = run({"settings": {"made": str(made)}})
    assert again.outcome.exit_code == 0
    # The dead process's lease is not waited out.
    assert time.monotonic() - began < 10
    lines = made.read_text().splitlines()
    expected = [f"{n} {name}" for n in NODES[:3] for name in POEMS] + ["total total.json"]
    assert sorted(lines) == sorted(expected)
    assert lines[: len(before)] == before
    calm = run(store=tmp_path / "calm")
    assert digests(tmp_path / "store") == digests(Path(calm.store.root))
    leftovers = [p for p in (tmp_path / "store").rglob("*") if ".making" in p.name]
    assert leftovers == []


def test_two_runs_at_once_make_each_node_once(corpus: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    slow = [f"{node}:{name}:slow" for node in NODES[:3] for name in POEMS]
    children = [start(tmp_path / "store", corpus, behave=slow, made=str(made)) for _ in range(3)]
    ends = [ended(child) for child in children]
    assert [code for code, _ in ends] == [0, 0, 0]
    states = Counter((n, s) for _, row in ends for n, s in row["states"].items())
    for node in NODES:
        assert (states[node, "made"], states[node, "cached"]) == (1, 2)
    assert max(Counter(made.read_text().splitlines()).values()) == 1
    events = [event for _, row in ends for event in row["events"]]
    assert any(e[1] == "waiting" and "process" in e[2] for e in events)


def test_a_waiting_run_takes_over_when_the_other_is_killed(corpus: Path, tmp_path: Path) -> None:
    marker, made = tmp_path / "marker", tmp_path / "made"
    hang = {"behave": ["split:nobody.txt:hang"], "marker": str(marker)}
    first = start(tmp_path / "store", corpus, made=str(made), **hang)
    wait_for(marker)
    second = start(tmp_path / "store", corpus, made=str(made))
    time.sleep(1.5)
    assert second.poll() is None
    first.kill()
    first.communicate()
    code, row = ended(second)
    assert code == 0
    assert row["states"]["split"] == "made"
    assert max(Counter(made.read_text().splitlines()).values()) == 1


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_3_and_the_run_can_be_resumed(
    which: signal.Signals, run: Run, corpus: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    hang = {"behave": ["count/long:nobody.txt:hang"], "marker": str(marker)}
    child = start(tmp_path / "store", corpus, **hang)
    wait_for(marker)
    began = time.monotonic()
    child.send_signal(which)
    code, row = ended(child)
    assert code == 3
    assert time.monotonic() - began < 10
    assert row["states"]["count/long"] == "interrupted"
    store = Store(str(tmp_path / "store"))
    assert store.artifacts("count/long") == []
    again = run()
    assert again.outcome.exit_code == 0
    assert again.artifact("count/long").figures["parts_before"] == 2


def test_a_forced_run_that_is_killed_leaves_the_old_result(
    run: Run, corpus: Path, tmp_path: Path
) -> None:
    before = run().artifact("count/long")
    code = (
        "import sys, pathlib, toy_graph; toy_graph.run_toy(sys.argv[1], pathlib.Path(sys.argv[2]), "
        "{'settings': {'behave': ['count/long:nobody.txt:hang'], 'marker': sys.argv[3]}}, "
        "only=['count/long'], force=True)"
    )
    marker = tmp_path / "marker"
    arguments = [str(tmp_path / "store"), str(corpus), str(marker)]
    environment = {"PYTHONPATH": f"{Path.cwd()}:{Path(toy_graph.__file__).parent}"}
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
    wait_for(marker)
    child.kill()
    child.wait()
    assert run().made == []
    assert before.damage() == {}
    forced = run(only=["count/long"], force=True).artifact("count/long")
    assert forced.output_digest == before.output_digest
    # Begun anew, not carried on.
    assert forced.figures["parts_before"] == 0
    # The one before stays for those that read it; the killed one is gone.
    assert sorted(p.name for p in Path(forced.path).iterdir() if p.is_dir()) == ["data", "data-2"]
