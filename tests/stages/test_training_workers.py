"""Ray Train around a run: what one worker meets alone, and GPUs that torch cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.stage import Granted, StageError, UserError
from stages.predict_ray import device_of as device_of_actor
from stages.remote import device_of
from stages.training.device import Machine
from stages.training_workers import (
    _readable,
    _uses_gpus,
    workers_within,
)
from tests.conftest import ROOT, Line, environment_of, runner
from tests.ray_by_hand import RayByHand

ALONE = """
import sys
from types import SimpleNamespace as Some

import torch.distributed as dist
from pyarrow.fs import LocalFileSystem

from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig
from pipeline.stage import Granted, StageError
from pipeline.stop import StopSignal
from stages.training.row_groups import DataError
from stages.training_worker import as_worker
from stages.training_workers import train_on_workers

address, folder = sys.argv[1:]


class Log:
    def log(self, values, step):
        pass

    start = advance = log

    def note(self, text):
        print("note:", text)


def met_alone(plan, sender, rank, local_rank):
    with open(f"{folder}/starts", "a") as starts:
        starts.write(f"{rank}\\n")
    dist.barrier()
    if rank == 1:
        raise DataError("train-00001.parquet, row group 2 is damaged")
    dist.barrier()
    raise AssertionError("rank 1 came")


cluster = Cluster(ClusterConfig.model_validate({"address": address}))
cluster.start()
settings = {
    "train_workers": [2, 2], "device": "auto", "cpus_per_worker": 0.5, "num_cpus": None,
    "num_gpus": None, "may_grow": True,
}
context = Some(
    node=Some(name="pretrain", settings={"cluster": settings}),
    granted=Granted(1.0, 0.0),
    stop=StopSignal(),
    metrics=Log(),
    progress=Log(),
    attempt="first",
    output=Some(run_name="run", work=folder, is_local=True, fs=LocalFileSystem()),
)
try:
    train_on_workers(context, lambda config: as_worker(config, met_alone), lambda threads, gpu: 0)
except StageError as error:
    print(error)
finally:
    cluster.stop()
"""


@pytest.mark.slow
def test_what_one_worker_meets_alone_ends_the_run(shared_ray: RayByHand, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, shared_ray.address, str(tmp_path)],
        env=environment_of(shared_ray),
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1]
    assert last == "train-00001.parquet, row group 2 is damaged", done.stdout + done.stderr
    # Started again, no worker gets as far.
    assert sorted((tmp_path / "starts").read_text().split()) == ["0", "1"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPUs of this machine")
def test_gpus_that_torch_cannot_use(
    line: Line, corpus: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As with a build of torch for CPUs on a machine with GPUs."""
    ray = RayByHand(tmp_path_factory.mktemp("home"))
    try:
        ray.start(cpus=2, gpus=1)
        line.copy(tmp_path / "runs/store", without=["pretrain", "evaluate", "export"])
        run = runner(corpus, tmp_path, ray)
        done = run("run", "--until", "evaluate", "tracking.enabled=false")
        assert f"torch {torch.__version__} sees no GPU" in done.stderr
        assert "training on CPUs" in done.stderr
        made = {
            "/".join(path.parts[-4:-2]) for path in tmp_path.glob("runs/store/**/manifest.json")
        }
        assert {"pretrain/64", "store/evaluate"} <= made
        words = ["tracking.enabled=false", "train.steps=5", "cluster.device=cuda"]
        asked = run("run", "--until", "pretrain", *words, check=1)
        assert "cluster.device=cuda: torch" in asked.stdout + asked.stderr
        assert "Traceback" not in asked.stdout + asked.stderr
    finally:
        ray.stop()


