from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pipeline.lease
from pipeline.files import ArrowFiles, Files, LocalFiles
from pipeline.lease import Lease, live_holder, process_start

HOLD = """
import sys, time
from pipeline.files import LocalFiles
from pipeline.lease import Lease
lease = Lease(LocalFiles(), sys.argv[1], "child", heartbeat_seconds=0.1)
print("busy" if lease.try_acquire() else "held", flush=True)
time.sleep(60)
"""

COMPETE = """
import sys, time
from pathlib import Path
from typing import Any
from pipeline.files import LocalFiles
from pipeline.lease import Lease
folder, name, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
for turn in range(turns):
    lease = Lease(LocalFiles(), folder, f"{name}-{turn}", heartbeat_seconds=0.02)
    while lease.try_acquire():
        time.sleep(0.001)
    inside = Path(folder, "inside")
    inside.touch(exist_ok=False)
    time.sleep(0.003)
    inside.unlink()
    if name == "killed" and turn == turns - 1:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    lease.release()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def elsewhere(files: Files, folder: str, beat: float) -> None:
    row = {"attempt": "far", "host": "other/boot/pid", "name": "other", "pid": 1, "start": "1"}
    files.write(f"{folder}/lease.json", json.dumps({**row, "beat": beat}).encode())


def until(condition: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 10
        time.sleep(0.02)


def test_one_holds_and_lets_go(tmp_path: Path) -> None:
    first, second = (Lease(LocalFiles(), str(tmp_path), name) for name in "ab")
    assert first.try_acquire() is None
    busy = second.try_acquire()
    assert busy is not None
    assert (busy.attempt, busy.pid) == ("a", os.getpid())
    assert f"process {os.getpid()} on " in busy.text
    second.release()
    assert live_holder(LocalFiles(), str(tmp_path)) == busy
    first.release()
    assert live_holder(LocalFiles(), str(tmp_path)) is None
    assert second.try_acquire() is None
    second.release()


def test_a_killed_holder_frees_it_at_once(tmp_path: Path) -> None:
    lease = Lease(LocalFiles(), str(tmp_path), "me")
    with holder(tmp_path) as child:
        assert lease.try_acquire() is not None
        child.kill()
        # Not reaped yet: a zombie holds nothing.
        began = time.monotonic()
        while lease.try_acquire() is not None:
            assert time.monotonic() - began < 2
            time.sleep(0.01)
        lease.release()


def test_a_process_number_that_came_again_is_not_the_holder(tmp_path: Path) -> None:
    lease = Lease(LocalFiles(), str(tmp_path), "a")
    assert lease.try_acquire() is None
    path = tmp_path / "lease.json"
    row = json.loads(path.read_bytes())
    assert row["start"] == process_start(os.getpid())
    path.write_text(json.dumps({**row, "start": "1"}))
    assert live_holder(LocalFiles(), str(tmp_path)) is None
    second = Lease(LocalFiles(), str(tmp_path), "b")
    assert second.try_acquire() is None
    second.release()
    lease.release()


def test_elsewhere_a_silent_heartbeat_frees_it_and_a_beating_one_does_not(tmp_path: Path) -> None:
    files, folder = LocalFiles(), str(tmp_path)
    lease = Lease(files, folder, "a", heartbeat_seconds=0.05, stale_seconds=0.5)
    elsewhere(files, folder, time.time() - 1000)
    assert live_holder(files, folder) is None
    # Old by our clock, but clocks differ: it must be seen to stand still.
    assert lease.try_acquire() is not None
    time.sleep(0.1)
    elsewhere(files, folder, time.time() - 999)
    assert lease.try_acquire() is not None
    time.sleep(0.2)
    assert lease.try_acquire() is None
    lease.release()
    # Young by a clock that is ahead, but silent.
    elsewhere(files, folder, time.time() + 1000)
    assert live_holder(files, folder) is not None
    assert lease.try_acquire() is not None
    time.sleep(0.3)
    assert lease.try_acquire() is not None
    time.sleep(0.3)
    assert lease.try_acquire() is None
    lease.release()


def test_the_heartbeat_beats_and_notices_a_take_over(tmp_path: Path) -> None:
    files, folder = LocalFiles(), str(tmp_path)
    lease = Lease(files, folder, "a", heartbeat_seconds=0.02)
    assert lease.try_acquire() is None
    first = live_holder(files, folder)
    assert first is not None
    until(lambda: (now := live_holder(files, folder)) is not None and now.beat > first.beat)
    assert not lease.lost
    # The heartbeat may be between its look and its write: it has to lose a later race.
    until(lambda: elsewhere(files, folder, time.time()) or lease.lost)
    lease.release()
    holder_now = live_holder(files, folder)
    assert holder_now is not None
    assert holder_now.attempt == "far"


def test_a_torn_lease_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text('{"attempt": "a", "pid')
    lease = Lease(LocalFiles(), str(tmp_path), "b")
    assert lease.try_acquire() is None
    lease.release()


@pytest.mark.slow
def test_never_two_at_once_among_processes_some_of_which_die(tmp_path: Path) -> None:
    names = ["killed", "x", "y"]
    command = [sys.executable, "-c", COMPETE, str(tmp_path)]
    children = [subprocess.Popen([*command, name, "15"]) for name in names]
    codes = [child.wait(timeout=60) for child in children]
    # The others' turns ended well: `inside` was never there when they came in.
    assert codes == [-9, 0, 0]


def test_on_object_stores_the_last_writer_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.fs as fs

    monkeypatch.setattr(pipeline.lease, "SETTLE_SECONDS", 0.2)
    files = ArrowFiles(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    leases = [Lease(files, "node", name) for name in "abc"]
    got: list[bool] = []
    threads = [
        threading.Thread(target=lambda one=one: got.append(one.try_acquire() is None))
        for one in leases
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got.count(True) == 1
    for lease in leases:
        lease.release()
    assert live_holder(files, "node") is None
