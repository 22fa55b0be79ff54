from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from toy_graph import Ran

import pipeline.lease
from pipeline.artifact import LONG_LIST
from pipeline.digest import table_digest
from pipeline.files import ArrowFiles, Files, LocalFiles, _with_retry_limit
from pipeline.stage import UserError
from pipeline.store import Artifact, ArtifactWriter, Store
from pipeline.writer import NotDeterministicError, SupersededError

KEY = "ab" * 32
BODY: dict[str, Any] = {
    "stage": "mask",
    "stage_version": 1,
    "config": {},
    "settings": {},
    "inputs": {},
    "versions": {"fingerprinted": {}, "recorded": {}},
    "source_hash": "",
    "figures": {},
    "counts": {},
    "tracking_run_id": None,
    "created": "2026-01-01",
    "seconds": 1.0,
}


def arrow_files(folder: Path) -> Files:
    """As an object store: no rename, no lock, no path on this machine."""
    return ArrowFiles(pa.fs.SubTreeFileSystem(str(folder), pa.fs.LocalFileSystem()))


@pytest.fixture(params=["local", "arrow", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "a store"))
    if request.param == "arrow":
        return Store("bucket/prefix", arrow_files(tmp_path))
    return Store("bucket/prefix", ArrowFiles(pa.fs._MockFileSystem()))


def begin(store: Store, attempt: str = "a", **options: Any) -> ArtifactWriter:
    return store.begin("mask/128", KEY, attempt, **options)


def write(writer: ArtifactWriter, names: str, text: str = "thou") -> None:
    for name in names.split():
        writer.write_bytes(name, f"{text} {name}".encode())


def test_a_table_goes_in_and_comes_out(store: Store) -> None:
    table = pa.table({"ids": pa.array([[1, 2], [3]], pa.list_(pa.uint16()))})
    writer = begin(store)
    with writer.part("train/00000.parquet") as part:
        with pq.ParquetWriter(part.stream, table.schema) as parquet:
            parquet.write_table(table)
        part.finish(digest=table_digest(table), rows=2, figures={"pairs": 1}, schema=table.schema)
    writer.write_bytes("report.html", b"<html>", content=False)
    committed = writer.commit(BODY, report={"figures": {}})
    found = store.find("mask/128", KEY)
    assert found is not None
    assert found.manifest == committed.manifest
    part_there = found.files()["train/00000.parquet"]
    assert (part_there.rows, part_there.figures) == (2, {"pairs": 1})
    assert found.manifest["rows"] == 2
    assert found.manifest["schema"] == [{"ids": "list<element: uint16>"}] or found.manifest[
        "schema"
    ] == [{"ids": "list<item: uint16>"}]
    assert pq.read_table(found.open("train/00000.parquet")).equals(table)
    assert found.damage() == {}
    assert [a.fingerprint for a in store.artifacts("mask/128")] == [KEY]
    assert list(store.nodes()) == ["mask/128"]


def test_side_files_and_order_stand_outside_the_output_digest(tmp_path: Path) -> None:
    seen = set()
    for i, names in enumerate(("x y", "y x")):
        writer = begin(Store(str(tmp_path / str(i))))
        write(writer, names)
        writer.write_bytes("report", os.urandom(8), content=False)
        seen.add(writer.commit(BODY).output_digest)
    assert len(seen) == 1


def test_a_later_attempt_finds_finished_parts_and_only_those(store: Store) -> None:
    first = begin(store)
    write(first, "a b")
    with pytest.raises(RuntimeError, match="stop"), first.part("c") as part:
        part.stream.write(b"half")
        raise RuntimeError("stop")
    with pytest.raises(ValueError, match="finish"), first.part("d") as part:
        part.stream.write(b"half")
    assert store.find("mask/128", KEY) is None
    assert store.unfinished("mask/128", KEY) == 2
    second = begin(store, "b")
    assert list(second.finished()) == ["a", "b"]
    write(second, "c")
    artifact = second.commit(BODY)
    assert list(artifact.files()) == ["a", "b", "c"]
    assert store.unfinished("mask/128", KEY) == 0


def test_a_part_without_record_is_no_part(store: Store) -> None:
    writer = begin(store)
    write(writer, "a b")
    store.files.write(f"{writer.data}/stray", b"whole, but its record was never written")
    store.files.write(f"{writer.data}/b", b"torn")
    assert list(writer.finished()) == ["a"]
    write(writer, "b")
    artifact = writer.commit(BODY)
    assert sorted(store.files.walk(artifact.data)) == ["_report.json", "a", "b"]
    assert artifact.read_bytes("b") == b"thou b"


@pytest.mark.parametrize("torn", ["", '{"name": "b", "si', "[]", "null"])
def test_a_part_with_a_torn_record_is_made_again(store: Store, torn: str) -> None:
    writer = begin(store)
    write(writer, "a b")
    store.files.write(f"{writer.making}/parts/b.json", torn.encode())
    assert list(writer.finished()) == ["a"]
    write(writer, "b")
    assert list(writer.commit(BODY).files()) == ["a", "b"]