def test_a_task_without_a_gpu_is_told_so() -> None:
    assert [device_of(asked, 1.0) for asked in ("auto", "cuda", "cpu")] == ["auto", "cuda", "cpu"]
    assert [device_of(asked, 0.0) for asked in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(StageError, match=r"cluster\.num_gpus"):
        device_of("cuda", 0.0)


def test_actors_that_predict() -> None:
    some, none = Machine(2, False), Machine(0, False)
    assert device_of_actor("auto", 2.0, some) == "cuda"
    # On machines that this one knows nothing of: what torch finds in the actor.
    assert device_of_actor("auto", 2.0, None) == "auto"
    # A build of torch for CPUs; a run that may use none; a driver with a GPU, a cluster without.
    assert device_of_actor("auto", 2.0, none) == "cpu"
    assert device_of_actor("auto", 0.0, some) == device_of_actor("auto", 0.0, None) == "cpu"
    # An actor sees the GPU that it was given alone.
    assert device_of_actor("cuda:1", 2.0, some) == "cuda"
    assert device_of_actor("mps", 0.0, none) == "mps" and device_of_actor("cpu", 2.0, some) == "cpu"
    with pytest.raises(UserError, match="Ray has no GPU"):
        device_of_actor("cuda", 0.0, some)


RANK = """
import sys

import torch
import torch.distributed as dist

from stages.finetune_worker import _by_rank_0
from stages.training.saving import CheckpointWriteError

rank, folder, fails = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "fails"
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)


def work():
    open(f"{folder}/by-{rank}", "w").close()
    if fails:
        raise OSError(28, "No space left on device")


try:
    _by_rank_0(work, rank, torch.device("cpu"))
    print("goes on")
except (OSError, CheckpointWriteError) as error:
    print(type(error).__name__)
"""


FINISH = """
import sys

import torch
import torch.distributed as dist
from pyarrow.fs import LocalFileSystem

from stages.training import checkpoint
from stages.training.job import NoHooks, TrainConfig
from stages.training.saving import CheckpointWriteError, Saver


class Job:
    fingerprint = vocabulary_digest = ""
    group, attempt = "train", "one"
    train = TrainConfig(steps=1, global_batch_size=1, learning_rate=1e-3)
    checkpoint_filesystem = LocalFileSystem()

    def described(self):
        return {}


rank, folder, fails = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "fails"
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
Job.checkpoint_folder = f"{folder}/by-0"
if fails and rank == 0:
    # A file where the folder would be.
    open(Job.checkpoint_folder, "w").close()
model = torch.nn.Linear(2, 2)
saver = Saver(Job(), NoHooks(), model, torch.optim.AdamW(model.parameters()), {})
saver.save(1, (0, 0), 0, {})
try:
    saver.finish(required=True, goes_on=True)
    print("goes on")
except CheckpointWriteError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("code", "how", "said"),
    [
        (RANK, "fails", ["OSError", "CheckpointWriteError"]),
        (RANK, "works", ["goes on", "goes on"]),
        (FINISH, "fails", ["CheckpointWriteError", "CheckpointWriteError"]),
        (FINISH, "works", ["goes on", "goes on"]),
    ],
    ids=["seed-fails", "seed-works", "checkpoint-fails", "checkpoint-works"],
)
def test_no_worker_waits_for_one_that_cannot_write(
    code: str, how: str, said: list[str], tmp_path: Path
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path), how],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=120)[0].strip() for rank in ranks] == said
    assert [path.name for path in tmp_path.glob("by-*")] == ["by-0"]


def test_a_range_of_workers_stays_within_both_caps() -> None:
    assert workers_within((1, 8), 2.0, None) == (1, 8)
    assert workers_within((1, 8), 2.0, 6) == (1, 3)
    assert workers_within((1, 8), 2.0, None, 2.0) == (1, 2)
    assert workers_within((1, 8), 2.0, 6, 2.0) == (1, 2)
    # The fewest are asked for whatever the caps: the run then waits, or was refused before.
    assert workers_within((4, 8), 2.0, 6, 2.0) == (4, 4)


def uses_gpus(
    granted: float, least: int, most: int, seen: int = 8, **cluster: object
) -> tuple[bool, list[str]]:
    """What `_uses_gpus` decides and says, where torch sees so many GPUs in a worker."""
    notes: list[str] = []
    settings = {"device": "auto", "num_gpus": None, "may_grow": False, **cluster}
    context = SimpleNamespace(
        node=SimpleNamespace(settings={"cluster": settings}),
        granted=Granted(8.0, granted),
        progress=SimpleNamespace(note=notes.append),
    )
    with pytest.MonkeyPatch.context() as patch:
        found = {"gpus": seen, "version": "2.13"}
        patch.setattr("stages.training_workers.run_remote", lambda *_: found)
        return _uses_gpus(context, least, most), notes  # type: ignore[arg-type]


def test_gpus_left_idle_are_said() -> None:
    used, notes = uses_gpus(8.0, 1, 1)
    assert used and notes == [
        "training uses 1 of 8 GPUs: cluster.train_workers=8 would use them all"
    ]
    assert uses_gpus(8.0, 8, 8) == (True, []) == uses_gpus(8.0, 1, 8)
    assert uses_gpus(0.0, 1, 1) == (False, [])
    used, notes = uses_gpus(2.0, 4, 4)
    assert not used and "4 workers and 2 GPUs: training on CPUs" in notes[0]


def test_gpus_that_a_cluster_may_still_get_are_waited_for() -> None:
    used, notes = uses_gpus(0.0, 4, 4, device="cuda", may_grow=True)
    assert used and "waiting for 4 GPUs" in notes[0]
    # Not where the run itself may use no more, nor on a machine of our own.
    for cluster in ({"may_grow": True, "num_gpus": 2}, {"may_grow": False}):
        with pytest.raises(StageError, match="4 workers need as many GPUs"):
            uses_gpus(2.0, 4, 4, device="cuda", **cluster)
    with pytest.raises(StageError, match=r"1 worker needs .* Raise cluster\.num_gpus, if"):
        uses_gpus(0.0, 1, 1, device="cuda", num_gpus=0, may_grow=True)


def test_the_worker_that_died_is_named_before_those_that_lost_it() -> None:
    from ray.exceptions import OutOfMemoryError
    from ray.train import ControllerError
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    closed = RuntimeError("Traceback ...\nRuntimeError: gloo: Connection closed by peer [::1]:80")
    own = ValueError("Traceback ...\nValueError: a batch of 3")
    killed = OutOfMemoryError("the worker was killed: out of memory")
    died = WorkerHealthCheckFailedError("not healthy", killed)
    failures = {0: closed, 1: own, 3: died}

    def said() -> str:
        return str(_readable(SimpleNamespace(worker_failures=failures)))  # type: ignore[arg-type]

    assert said().startswith("training worker 3 failed (3 of the workers failed): ")
    assert "out of memory" in said()
    del failures[3]
    assert said().startswith("training worker 1 failed (2 of")
    del failures[1]
    assert said().startswith("training worker 0 failed: ")
    started = ControllerError(ValueError("the workers did not start"))
    assert "the workers did not start" in str(_readable(started))
    assert str(_readable(ControllerError(TimeoutError()))).endswith("TimeoutError()")


OFTEN = """
import os
import signal
import sys
import time
from types import SimpleNamespace as Some

from pyarrow.fs import LocalFileSystem

from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig
from pipeline.stage import Granted, StageError
from pipeline.stop import StopSignal
from stages import training_workers
from stages.training_workers import train_on_workers

# Fewer than there are, as each takes seconds.
training_workers.MAX_FAILURES = 1
address, folder, saves = sys.argv[1:]


class Log:
    def log(self, values, step):
        pass

    start = advance = log

    def note(self, text):
        print("note:", text)


def dies(config):
    starts = len(os.listdir(f"{folder}/starts"))
    open(f"{folder}/starts/{starts}", "w").close()
    if saves == "saves" and starts == 1:
        os.makedirs(f"{folder}/checkpoints/step-{starts:08}")
    time.sleep(1)
    if starts < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"stopped": False, "step": 9}


