"""A cluster that somebody started by hand: a head and a second node of one CPU each."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, SMALL, Line

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef" * 4


class ByHand:
    """`ray start` of two nodes, as in the documentation, with the token that Ray wants."""

    def __init__(self, home: Path, path: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        (home / ".ray").mkdir()
        (home / ".ray/auth_token").write_text(TOKEN)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.environment: Mapping[str, str] = kept | {"HOME": str(home), "PYTHONPATH": str(ROOT)}
        # Of the workers: what a test wants to run there. It holds a `model` that raises, too.
        self.path = path
        # Short, because of the length of socket paths.
        self.session = Path(tempfile.mkdtemp(prefix="clz", dir="/tmp"))
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        node = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words),
                *("--num-cpus", "1", "--object-store-memory", "100000000"),
                *("--min-worker-port", "0", "--max-worker-port", "0"),
                *("--dashboard-agent-listen-port", "0", "--disable-usage-stats"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**self.environment, "RAY_AUTH_MODE": "token", "PYTHONPATH": str(self.path)},
        )
        self.nodes.append(node)
        for _ in range(600):
            assert node.poll() is None, "the node did not start"
            if len(list(self.session.glob("session_2*/sockets/raylet*"))) == len(self.nodes):
                return
            time.sleep(0.1)
        raise AssertionError("the node did not start")

    def nodes_that_run(self, title: str) -> set[int]:
        """Numbers of the nodes that have a process of this title now."""
        found = set()
        for number, node in enumerate(self.nodes):
            for process in psutil.Process(node.pid).children(recursive=True):
                try:
                    if title in " ".join(process.cmdline()):
                        found.add(number)
                except psutil.Error:
                    continue
        return found

    def stop(self) -> None:
        """End every process of both nodes, by their ids: workers have sessions of their own."""
        processes = []
        for node in self.nodes:
            try:
                head = psutil.Process(node.pid)
                processes += [*head.children(recursive=True), head]
            except psutil.NoSuchProcess:
                continue
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for node in self.nodes:
            node.wait()
        shutil.rmtree(self.session, ignore_errors=True)


@pytest.fixture
def by_hand(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByHand]:
    cluster = ByHand(tmp_path_factory.mktemp("home"), path=tmp_path)
    try:
        host_port = cluster.address.split(":")
        head = ("--head", "--port", host_port[1], "--include-dashboard", "false")
        cluster.start(*head, "--temp-dir", str(cluster.session))
        cluster.start("--address", cluster.address)
        yield cluster
    finally:
        cluster.stop()


def digests(store: Path) -> dict[str, Any]:
    found = (json.loads(path.read_text()) for path in store.rglob("manifest.json"))
    return {manifest["node"]: manifest["output_digest"] for manifest in found}


@pytest.mark.timeout(600)
def test_both_nodes_work_and_the_results_are_those_of_one_machine(
    line: Line, by_hand: ByHand, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/__init__.py").write_text("raise RuntimeError('not ours')\n")
    done = subprocess.Popen(
        [
            *(sys.executable, "-m", "pipeline", "run", *SMALL, f"corpus.paths=['{corpus}']"),
            *("--until", "pretrain", f"cluster.address={by_hand.address}"),
            *("cluster.train_workers=2", "tracking.enabled=false"),
            # A process that waits for its next task has another title.
            "speed.workers=actors",
        ],
        cwd=tmp_path,
        env=by_hand.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    prepared: set[int] = set()
    trained: set[int] = set()
    while done.poll() is None:
        trained |= by_hand.nodes_that_run("RayTrainWorker")
        prepared |= by_hand.nodes_that_run("MapWorker")
        time.sleep(0.3)
    said = done.communicate()[1]
    assert done.returncode == 0, said
    assert "Warning" not in said
    calm, here = digests(line.store), digests(tmp_path / "runs/store")
    data = set(here) - {"pretrain/64"}
    assert len(data) == 5 and {n: here[n] for n in data} == {n: calm[n] for n in data}
    assert prepared == {0, 1} and trained == {0, 1}
    assert re.search(r"pairs/64: jobs on [12] of 2 nodes: \d", said), said
    assert all(node.poll() is None for node in by_hand.nodes)


FRAIL = """
import os, time

class Frail:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, job):
        import ray
        node = ray.get_runtime_context().get_node_id()
        open(f"{self.folder}/{job['number']}-{node}", "a").write("x")
        if job["dies"] == "always" or job["dies"] == "once" and not os.path.exists(
            f"{self.folder}/died"
        ):
            open(f"{self.folder}/died", "w").close()
            os._exit(1)
        time.sleep(job["seconds"])
        return {"number": job["number"]}
"""

DRIVE = """
import json, sys
from types import SimpleNamespace
from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig
from pipeline.stage import Granted, StageError
from pipeline.stop import StopSignal
from stages.parallel import run_jobs

address, folder, dies, seconds = sys.argv[1:]
cluster = Cluster(ClusterConfig(address=address or None, num_cpus=2, object_store_mb=100))
cluster.start()
context = SimpleNamespace(
    granted=Granted(2, 0), stop=StopSignal(), progress=SimpleNamespace(note=print),
    node=SimpleNamespace(settings={}),
)
jobs = [
    {"number": n, "seconds": float(seconds), "dies": dies if n == 2 else "no"} for n in range(6)
]
try:
    done = [r["number"] for r in run_jobs(context, "frail:Frail", {"folder": folder}, jobs)]
    print(json.dumps(sorted(done)))
except StageError as error:
    print("failed:", error)
cluster.stop()
"""


def drive(tmp_path: Path, address: str, dies: str, seconds: float, **environment: str) -> Any:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "frail.py").write_text(FRAIL)
    return subprocess.Popen(
        [sys.executable, "-c", DRIVE, address, str(tmp_path / "jobs"), dies, str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", **environment},
    )


@pytest.mark.parametrize("dies", ["once", "always"])
def test_a_worker_that_dies_is_replaced_but_not_for_ever(dies: str, tmp_path: Path) -> None:
    out, err = drive(tmp_path, "", dies, 0.1).communicate(timeout=280)
    tried = sum(p.stat().st_size for p in (tmp_path / "jobs").glob("2-*"))
    if dies == "once":
        assert out.splitlines()[-1] == "[0, 1, 2, 3, 4, 5]", (out, err)
        assert out.count("lost a worker process") == 1
        assert tried == 2
    else:
        assert "failed: worker processes died 4 times" in out, (out, err)
        assert tried == 4


@pytest.mark.timeout(400)
def test_the_loss_of_a_node_costs_the_jobs_on_it(by_hand: ByHand, tmp_path: Path) -> None:
    environment = {**by_hand.environment, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    driver = drive(tmp_path, by_hand.address, "no", 4, **environment)
    try:
        folder = tmp_path / "jobs"
        deadline = time.monotonic() + 120
        while len({p.name.partition("-")[2] for p in folder.glob("*-*")}) < 2:
            assert driver.poll() is None and time.monotonic() < deadline, driver.communicate()
            time.sleep(0.1)
        (raylet,) = (
            p
            for p in psutil.Process(by_hand.nodes[1].pid).children(recursive=True)
            if Path(p.exe()).name == "raylet"
        )
        raylet.kill()
        out, err = driver.communicate(timeout=200)
    finally:
        driver.kill()
    assert out.splitlines()[-1] == "[0, 1, 2, 3, 4, 5]", (out, err)
    assert "lost 1 of 2 nodes" in out
    # Ray's own words of it, twenty lines each, stay in its files.
    assert "(raylet)" not in out and "(raylet)" not in err