class SyncedFiles(LocalFiles):
    """Remembers what was durable when the manifest was written."""

    def __init__(self) -> None:
        self.synced: set[str] = set()
        self.before_manifest: set[str] = set()

    def sync(self, path: str) -> None:
        super().sync(path)
        self.synced |= {f"{path}/{name}" for name in self.walk(path)}

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().write(path, data, durable=durable)
        if durable:
            self.synced.add(path)
        if path.endswith("/manifest.json"):
            self.before_manifest = set(self.synced)


def test_all_files_are_durable_before_the_manifest(tmp_path: Path) -> None:
    files = SyncedFiles()
    writer = begin(Store(str(tmp_path), files))
    write(writer, "a b deep/c")
    artifact = writer.commit(BODY)
    wanted = {f"{artifact.data}/{name}" for name in files.walk(artifact.data)}
    assert len(wanted) == 4 and wanted <= files.before_manifest


@pytest.mark.parametrize("torn", ["", '{"format": 1, "node": "mask', "[]", "null"])
def test_a_torn_manifest_is_none(store: Store, torn: str) -> None:
    writer = begin(store)
    write(writer, "a")
    path = writer.commit(BODY).path
    store.files.write(f"{path}/manifest.json", torn.encode())
    assert store.find("mask/128", KEY) is None
    assert store.artifacts("mask/128") == []


def test_a_manifest_without_its_data_or_of_another_node_is_none(store: Store) -> None:
    writer = begin(store)
    write(writer, "a")
    artifact = writer.commit(BODY)
    manifest = store.files.read(f"{artifact.path}/manifest.json")
    assert manifest is not None
    store.files.write(f"{store.root}/mask/512/{KEY}/manifest.json", manifest)
    assert store.find("mask/512", KEY) is None
    store.files.remove_tree(artifact.data)
    assert store.find("mask/128", KEY) is None


def test_a_newer_format_is_refused(store: Store) -> None:
    writer = begin(store)
    path = writer.commit(BODY).path
    newer = {**json.loads(store.files.read(f"{path}/manifest.json") or b""), "format": 2}
    store.files.write(f"{path}/manifest.json", json.dumps(newer).encode())
    with pytest.raises(UserError, match="newer version"):
        store.find("mask/128", KEY)


def test_a_zombie_harms_nothing(store: Store) -> None:
    zombie = begin(store)
    write(zombie, "a")
    half = zombie.part("b")
    with pytest.raises(SupersededError), half:
        half.stream.write(b"of the zombie")
        half.finish()
        second = begin(store, "b")
        write(second, "b")
    with pytest.raises(SupersededError):
        zombie.commit(BODY)
    artifact = second.commit(BODY)
    assert artifact.read_bytes("b") == b"thou b"
    # A lost worker of the very attempt that was committed.
    with pytest.raises(SupersededError):
        write(second, "c")
    assert artifact.damage() == {}


def test_a_part_that_another_worker_finished_is_kept(store: Store) -> None:
    writer = begin(store)
    with writer.part("a") as slow:
        slow.stream.write(b"later")
        slow.finish()
        writer.write_bytes("a", b"first")
    assert slow.result is not None
    assert slow.result.size == 5
    assert writer.commit(BODY).read_bytes("a") == b"first"


def test_force_swaps_the_manifest_last(store: Store) -> None:
    writer = begin(store)
    write(writer, "a")
    old = writer.commit(BODY)
    forced = begin(store, "b", force=True)
    write(forced, "a", "other")
    assert (
        store.find("mask/128", KEY) == old or store.find("mask/128", KEY).manifest == old.manifest
    )  # type: ignore[union-attr]
    with pytest.raises(NotDeterministicError, match="not deterministic"):
        forced.commit(BODY, expect=old.output_digest)
    assert old.read_bytes("a") == b"thou a"
    again = begin(store, "c", force=True)
    # Nothing of the rejected one is taken over, not even its name.
    assert again.finished() == {}
    assert again.generation == "data-2"
    write(again, "a")
    new = again.commit(BODY, expect=old.output_digest)
    assert new.read_bytes("a") == b"thou a"
    # A reader that holds the old manifest goes on; its folder goes when the node is next made.
    assert old.read_bytes("a") == b"thou a"
    begin(store, "d", force=True)
    assert not store.files.has_folder(old.data)


def test_parts_of_other_source_are_made_again(store: Store) -> None:
    write(begin(store, source_hash="1", same_source=True), "a")
    assert list(begin(store, "b", source_hash="1", same_source=True).finished()) == ["a"]
    assert list(begin(store, "c", source_hash="2").finished()) == ["a"]
    assert begin(store, "d", source_hash="3", same_source=True).finished() == {}


def test_long_lists_stand_in_a_sidecar(store: Store) -> None:
    writer = begin(store)
    write(writer, "a")
    raw = [[f"{i}.txt", i] for i in range(LONG_LIST + 1)]
    artifact = writer.commit(BODY, raw=raw)
    assert artifact.manifest["raw"]["count"] == len(raw)
    assert artifact.raw() == raw
    assert len(json.dumps(artifact.manifest)) < 2000