os.makedirs(f"{folder}/starts")
cluster = Cluster(ClusterConfig.model_validate({"address": address}))
cluster.start()
settings = {
    "train_workers": [1, 1], "device": "cpu", "cpus_per_worker": 0.5, "num_cpus": None,
    "num_gpus": None, "may_grow": True,
}
context = Some(
    node=Some(
        name="pretrain",
        settings={"cluster": settings, "rounding": {"micro_batch_tokens": 8192}},
    ),
    granted=Granted(1.0, 0.0),
    stop=StopSignal(),
    metrics=Log(),
    progress=Log(),
    attempt="first",
    output=Some(run_name="often", work=folder, is_local=True, fs=LocalFileSystem()),
)
try:
    train_on_workers(context, dies, lambda threads, gpu: 0)
    print("trained")
except StageError as error:
    print("failed:", error)
finally:
    cluster.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("saves", ["saves", "never"])
def test_workers_may_die_often_while_checkpoints_come(
    shared_ray: RayByHand, tmp_path: Path, saves: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFTEN, shared_ray.address, str(tmp_path), saves],
        env=environment_of(shared_ray),
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1]
    starts = len(list((tmp_path / "starts").iterdir()))
    if saves == "saves":
        assert last == "trained", done.stdout + done.stderr
        assert starts == 4
        assert "training goes on from its last checkpoint" in done.stdout
    else:
        assert last.startswith("failed: processes of training workers died several times")
        assert "lower rounding.micro_batch_tokens (8192 now)" in last
        assert starts == 2


