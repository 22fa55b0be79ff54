"""Ray Train around a run: what one worker meets alone, and GPUs that torch cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.stage import StageError, UserError
from stages.predict_ray import device_of as device_of_actor
from stages.remote import device_of
from stages.training.device import Machine
from tests.conftest import ROOT, Line, environment_of, runner
from tests.ray_by_hand import RayByHand

ALONE = """
import sys
from types import SimpleNamespace as Some

import torch.distributed as dist

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
settings = {"train_workers": [2, 2], "device": "auto", "cpus_per_worker": 0.5, "num_cpus": None}
context = Some(
    node=Some(name="pretrain", settings={"cluster": settings}),
    granted=Granted(1.0, 0.0),
    stop=StopSignal(),
    metrics=Log(),
    progress=Log(),
    attempt="first",
    output=Some(run_name="run", work=folder, is_local=True, fs=None),
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
        made = {path.parents[1].name for path in tmp_path.glob("runs/store/**/manifest.json")}
        assert {"64", "evaluate"} <= made
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
    assert device_of_actor("auto", 2.0, some) == device_of_actor("auto", 2.0, None) == "cuda"
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
    saver.finish(required=True)
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
