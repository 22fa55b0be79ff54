"""A lease says who makes a node now, so that two runs on one store make each node once.

On local filesystems all changes of the lease happen under a file lock, which the kernel lets go
when its holder dies; the lease itself outlives that moment and is judged by what it says: a
process that is gone on this host frees it at once, anything else after `STALE_SECONDS` without a
heartbeat. Object stores have no lock: there it is written and read back, best effort, and the
fence in `ArtifactWriter` (the attempt that counts) keeps a second maker from harming the first.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.artifact import read_json
from pipeline.digest import canonical_json
from pipeline.files import Files

LEASE = "lease.json"
LOCK = "lease.lock"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
SETTLE_SECONDS = 1.0
"""On object stores: how long two writers at once have to overwrite each other."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease.

    Attributes:
        attempt: unique; also in the names of temporary files.
        host: see `host_id`; name: the host's, for people.
        start: of the process, since numbers of processes come again.
        beat: wall clock of the last heartbeat, seconds since 1970.
    """

    attempt: str
    host: str
    name: str
    pid: int
    start: str
    beat: float

    @property
    def text(self) -> str:
        """For a person."""
        return f"process {self.pid} on {self.name}"

    def is_here(self) -> bool:
        """Whether it is a process of this host, in this boot and this container."""
        return self.host == host_id()

    def is_alive_here(self) -> bool:
        """Whether it is here and still runs."""
        return self.is_here() and process_start(self.pid) == self.start


class Lease:
    """A claim on a folder. `try_acquire` until it returns None, then `release`.

    While it is held, a thread of its own renews it; `lost` turns true when somebody took over.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        attempt: str,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self.lost = False
        self._files = files
        self._folder = folder
        self._attempt = attempt
        self._heartbeat_seconds = heartbeat_seconds
        self._stale_seconds = stale_seconds
        self._watched: tuple[str, float] | None = None
        self._watched_since = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def try_acquire(self) -> Holder | None:
        """Take the lease and return None, or return who holds it. Does not wait."""
        with self._locked():
            holder = _read(self._files, self._folder)
            if holder is not None and not self._is_stale(holder):
                return holder
            self._write()
            if not self._files.local:
                time.sleep(SETTLE_SECONDS)
                holder = _read(self._files, self._folder)
                if holder is not None and holder.attempt != self._attempt:
                    return holder
        self._ended.clear()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        return None

    def release(self) -> None:
        """Let go; does nothing when somebody took over, or when it was never held."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        with self._locked():
            holder = _read(self._files, self._folder)
            if holder is not None and holder.attempt == self._attempt:
                self._files.remove(f"{self._folder}/{LEASE}")

    def _is_stale(self, holder: Holder) -> bool:
        if holder.is_here():
            return not holder.is_alive_here()
        # Clocks of two hosts differ, so the heartbeat must also be seen to stand still.
        now = time.monotonic()
        if self._watched != (holder.attempt, holder.beat):
            self._watched, self._watched_since = (holder.attempt, holder.beat), now
        quiet = now - self._watched_since
        looks_old = time.time() - holder.beat > self._stale_seconds
        return quiet > (3 * self._heartbeat_seconds if looks_old else self._stale_seconds)

    def _renew(self) -> None:
        while not self._ended.wait(self._heartbeat_seconds):
            try:
                with self._locked():
                    holder = _read(self._files, self._folder)
                    if holder is None or holder.attempt != self._attempt:
                        self.lost = True
                        return
                    self._write()
            except OSError:
                # A store that is away for a moment: the next beat may come through.
                continue

    def _write(self) -> None:
        me = Holder(
            attempt=self._attempt,
            host=host_id(),
            name=socket.gethostname(),
            pid=os.getpid(),
            start=process_start(os.getpid()) or "",
            beat=time.time(),
        )
        # Whoever held it is gone with the power.
        self._files.write(f"{self._folder}/{LEASE}", canonical_json(asdict(me)), durable=False)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._files.local:
            yield
            return
        from filelock import FileLock

        Path(self._folder).mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self._folder}/{LOCK}"):
            yield


def live_holder(files: Files, folder: str) -> Holder | None:
    """Who makes the node in `folder` at this moment, by one look; None when nobody does."""
    holder = _read(files, folder)
    if holder is None:
        return None
    if holder.is_here():
        return holder if holder.is_alive_here() else None
    return holder if time.time() - holder.beat <= STALE_SECONDS else None


def host_id() -> str:
    """Names this host until its next boot; containers have their own, since pids are their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        import psutil

        boot, space = str(round(psutil.boot_time() / 60)), ""
    return f"{socket.gethostname()}/{boot}/{space}"


def process_start(pid: int) -> str | None:
    """When a process of this host started, in an exact spelling; None when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _process_start_psutil(pid)
    # The name, in brackets, may hold anything; state is field 3, start time field 22.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _process_start_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _read(files: Files, folder: str) -> Holder | None:
    row: dict[str, Any] | None = read_json(files.read(f"{folder}/{LEASE}"))
    try:
        return None if row is None else Holder(**row)
    except TypeError:
        return None
