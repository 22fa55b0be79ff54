"""Checkpoints: whole or not there, on renaming and on other filesystems."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from stages.training import checkpoint
from stages.training.checkpoint import (
    CheckpointMismatchError,
    State,
    check_same_run,
    differences,
    load_latest,
    save,
)

LOCAL = LocalFileSystem()


def state(step: int, **changes: object) -> State:
    values = {
        "step": step, "epoch": 1, "row": 32, "tokens_seen": 999, "figures": {"a": 0.5},
        "fingerprint": "aa",
        "vocabulary_digest": "vv", "config": {"train": {"steps": 9}}, "rounding": {"threads": 2},
    }  # fmt: skip
    return State(**{**values, **changes})  # type: ignore[arg-type]


def write(folder: Path, step: int, keep: int = 2, filesystem=LOCAL, attempt: str = "one") -> str:
    weights = {"w": torch.full((3, 5), float(step)), "b": torch.arange(5.0)}
    moments = {"exp_avg/w": torch.ones(3, 5) * 0.5, "step/w": torch.tensor(float(step))}
    return save(filesystem, str(folder), attempt, state(step), weights, moments, keep)


def test_what_is_saved_comes_back(tmp_path):
    write(tmp_path / "new", 7)
    found = load_latest(LOCAL, str(tmp_path / "new"), pytest.fail)
    assert found is not None and found.state == state(7)
    assert torch.equal(found.weights["w"], torch.full((3, 5), 7.0))
    assert found.moments["step/w"].shape == () and found.moments["step/w"] == 7


def test_nothing_there(tmp_path):
    assert load_latest(LOCAL, str(tmp_path / "absent"), pytest.fail) is None


def test_the_newest_are_kept(tmp_path):
    for step in (5, 10, 100, 95_000_000, 123_456_789):
        write(tmp_path, step, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-123456789", "step-95000000"]
    found = load_latest(LOCAL, str(tmp_path), pytest.fail)
    assert found is not None and found.state.step == 123_456_789


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("file", ["weights.safetensors", "optimiser.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [shorten, flip_a_bit, Path.unlink])
def test_a_damaged_one_is_passed_over(tmp_path, file, damage):
    write(tmp_path, 5)
    path = write(tmp_path, 10)
    damage(Path(path) / file)
    notices: list[str] = []
    found = load_latest(LOCAL, str(tmp_path), notices.append)
    assert found is not None and found.state.step == 5
    assert len(notices) == 1 and path in notices[0]


def test_written_again_it_replaces_the_damaged_one(tmp_path):
    write(tmp_path, 5)
    path = Path(write(tmp_path, 10))
    (path / "state.json").unlink()
    write(tmp_path, 10, attempt="two")
    found = load_latest(LOCAL, str(tmp_path), pytest.fail)
    assert found is not None and found.state.step == 10


def test_a_write_that_was_broken_off_is_not_seen_and_cleared_away(tmp_path):
    write(tmp_path, 5)
    shutil.copytree(write(tmp_path, 10), tmp_path / "tmp-step-00000010.one")
    shutil.rmtree(tmp_path / "step-00000010")
    (tmp_path / "tmp-step-00000010.one/state.json").unlink()
    assert len(list(tmp_path.iterdir())) == 2
    found = load_latest(LOCAL, str(tmp_path), pytest.fail)
    assert found is not None and found.state.step == 5
    write(tmp_path, 15, attempt="two")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000005", "step-00000015"]


def test_what_could_not_be_written_takes_no_room(tmp_path, monkeypatch):
    write(tmp_path, 5)
    monkeypatch.setattr(checkpoint, "STATE", "no/such/folder/state.json")
    with pytest.raises(OSError):
        write(tmp_path, 10)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]


def test_object_stores_need_no_renaming(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = PyFileSystem(FSSpecHandler(fsspec.filesystem("memory")))
    folder = Path(f"/{tmp_path.name}")
    write(folder, 5, filesystem=memory)
    path = write(folder, 10, filesystem=memory, attempt="two")
    assert path.endswith("step-00000010.two")
    found = load_latest(memory, str(folder), pytest.fail)
    assert found is not None and found.state.step == 10
    memory.delete_file(f"{path}/state.json")
    notices: list[str] = []
    found = load_latest(memory, str(folder), notices.append)
    assert found is not None and found.state.step == 5 and len(notices) == 1


def test_another_run_is_refused_with_the_difference():
    saved = state(3, config={"train": {"steps": 9, "precision": "bf16"}, "seed": 1})
    check_same_run(saved, "aa", {"anything": 1})
    with pytest.raises(CheckpointMismatchError) as caught:
        check_same_run(saved, "bb", {"train": {"steps": 10, "precision": "bf16"}})
    assert "seed was 1, is 'absent'; train.steps was 9, is 10" in str(caught.value)
    assert "precision" not in str(caught.value)
    with pytest.raises(CheckpointMismatchError, match="same configuration, other inputs"):
        check_same_run(saved, "bb", saved.config)


def test_tuples_equal_the_lists_of_json():
    assert differences({"a": [1, 2]}, {"a": (1, 2)}) == []
    assert differences({"a": {"b": None}}, {"a": {"b": None}}) == []
    assert differences({"a": None}, {}) == ["a was None, is 'absent'"]


def test_the_state_is_readable_without_us(tmp_path):
    content = json.loads((Path(write(tmp_path, 4)) / "state.json").read_text())
    assert content["state"]["step"] == 4
    assert set(content["files"]) == {"weights.safetensors", "optimiser.safetensors"}


def test_the_best_is_kept_beside_the_newest(tmp_path):
    for step, score in ((1, 5.0), (2, None), (3, 4.0), (4, 4.5), (5, None), (6, 4.0), (7, None)):
        save(
            LOCAL, str(tmp_path), "one", state(step, score=score), {"w": torch.ones(2)}, {},
            keep=2, keep_best=True,
        )  # fmt: skip
    assert sorted(int(p.name[5:]) for p in tmp_path.iterdir()) == [6, 7]
    save(LOCAL, str(tmp_path), "one", state(8), {}, {}, keep=1, keep_best=True)
    assert sorted(int(p.name[5:]) for p in tmp_path.iterdir()) == [6, 8]
    save(LOCAL, str(tmp_path), "one", state(9), {}, {}, keep=1)
    assert [int(p.name[5:]) for p in tmp_path.iterdir()] == [9]