PROCESSES = """
import os
import sys
from types import SimpleNamespace as Some

from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig
from pipeline.stage import Granted
from pipeline.stop import StopSignal
from stages.remote import run_remote

cluster = Cluster(ClusterConfig.model_validate({"address": sys.argv[1]}))
cluster.start()
for gpus in (0.0, 1.0):
    context = Some(granted=Granted(1.0, gpus), stop=StopSignal(), progress=Some(note=print))
    pids = [run_remote(context, "who_runs:pid", {}) for _ in range(3)]
    print(len({found["pid"] for found in pids}))
cluster.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_that_had_a_gpu_ends_with_its_task(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Its memory on the GPU ends with it; others are used again, as imports take seconds."""
    ray = RayByHand(tmp_path_factory.mktemp("home"))
    try:
        (ray.path / "who_runs.py").write_text(
            "import os\n\ndef pid():\n    return {'pid': os.getpid()}\n"
        )
        ray.start(cpus=1, gpus=1)
        done = subprocess.run(
            [sys.executable, "-c", PROCESSES, ray.address],
            env=environment_of(ray),
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == ["1", "3"], done.stdout + done.stderr
    finally:
        ray.stop()


DRAINED = """
import os
import sys
import threading
import time
from types import SimpleNamespace as Some

from pyarrow.fs import LocalFileSystem

from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig
from pipeline.stage import Granted
from pipeline.stop import StopSignal
from stages.training_worker import DriverHooks
from stages.training_workers import train_on_workers

address, folder = sys.argv[1:]


class Log:
    def log(self, values, step):
        pass

    start = advance = log

    def note(self, text):
        print("note:", text, flush=True)


def asks(config):
    import ray
    import torch.distributed as dist

    rank = dist.get_rank()
    with open(f"{folder}/making-{rank}", "w") as file:
        file.write(ray.get_runtime_context().get_node_id())
    os.rename(f"{folder}/making-{rank}", f"{folder}/node-{rank}")
    hooks = DriverHooks(config["sender"])
    deadline = time.monotonic() + 90
    # As in training: asked on rank 0 alone, each step.
    while rank == 0 and not hooks.should_save() and time.monotonic() < deadline:
        time.sleep(0.2)
    saved = rank == 0 and time.monotonic() < deadline
    again = hooks.should_save()
    config["sender"].close()
    dist.barrier()
    return {"stopped": False, "step": 1 if saved and not again else 0}


cluster = Cluster(ClusterConfig.model_validate({"address": address}))
cluster.start()
settings = {
    "train_workers": [2, 2], "device": "cpu", "cpus_per_worker": 1, "num_cpus": None,
    "num_gpus": None, "may_grow": True,
}
context = Some(
    node=Some(name="pretrain", settings={"cluster": settings}),
    granted=Granted(2.0, 0.0),
    stop=StopSignal(),
    metrics=Log(),
    progress=Log(),
    attempt="first",
    output=Some(run_name="drained", work=folder, is_local=True, fs=LocalFileSystem()),
)
train_on_workers(context, asks, lambda threads, gpu: 0)
print("ended")
cluster.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_machine_that_is_about_to_be_taken_away_is_told_of(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ray Train has no public way to ask that does not make all workers wait: this one is ours."""
    ray = RayByHand(tmp_path_factory.mktemp("home"))
    try:
        ray.start(cpus=1)
        ray.start(cpus=1)
        run = subprocess.Popen(
            [sys.executable, "-c", DRAINED, ray.address, str(tmp_path)],
            env=environment_of(ray),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 120
        nodes = [tmp_path / "node-0", tmp_path / "node-1"]
        while not all(node.exists() for node in nodes) and time.monotonic() < deadline:
            time.sleep(0.2)
        drain = [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", ray.address),
            *("--node-id", nodes[1].read_text(), "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
            *("--reason-message", "spot", "--deadline-remaining-seconds", "300"),
        ]
        subprocess.run(drain, env=environment_of(ray), check=True, capture_output=True)
        said = run.communicate(timeout=200)[0]
        assert "about to be taken away: saving now" in said, said
        assert said.splitlines()[-1] == "ended", said
    finally:
        ray.stop()


SHRINKS = DRAINED.replace(
    DRAINED[DRAINED.index("def asks") : DRAINED.index("cluster = Cluster")],
    """def asks(config):
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    open(f"{folder}/of-{size}-rank-{rank}", "w").close()
    deadline = time.monotonic() + 120
    while size == 2 and time.monotonic() < deadline:
        dist.barrier()
        time.sleep(0.2)
    config["sender"].close()
    return {"stopped": False, "step": size}


""",
).replace('"train_workers": [2, 2]', '"train_workers": [1, 2]')


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_range_of_workers_goes_on_with_fewer(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ray = RayByHand(tmp_path_factory.mktemp("home"))
    try:
        # Ray first asks for as many as before, and waits a minute for them.
        wait = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10"}
        ray.environment = {**ray.environment, **wait}
        ray.start(cpus=1)
        ray.start(cpus=1)
        run = subprocess.Popen(
            [sys.executable, "-c", SHRINKS, ray.address, str(tmp_path)],
            env=environment_of(ray),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("of-2-rank-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert ray.nodes_that_run("RayTrainWorker") == {0, 1}
        for process in ray.processes(1):
            process.kill()
        said = run.communicate(timeout=250)[0]
        assert said.splitlines()[-1] == "ended", said
        assert {path.name for path in tmp_path.glob("of-*")} == {
            "of-2-rank-0", "of-2-rank-1", "of-1-rank-0",
        }  # fmt: skip
    finally:
        ray.stop()