def test_damage_is_found(store: Store) -> None:
    writer = begin(store)
    write(writer, "a b c d")
    artifact = writer.commit(BODY)
    store.files.write(f"{artifact.data}/a", b"thou b")
    store.files.write(f"{artifact.data}/b", b"")
    store.files.remove(f"{artifact.data}/c")
    assert artifact.damage() == {
        "a": "other bytes than were written",
        "b": "0 bytes instead of 6",
        "c": "missing",
    }


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/..", "_files.json", "./a"])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        begin(Store(str(tmp_path))).part(name)


def test_paths_are_absolute_and_uris_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store("runs/store").root == str(tmp_path / "runs/store")
    assert Store(f"file://{tmp_path}/a%20b").root == f"{tmp_path}/a b"
    assert isinstance(Store(f"file://{tmp_path}").files, LocalFiles)
    remote = Store("s3://bucket/prefix?region=eu-west-1")
    assert (remote.root, remote.files.local) == ("bucket/prefix", False)
    with pytest.raises(UserError, match="s4://bucket cannot be opened"):
        Store("s4://bucket")


def test_writers_and_artifacts_travel_to_workers(tmp_path: Path) -> None:
    for store in (Store(str(tmp_path / "x")), Store("y", arrow_files(tmp_path))):
        writer = begin(store)
        write(pickle.loads(pickle.dumps(writer)), "a")
        artifact: Artifact = pickle.loads(pickle.dumps(writer.commit(BODY)))
        assert artifact.read_bytes("a") == b"thou a"
        assert (artifact.fetch(tmp_path / "copy") / "a").read_bytes() == b"thou a"
        if artifact.is_local:
            assert artifact.local_path("a").read_bytes() == b"thou a"
        else:
            with pytest.raises(ValueError, match="not on a local filesystem"):
                artifact.local_path("a")


def test_an_artifact_is_found_by_a_path_in_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write(begin(store), "a")
    artifact = begin(store, "b").commit(BODY)
    found = store.at(str(artifact.local_path("a")))
    assert found is not None
    assert found.path == artifact.path
    assert store.at("/nowhere") is None


KILLED = """
import sys, time
from pipeline.store import Store
writer = Store(sys.argv[1]).begin("mask/128", "ab" * 32, "killed")
writer.write_bytes("a", b"thou a")
with writer.part("b") as part:
    part.stream.write(b"x" * (4 << 20))
    print("half", flush=True)
    time.sleep(60)
"""


def test_kill_in_the_middle_of_a_part(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    child.kill()
    child.wait()
    child.stdout.close()
    store = Store(str(tmp_path))
    assert any("tmp/killed/b" in name for name in store.files.walk(str(tmp_path)))
    assert store.find("mask/128", KEY) is None
    writer = begin(store)
    assert list(writer.finished()) == ["a"]
    assert not any("tmp" in name for name in store.files.walk(str(tmp_path)))
    write(writer, "b")
    assert writer.commit(BODY).read_bytes("b") == b"thou b"


@pytest.mark.parametrize("config", [{"min": 4}, {"settings": {"behave": ["split:hope.txt:fail"]}}])
def test_the_whole_graph_on_another_filesystem(
    run: Callable[..., Ran],
    tmp_path: Path,
    config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline.lease, "SETTLE_SECONDS", 0.02)
    (tmp_path / "remote").mkdir()
    remote = Store("bucket/prefix", arrow_files(tmp_path / "remote"))
    first = run(config, store=remote)
    assert first.outcome.exit_code == (1 if "settings" in config else 0)
    second = run(store=remote)
    assert second.outcome.exit_code == 0
    assert len(second.made) == (4 if "settings" in config else 0)
    local = run(store=tmp_path / "local")
    assert second.artifact("total").output_digest == local.artifact("total").output_digest


def test_finding_is_fast(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write(begin(store), "a")
    begin(store, "b").commit(BODY)
    began = time.perf_counter()
    for _ in range(50):
        store.find("mask/128", KEY)
    assert (time.perf_counter() - began) / 50 < 0.005


def test_a_path_is_shown_as_it_can_be_used_elsewhere() -> None:
    s3 = ArrowFiles(pa.fs.S3FileSystem(anonymous=True, region="eu-west-1"))
    assert s3.shown("bucket/runs/mask") == "s3://bucket/runs/mask"
    assert LocalFiles().shown("/data/runs") == "/data/runs"
    assert ArrowFiles(pa.fs._MockFileSystem()).shown("bucket/runs") == "bucket/runs"


def test_google_s_own_limit_of_a_quarter_of_an_hour_is_no_one_s_wish() -> None:
    assert _with_retry_limit("gs://bucket/runs") == "gs://bucket/runs?retry_limit_seconds=60"
    assert _with_retry_limit("gs://b/r?anonymous=true").endswith("=true&retry_limit_seconds=60")
    for given in ("gs://bucket/runs?retry_limit_seconds=9", "s3://bucket/runs"):
        assert _with_retry_limit(given) == given
