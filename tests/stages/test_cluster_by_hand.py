"""A cluster that somebody started by hand: a head and a second node of one CPU each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, SMALL, Line
from tests.ray_by_hand import RayByHand

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayByHand]:
    cluster = RayByHand(tmp_path_factory.mktemp("home"))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def by_hand(started: RayByHand) -> RayByHand:
    """Both nodes; begun anew when a test before has lost one."""
    if not started.runs():
        started.stop()
    while len(started.nodes) < 2:
        started.start(cpus=1)
    return started


def digests(store: Path) -> dict[str, Any]:
    found = (json.loads(path.read_text()) for path in store.rglob("manifest.json"))
    return {manifest["node"]: manifest["output_digest"] for manifest in found}


@pytest.mark.timeout(600)
def test_both_nodes_work_and_the_results_are_those_of_one_machine(
    line: Line, by_hand: RayByHand, corpus: Path, tmp_path: Path
) -> None:
    (by_hand.path / "model").mkdir()
    (by_hand.path / "model/__init__.py").write_text("raise RuntimeError('not ours')\n")
    done = subprocess.Popen(
        [
            *(sys.executable, "-m", "pipeline", "run", *SMALL, f"corpus.paths=['{corpus}']"),
            *("--until", "pretrain", f"cluster.address={by_hand.address}"),
            *("cluster.train_workers=2", "train.steps=10", "tracking.enabled=false"),
            # A process that waits for its next task has another title.
            "speed.workers=actors",
        ],
        cwd=tmp_path,
        env={**by_hand.environment, "PYTHONPATH": str(ROOT)},
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
    assert by_hand.runs()


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
        while not os.path.exists(f"{self.folder}/go"):
            time.sleep(0.02)
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

address, folder, *deaths = sys.argv[1:]
cluster = Cluster(ClusterConfig(address=address, num_cpus=2))
cluster.start()
context = SimpleNamespace(
    granted=Granted(2, 0), stop=StopSignal(), progress=SimpleNamespace(note=print),
    node=SimpleNamespace(settings={}),
)
for dies in deaths:
    jobs = [{"number": n, "dies": dies if n == 2 else "no"} for n in range(6)]
    arguments = {"folder": f"{folder}/{dies}"}
    try:
        done = [r["number"] for r in run_jobs(context, "frail:Frail", arguments, jobs)]
        print(json.dumps(sorted(done)))
    except StageError as error:
        print("failed:", error)
    print("END")
cluster.stop()
"""


def drive(ray: RayByHand, folder: Path, *deaths: str) -> subprocess.Popen[str]:
    """Six jobs for each of `deaths` in turn, in a folder of that name; they wait for `go` there."""
    (ray.path / "frail.py").write_text(FRAIL)
    for dies in deaths:
        (folder / dies).mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", DRIVE, ray.address, str(folder), *deaths],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ray.environment, "PYTHONPATH": f"{ROOT}:{ray.path}"},
    )


@pytest.mark.timeout(400)
def test_a_worker_that_dies_is_replaced_but_not_for_ever(
    shared_ray: RayByHand, tmp_path: Path
) -> None:
    driver = drive(shared_ray, tmp_path, "once", "always")
    for dies in ("once", "always"):
        (tmp_path / dies / "go").touch()
    out, err = driver.communicate(timeout=350)
    once, always, _ = out.split("END\n")
    assert once.splitlines()[-1] == "[0, 1, 2, 3, 4, 5]", (out, err)
    assert once.count("lost a worker process") == 1
    assert "failed: worker processes died 4 times" in always, (out, err)
    for dies, times in (("once", 2), ("always", 4)):
        assert sum(p.stat().st_size for p in (tmp_path / dies).glob("2-*")) == times
    assert shared_ray.runs()


@pytest.mark.timeout(400)
def test_the_loss_of_a_node_costs_the_jobs_on_it(by_hand: RayByHand, tmp_path: Path) -> None:
    driver = drive(by_hand, tmp_path, "no")
    try:
        folder = tmp_path / "no"
        deadline = time.monotonic() + 120
        while len({p.name.partition("-")[2] for p in folder.glob("*-*")}) < 2:
            assert driver.poll() is None and time.monotonic() < deadline, driver.communicate()
            time.sleep(0.1)
        processes = by_hand.processes(1)
        (raylet,) = (p for p in processes if Path(p.exe()).name == "raylet")
        raylet.kill()
        # A job in the middle of it ends with its worker, and not because it is told to.
        psutil.wait_procs(processes, timeout=60)
        (folder / "go").touch()
        out, err = driver.communicate(timeout=200)
    finally:
        driver.kill()
    assert out.splitlines()[-2] == "[0, 1, 2, 3, 4, 5]", (out, err)
    assert "lost 1 of 2 nodes" in out
    # Ray's own words of it, twenty lines each, stay in its files.
    assert "(raylet)" not in out and "(raylet)" not in err
