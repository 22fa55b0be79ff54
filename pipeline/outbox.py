"""An outbox for tracking records: put at once, sent in the background, kept when sending fails.

Work never waits for the tracking server. Records are sent in order by one thread; while the
server is away they stay here, and what is left at the end goes into a JSON-lines file that the
next run sends first.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from pipeline.stage import Json

FLUSH_SECONDS = 2.0
CLOSE_SECONDS = 30.0
MODEL_SECONDS = 600.0
"""What a model that is being uploaded may take more, at the end of a run."""
LONGEST_PAUSE_SECONDS = 60.0
METRICS_A_BATCH = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """One thing to tell the server.

    Attributes:
        kind: "open", "metrics", "params", "tags", "text", "inputs", "reads", "links", "model",
            "close" (see `pipeline.mlflow_writer`), or "sent", which removes the file that its
            forerunners were read from.
        run: our own key of the run, known before the server gave it an id.
        payload: JSON.
    """

    kind: str
    run: str
    payload: Json


class Refused(Exception):  # noqa: N818 - an answer of the server, not a fault of ours
    """The server answered that it will never take this record: sending it again is useless."""


class Sink(Protocol):
    """Where records go. Called by the outbox's thread only."""

    def apply(self, record: Record) -> None:
        """Send one record; raise `Refused` when it will never be taken, else to try again."""
        ...

    def run_ids(self) -> dict[str, str]:
        """The server's id of each run opened so far, by our key."""
        ...

    def adopt(self, run_ids: dict[str, str]) -> None:
        """Take over the ids of runs that an earlier process opened."""
        ...


