"""Tracking against real MLflow on sqlite."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pipeline.config import TrackingConfig
from pipeline.mlflow_names import numeric, parameters, resolve_uri, run_name
from pipeline.mlflow_ui import ui, ui_command
from pipeline.stage import Histogram, Node, Result, Stage, UserError
from pipeline.tracking import MlflowTracking

ROOT = Path(__file__).resolve().parents[2]
MASK = Node("mask/128", Stage("mask", 1, "stages.mask:run"), {"mask": {"probability": 0.15}})
TRAIN = Node(
    "pretrain/128",
    Stage("pretrain", 1, "stages.pretrain:run"),
    {"train": {"steps": 9}},
    inputs={"rows": "mask/128"},
)


def artifact(node: str, run_id: str | None = None, **more: Any) -> Any:
    manifest = {
        "node": node,
        "fingerprint": "f" * 64,
        "output_digest": "d" * 64,
        "seconds": 1.5,
        "tracking_run_id": run_id,
        **more,
    }
    return SimpleNamespace(manifest=manifest, path=f"/store/{node}/{'f' * 64}")


def tracking(cwd: Path, notices: list[str] | None = None, **config: Any) -> MlflowTracking:
    return MlflowTracking(
        TrackingConfig(**config),
        cwd,
        store="/store",
        resolved={"seed": 1, "mask": {"probability": 0.15, "long": "x" * 7000}},
        overrides=["mask.probability=0.15"],
        texts={"graph.mmd": "graph LR\n shard --> mask"},
        notice=(notices if notices is not None else []).append,
    )


def client_at(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def client(cwd: Path) -> Any:
    return client_at(f"sqlite:///{cwd}/runs/mlflow.db")


def runs(cwd: Path) -> dict[str, Any]:
    c = client(cwd)
    found = c.search_runs([c.get_experiment_by_name("clozeline").experiment_id])
    return {run.info.run_name: run for run in found}


@pytest.fixture
def cwd(tracked: Path) -> Path:
    """A folder of its own with an empty database."""
    return tracked


def test_uri_is_absolute_wherever_it_is_given() -> None:
    home = Path("/data/project")
    assert resolve_uri(TrackingConfig(), home) == (
        "sqlite:////data/project/runs/mlflow.db",
        "file:///data/project/runs/mlartifacts",
    )
    assert resolve_uri(TrackingConfig(uri="sqlite:///my.db"), home) == (
        "sqlite:////data/project/my.db",
        "file:///data/project/mlartifacts",
    )
    assert resolve_uri(TrackingConfig(uri="http://host:5000"), home) == ("http://host:5000", None)
    assert resolve_uri(
        TrackingConfig(uri="postgresql://h/db", artifact_location="s3://b"), home
    ) == (
        "postgresql://h/db",
        "s3://b",
    )


@pytest.mark.parametrize("uri", ["/data/mlruns", "file:///data/mlruns", "databricks", "ftp://x"])
def test_uri_of_an_unknown_kind_says_what_to_use(uri: str) -> None:
    with pytest.raises(UserError, match="sqlite:///"):
        resolve_uri(TrackingConfig(uri=uri), Path("/data"))


def test_names_and_parameters() -> None:
    plain = TrackingConfig()
    assert run_name(plain, []) == "default config"
    assert (
        run_name(plain, ["train.learning_rate=3e-4", "tracking.uri=x"])
        == "train.learning_rate=3e-4"
    )
    assert run_name(TrackingConfig(run_name="mine"), ["a=1"]) == "mine"
    assert len(run_name(plain, ["x" * 500])) == 100
    assert parameters({"a": {"b": [1, 2], "c": None}, "d": "text", "e": {}}) == {
        "a.b": "[1, 2]",
        "a.c": "null",
        "d": "text",
        "e": "{}",
    }
    assert numeric({"a": 1, "b": True, "c": "x", "d": float("nan"), "e": [1]}) == {"a": 1, "b": 1}
    assert "127.0.0.1" in ui_command("sqlite:////x", None, 5000)


@pytest.mark.slow
def test_parent_children_links_and_artifacts(cwd: Path) -> None:
    t = tracking(cwd)
    t.node_cached(MASK, artifact("mask/128", run_id="0" * 32))
    t.start_run([MASK, TRAIN])
    t.node_cached(MASK, artifact("mask/128", run_id="0" * 32, figures={"rows": 3}))
    mask = artifact("mask/128", run_id="0" * 32)
    run = t.node_started(TRAIN, "f" * 64, {"rows": mask}, None)
    for step in range(2500):
        run.metrics.log({"train/loss": 10 - step / 1000, "bad:name?": 1.0}, step)
    run_id = run.run_id
    made = artifact("pretrain/128", run_id=run_id)
    result = Result(
        figures={"eval/loss": 5.5, "vocab": "english"},
        counts={"in": 10, "out": 10},
        report=[Histogram("Lengths", [0, 1, 2], [3, 4])],
        samples=["the [MASK] sat", "two"],
    )
    t.node_finished(run, made, result)
    t.close("done")

    found = runs(cwd)
    assert set(found) == {"mask.probability=0.15", "pretrain/128"}
    parent, child = found["mask.probability=0.15"], found["pretrain/128"]
    assert child.info.run_id == run_id
    assert child.info.status == parent.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.params["train.steps"] == "9"
    assert child.data.metrics["eval/loss"] == 5.5
    assert child.data.metrics["counts/out"] == 10
    assert child.data.metrics["seconds"] == 1.5
    assert child.data.metrics["bad_name_"] == 1.0
    assert child.data.tags["input.rows"] == "0" * 32
    assert child.data.tags["figure.vocab"] == "english"
    (dataset,) = child.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("mask/128", "d" * 36)
    assert parent.data.tags["cached/mask/128"] == "0" * 32
    assert parent.data.tags["made/pretrain/128"] == run_id
    assert run_id is not None and run_id in parent.data.tags["mlflow.note.content"]
    assert len(parent.data.params["mask.long"]) == 6000
    # What runs are compared by stands at the parent: figures of what no other node reads.
    assert parent.data.metrics["pretrain/128/eval/loss"] == 5.5
    assert not [name for name in parent.data.metrics if name.startswith("mask/128")]
    # The links lead on, from the parent and from the node.
    place = f"runs/{'0' * 32}?workflowType=machine_learning"
    assert place in parent.data.tags["mlflow.note.content"]
    assert place in child.data.tags["mlflow.note.content"]

    c = client(cwd)
    history = c.get_metric_history(run_id, "train/loss")
    assert [m.step for m in history] == list(range(2500))
    assert {a.path for a in c.list_artifacts(run_id)} == {
        "manifest.json",
        "report.html",
        "samples.txt",
    }
    assert {a.path for a in c.list_artifacts(parent.info.run_id)} == {"config.json", "graph.mmd"}
    artifacts = cwd / "runs" / "mlartifacts" / parent.info.run_id / "artifacts"
    assert json.loads((artifacts / "config.json").read_text())["mask"]["long"] == "x" * 7000


@pytest.mark.slow
def test_an_all_cached_run_leaves_nothing(tmp_path: Path) -> None:
    t = tracking(tmp_path)
    t.node_cached(MASK, artifact("mask/128"))
    t.close("done")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_restart_continues_the_run_and_repeats_no_step(cwd: Path) -> None:
    first = tracking(cwd)
    first.start_run([TRAIN])
    run = first.node_started(TRAIN, "f" * 64, {}, None)
    for step in range(1, 8):
        run.metrics.log({"train/loss": float(step)}, step)
    run.metrics.log({"eval/loss": 3.0}, 5)
    run_id = run.run_id
    first.node_ended(run, "interrupted", "stopped")
    first.close("interrupted")
    assert runs(cwd)["pretrain/128"].info.status == "KILLED"

    second = tracking(cwd, run_name="second")
    second.start_run([TRAIN])
    again = second.node_started(TRAIN, "f" * 64, {}, run_id)
    for step in range(5, 12):
        again.metrics.log({"train/loss": 100.0 + step}, step)
        # A worker that Ray restarts within the same driver repeats steps as well.
        again.metrics.log({"train/loss": 200.0 + step}, step)
    again.metrics.log({"eval/loss": 2.0}, 10)
    assert again.run_id == run_id
    second.node_finished(again, artifact("pretrain/128"), Result())
    second.close("done")

    c = client(cwd)
    assert [(m.step, m.value) for m in c.get_metric_history(run_id, "train/loss")] == [
        *((s, float(s)) for s in range(1, 8)),
        *((s, 100.0 + s) for s in range(8, 12)),
    ]
    assert [m.step for m in c.get_metric_history(run_id, "eval/loss")] == [5, 10]
    child = c.get_run(run_id)
    assert child.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == runs(cwd)["second"].info.run_id


@pytest.mark.slow
def test_a_run_that_is_gone_from_mlflow_is_begun_anew(cwd: Path) -> None:
    t = tracking(cwd)
    run = t.node_started(TRAIN, "f" * 64, {}, "1" * 32)
    assert run.run_id not in (None, "1" * 32)
    t.close("failed")
    assert runs(cwd)["mask.probability=0.15"].info.status == "FAILED"


@pytest.mark.slow
def test_a_server_that_is_away_stops_nothing_and_gets_it_later(cwd: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    notices: list[str] = []
    began = time.monotonic()
    t = tracking(cwd, notices, uri=uri)
    t.start_run([TRAIN])
    run = t.node_started(TRAIN, "f" * 64, {}, None)
    run.metrics.log({"train/loss": 1.0}, 1)
    assert run.run_id is None
    t.node_finished(run, artifact("pretrain/128"), Result(samples=["kept"]))
    t.close("done")
    assert time.monotonic() - began < 20
    (kept,) = (cwd / "runs" / "tracking-outbox").glob("*.jsonl")
    assert len(notices) == 2 and str(kept) in notices[1], notices
    assert all("\n" not in notice for notice in notices)

    server = subprocess.Popen(
        [
            *ui_command(f"sqlite:///{cwd}/runs/mlflow.db", None, port),
            "--artifacts-destination",
            str(cwd / "served"),
            "--serve-artifacts",
        ],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )
    try:
        _wait_for_port(port)
        later = tracking(cwd, notices, uri=uri, run_name="later")
        later.start_run([])
        later.close("done")
        assert not kept.exists(), notices
        found = runs(cwd)
        assert set(found) == {"mask.probability=0.15", "pretrain/128", "later"}
        child = found["pretrain/128"]
        assert child.info.status == "FINISHED"
        assert child.data.metrics["train/loss"] == 1.0
        assert list((cwd / "served").rglob("samples.txt"))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_ui_serves_the_runs_and_ends_with_all_its_processes(cwd: Path) -> None:
    t = tracking(cwd, run_name="seen")
    t.start_run([])
    t.close("done")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from pipeline.config import TrackingConfig
from pipeline.tracking import ui
sys.exit(ui(TrackingConfig(), Path.cwd(), {port}))
"""
    pages = subprocess.Popen(
        [sys.executable, "-c", code], cwd=cwd, stdout=subprocess.PIPE, text=True
    )
    assert pages.stdout is not None
    assert f"http://127.0.0.1:{port}/#/experiments" in pages.stdout.readline()
    seen = client_at(f"http://127.0.0.1:{port}")
    found = seen.search_runs([seen.get_experiment_by_name("clozeline").experiment_id])
    assert [run.info.run_name for run in found] == ["seen"]
    with pytest.raises(UserError, match=f"port {port} is taken"):
        ui(TrackingConfig(), cwd, port)
    family = psutil.Process(pages.pid).children(recursive=True)
    assert family
    pages.send_signal(signal.SIGTERM)
    assert pages.wait(timeout=30) == 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def _wait_for_port(port: int) -> None:
    for _ in range(1200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from pipeline.config import TrackingConfig
from pipeline.stage import Node, Stage
from pipeline.tracking import MlflowTracking
name, wait = sys.argv[1], sys.argv[2]
t = MlflowTracking(TrackingConfig(run_name=name), Path.cwd(), "/store", {{}}, [], {{}}, print)
node = Node("node/" + name, Stage("node", 1, "x:y"), {{}})
t.start_run([node])
run = t.node_started(node, "f" * 64, {{}}, None)
run.metrics.log({{"loss": 1.0}}, 1)
assert run.run_id
print("open", flush=True)
if wait == "wait":
    time.sleep(60)
t.node_ended(run, "failed", "")
t.close("failed")
"""


def _driver(cwd: Path, name: str, wait: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(SCRIPT).format(root=str(ROOT))
    return subprocess.Popen(
        [sys.executable, "-c", code, name, wait],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_at_once_on_a_new_database_and_nothing_is_printed(tmp_path: Path) -> None:
    both = [_driver(tmp_path, name, "go") for name in ("one", "two")]
    for driver in both:
        out, err = driver.communicate(timeout=120)
        assert driver.returncode == 0, err
        assert (out, err) == ("open\n", "")
    assert set(runs(tmp_path)) == {"one", "two", "node/one", "node/two"}


@pytest.mark.slow
def test_what_a_killed_driver_left_running_is_closed_by_the_next(cwd: Path) -> None:
    victim = _driver(cwd, "victim", "wait")
    assert victim.stdout is not None
    assert victim.stdout.readline() == "open\n"
    bystander = tracking(cwd, run_name="bystander")
    bystander.start_run([])
    # Wait until it has looked for dead drivers, so that it does not find this one.
    assert bystander.node_started(MASK, "f" * 64, {}, None).run_id
    victim.kill()
    victim.communicate()
    assert runs(cwd)["node/victim"].info.status == "RUNNING"

    after = tracking(cwd, run_name="after")
    after.start_run([])
    after.close("done")
    status = {name: run.info.status for name, run in runs(cwd).items()}
    bystander.close("done")
    assert status == {
        "victim": "KILLED",
        "node/victim": "KILLED",
        "bystander": "RUNNING",
        "mask/128": "RUNNING",
        "after": "FINISHED",
    }
