"""Checkpoints beside the training: what they hold, what they wait for, and disks that fail."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem as FsspecLocal
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem
from safetensors.torch import load

from stages.training import saving
from stages.training.loop import pretrain
from stages.training.saving import CheckpointWriteError, full_disk
from stages.training.tensor_files import read_tensors, write_tensors


class Disk(FsspecLocal):
    """A folder as an object store gives it; it can be full, broken or slow."""

    def __init__(self) -> None:
        super().__init__(auto_mkdir=True, skip_instance_cache=True)
        self.full = False
        self.failures: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str, mode: str = "rb", **rest: Any) -> Any:
        if "w" in mode:
            assert self.gate.wait(60)
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if path.endswith("state.json") and self.failures:
                number = self.failures.pop(0)
                if number:
                    raise OSError(number, os.strerror(number), path)
        return super().open(path, mode, **rest)

    def filesystem(self) -> PyFileSystem:
        return PyFileSystem(FSSpecHandler(self))


EVERY_5 = {"steps": 30, "checkpoint_every_steps": 5}


def test_a_checkpoint_holds_the_step_it_is_of_and_training_goes_on_meanwhile(make_job, recorder):
    disk = Disk()
    disk.gate.clear()

    class Slow(recorder):
        def log(self, step, values):
            super().log(step, values)
            if step == 9:
                assert not self.checkpoints
                disk.gate.set()

    undisturbed, hooks, resumed = recorder(), Slow(), recorder()
    whole = pretrain(make_job(train=EVERY_5, folder="whole"), undisturbed)
    hooks._break_at = 10
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=EVERY_5, checkpoint_filesystem=disk.filesystem()), hooks)
    assert hooks.checkpoints == [5]
    job = make_job(train=EVERY_5, checkpoint_filesystem=disk.filesystem())
    rest = pretrain(job, resumed)
    assert rest.resumed_from == 5
    assert resumed.losses() == {s: v for s, v in undisturbed.losses().items() if s > 5}
    for name, moment in rest.moments.items():
        assert torch.equal(moment, whole.moments[name]), name


def test_a_full_disk_ends_the_run_at_the_next_step_and_costs_no_more_than_that(make_job, recorder):
    disk = Disk()

    class Filling(recorder):
        def log(self, step, values):
            super().log(step, values)
            disk.full = step >= 12

    job = make_job(train=EVERY_5, checkpoint_filesystem=disk.filesystem())
    hooks, began = Filling(), time.monotonic()
    with pytest.raises(CheckpointWriteError) as caught:
        pretrain(job, hooks)
    assert time.monotonic() - began < 60
    said = str(caught.value)
    assert "checkpoint of step 15" in said and os.strerror(errno.ENOSPC) in said
    assert "train.keep_checkpoints=2" in said and full_disk(caught.value)
    assert 15 <= max(hooks.losses()) <= 20
    assert sorted(p.name for p in Path(job.checkpoint_folder).iterdir()) == [
        "step-00000005.first", "step-00000010.first",
    ]  # fmt: skip
    disk.full = False
    assert pretrain(job, recorder()).resumed_from == 10


@pytest.mark.parametrize(("failures", "ends"), [([errno.EIO] * 2, False), ([errno.EIO] * 3, True)])
def test_failures_are_told_and_too_many_in_a_row_end_the_run(make_job, recorder, failures, ends):
    disk = Disk()
    disk.failures = [0, *failures]
    hooks = recorder()
    job = make_job(train=EVERY_5, checkpoint_filesystem=disk.filesystem())
    if ends:
        with pytest.raises(CheckpointWriteError, match=r"step 20 .* nor could the 2 before it"):
            pretrain(job, hooks)
        assert hooks.checkpoints == [5]
    else:
        pretrain(job, hooks)
        assert hooks.checkpoints == [5, 20, 25, 30]
    assert [notice.split(" could")[0] for notice in hooks.notices] == [
        f"the checkpoint of step {step}" for step in (10, 15)
    ]


@pytest.mark.parametrize("failures", [1, saving.MAX_FAILURES])
def test_the_checkpoint_of_a_stop_is_tried_again(make_job, recorder, failures):
    disk = Disk()
    disk.failures = [errno.EIO] * failures
    job = make_job(checkpoint_filesystem=disk.filesystem())
    hooks = recorder(stop_at=7)
    if failures < saving.MAX_FAILURES:
        assert pretrain(job, hooks).stopped
        assert hooks.checkpoints == [7] and len(hooks.notices) == 1
    else:
        with pytest.raises(CheckpointWriteError):
            pretrain(job, hooks)


def test_a_finished_run_is_not_lost_for_its_last_checkpoint(make_job, recorder):
    disk = Disk()
    disk.full = True
    hooks = recorder()
    outcome = pretrain(make_job(train={"steps": 3}, checkpoint_filesystem=disk.filesystem()), hooks)
    assert outcome.step == 3 and not outcome.stopped
    assert len(hooks.notices) == 1 and os.strerror(errno.ENOSPC) in hooks.notices[0]


def test_a_full_disk_is_found_behind_other_errors():
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as error:
            raise ValueError("something else") from error
    except ValueError as error:
        assert full_disk(error)
    assert not full_disk(OSError(errno.EIO, "broken")) and not full_disk(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensor_files_are_those_of_safetensors(tmp_path, dtype):
    tensors = {
        "scalar": torch.tensor(3).to(dtype),
        "turned": torch.arange(12).reshape(3, 4).to(dtype).T,
        "empty": torch.zeros(0, 5, dtype=dtype),
        "ä": torch.ones(3, dtype=dtype),
    }
    path = tmp_path / "file.safetensors"
    with path.open("wb") as stream:
        facts = write_tensors(stream, tensors)
    assert facts["bytes"] == path.stat().st_size
    for found in (load(path.read_bytes()), read_tensors(LocalFileSystem(), str(path))):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype and torch.equal(found[name], tensor), name