class Outbox:
    """Sends records to `sink` in the background.

    Args:
        sink: where records go.
        folder: where what could not be sent is written, and where a former run's leftovers lie.
        target: what identifies the server and experiment; leftovers for others are not touched.
        notice: prints a line for the user.
        beat: called about every `FLUSH_SECONDS` by the thread; may put records.
    """

    def __init__(
        self,
        sink: Sink,
        folder: Path,
        target: str,
        notice: Callable[[str], None],
        beat: Callable[[], None] | None = None,
    ) -> None:
        self._sink = sink
        self._folder = folder
        self._target = target
        self._notice = notice
        self._beat = beat
        self._queue: deque[Record] = deque()
        self._sending: Record | None = None
        self._refused: list[Record] = []
        self._changed = threading.Condition()
        self._urgent = False
        self._closing = False
        self._failing_since: float | None = None
        self._lock: FileLock | None = None
        self._load_leftovers()
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def put(self, record: Record, urgent: bool = False) -> None:
        """Queue a record. Returns at once; `urgent` records do not wait for the next flush."""
        with self._changed:
            self._queue.append(record)
            self._urgent = self._urgent or urgent
            if urgent:
                self._changed.notify_all()

    def run_id(self, run: str, timeout_seconds: float) -> str | None:
        """The server's id of a run; None when the server is away or slower than the timeout."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while (found := self._sink.run_ids().get(run)) is None:
                left = deadline - time.monotonic()
                hopeless = self._failing_since is not None or not self._thread.is_alive()
                if left <= 0 or hopeless or any(r.run == run for r in self._refused):
                    return None
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait(min(left, 0.1))
        return found

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left, for as long as the server answers; write the rest to a file."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_seconds
        self._thread.join(timeout_seconds)
        while self._uploads() and time.monotonic() < deadline + MODEL_SECONDS:
            self._thread.join(1.0)
        with self._changed:
            left = [*([self._sending] if self._sending else []), *self._queue]
            self._queue.clear()
        unsent = [record for record in left if record.kind != "sent"]
        if (file := self._write(unsent, ".jsonl")) is not None:
            self._notice(
                f"tracking: {len(unsent)} records could not be sent; they are kept in {file} "
                "and the next run sends them"
            )
        if (file := self._write(self._refused, ".refused")) is not None:
            self._notice(f"tracking: {len(self._refused)} refused records are kept in {file}")
        # Files read at the start are either sent by now or written anew with the rest.
        for record in left:
            if record.kind == "sent":
                Path(record.payload).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()

    def _uploads(self) -> bool:
        with self._changed:
            sending = self._sending
        return self._thread.is_alive() and sending is not None and sending.kind == "model"

    def _run(self) -> None:
        pause = FLUSH_SECONDS
        while True:
            with self._changed:
                if not self._closing and (not self._urgent or self._failing_since is not None):
                    self._changed.wait_for(lambda: self._closing or self._wants_now(), pause)
                self._urgent = False
                closing = self._closing
            if self._beat is not None:
                self._beat()
            sent = self._send_all()
            pause = FLUSH_SECONDS if sent else min(2 * pause, LONGEST_PAUSE_SECONDS)
            if closing:
                return

    def _wants_now(self) -> bool:
        return self._urgent and self._failing_since is None

    def _send_all(self) -> bool:
        """Send until the queue is empty (True) or the server fails (False)."""
        while (record := self._take()) is not None:
            try:
                self._sink.apply(record)
            except Refused as refusal:
                if all(record.run != earlier.run for earlier in self._refused):
                    self._notice(f"tracking: the server refused {record.kind}: {refusal}")
                self._refused.append(record)
            except Exception as error:
                # Anything else (no connection, locked database, a bug in a client library) must
                # not reach the work: keep the record and try again later.
                log.debug("sending %s failed", record.kind, exc_info=True)
                self._put_back(record, error)
                return False
            with self._changed:
                self._sending = None
                if self._failing_since is not None:
                    away = time.monotonic() - self._failing_since
                    self._failing_since = None
                    self._notice(f"tracking: the server is back after {away:.0f} s")
                self._changed.notify_all()
        return True

    def _take(self) -> Record | None:
        """The next record; waiting metrics of the same run are joined into one batch."""
        with self._changed:
            if not self._queue:
                return None
            record = self._queue.popleft()
            if record.kind == "metrics":
                points = list(record.payload)
                others: deque[Record] = deque()
                for other in self._queue:
                    same = other.kind == "metrics" and other.run == record.run
                    if same and len(points) + len(other.payload) <= METRICS_A_BATCH:
                        points.extend(other.payload)
                    else:
                        others.append(other)
                self._queue = others
                record = Record("metrics", record.run, points)
            self._sending = record
            return record

    def _put_back(self, record: Record, error: Exception) -> None:
        with self._changed:
            self._sending = None
            self._queue.appendleft(record)
            first = self._failing_since is None
            if first:
                self._failing_since = time.monotonic()
            self._changed.notify_all()
        if first:
            self._notice(f"tracking: {first_line(error)}; the work goes on, sent later")

    def _load_leftovers(self) -> None:
        """Queue what earlier runs could not send, unless another process is at it."""
        files = sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else []
        if not files:
            return
        lock = FileLock(self._folder / "sending.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return
        self._lock = lock
        for file in files:
            try:
                head, *lines = file.read_text(encoding="utf-8").splitlines()
                header = json.loads(head)
                if header["target"] != self._target:
                    continue
                records = [Record(**json.loads(line)) for line in lines]
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._notice(f"tracking: {file} cannot be read and is left there: {error}")
                continue
            self._sink.adopt(header["run_ids"])
            self._queue.extend(records)
            self._queue.append(Record("sent", "", str(file)))

    def _write(self, records: Sequence[Record], suffix: str) -> Path | None:
        """Write records into a new file of the folder; None when there are none, or on failure."""
        if not records:
            return None
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}{suffix}"
        file = self._folder / name
        header = {"target": self._target, "run_ids": self._sink.run_ids()}
        lines = [json.dumps(header), *(json.dumps(asdict(record)) for record in records)]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
            partial.rename(file)
        except OSError as error:
            self._notice(f"tracking: {len(records)} records are lost: {error}")
            return None
        return file


def first_line(error: BaseException, limit: int = 160) -> str:
    """The first line of an error's message, for one line on a terminal."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text if len(text) <= limit else text[: limit - 1] + "…"
