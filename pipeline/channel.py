"""The wire between training workers and the driver: figures and progress one way, stop the other.

Workers push to a small Ray actor and never wait for it; the driver empties it twice a second.
The actor belongs to the driver: when the driver dies it dies too, and workers are told to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pipeline.stage import Json, Metrics, Progress, Stop

PUSH_SECONDS = 1.0
POLL_SECONDS = 0.5
CLOSE_SECONDS = 10.0
ANSWER_SECONDS = 120.0

Message = tuple[str, Json]
"""("metrics", [step, values]), ("start", [total, unit, done]), ("advance", [n, figures]),
("note", text)."""


class Mailbox:
    """Holds messages for the driver, the wish to stop and why it failed. Lives in an actor."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._stop = False
        self._leaving = False
        self._failure: str | None = None
        self._starts = 0

    def began(self) -> None:
        """Workers begin to train; said when it is not the first time."""
        self._starts += 1
        if self._starts > 1:
            why = "one died, its node is gone, or their number changes"
            self._messages.append(("note", f"training workers were started again: {why}"))

    def push(self, messages: list[Message]) -> bool:
        """Leave messages; the reply says whether to stop."""
        self._messages.extend(messages)
        return self._stop or self._leaving

    def leave(self, why: str) -> None:
        """A worker has to end: the driver is told why, and from now on all workers to stop."""
        self._messages.append(("note", why))
        self._leaving = True

    def fail(self, why: str) -> None:
        """A worker met what starting again does not mend; the first to say so is kept."""
        if self._failure is None:
            # Now: workers may have to wait long before they are started again.
            self._messages.append(("note", why))
        self._failure = self._failure or why

    def failure(self) -> str | None:
        """What `fail` was told."""
        return self._failure

    def take(self, stop: bool) -> list[Message]:
        """Take all messages, and say whether workers are to stop."""
        self._stop = stop
        taken, self._messages = self._messages, []
        return taken


class Sender:
    """A worker's end. Pickles into a worker; cheap to call at every step; never blocks.

    One push is under way at a time, at most one a second; what comes meanwhile waits here.
    """

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self._waiting: list[Message] = []
        self._under_way: Any = None
        self._pushed = 0.0
        self._stop = False
        self._leaving = False

    def log(self, values: Mapping[str, float], step: int) -> None:
        """As `pipeline.stage.Metrics.log`, for the driver's metrics."""
        self._waiting.append(("metrics", [int(step), {k: float(v) for k, v in values.items()}]))
        self._push()

    def start(self, total: float | None, unit: str, done: float = 0) -> None:
        """As `pipeline.stage.Progress.start`."""
        self._waiting.append(("start", [total, unit, done]))
        self._push()

    def advance(self, amount: float = 1, **figures: float | int | str) -> None:
        """As `pipeline.stage.Progress.advance`."""
        if self._waiting and self._waiting[-1][0] == "advance":
            before, shown = self._waiting[-1][1]
            self._waiting[-1] = ("advance", [before + amount, {**shown, **figures}])
        else:
            self._waiting.append(("advance", [amount, figures]))
        self._push()

    def note(self, text: str) -> None:
        """As `pipeline.stage.Progress.note`."""
        self._waiting.append(("note", text))
        self._push()

    def should_stop(self) -> bool:
        """Whether to stop: the driver wants it or is gone, or a worker has to end.

        At most a second old.
        """
        self._push()
        return self._stop or self._leaving

    def began(self) -> None:
        """Once for each start of the workers. Does not wait."""
        self._mailbox.began.remote()

    def leave(self, why: str) -> None:
        """Have all workers stop, as this one has to end. From any thread; does not wait."""
        self._leaving = True
        self._mailbox.leave.remote(why)

    def fail(self, why: str) -> None:
        """Keep `why` for `failure`: for what one worker alone met, while others wait for it.

        Waits until it is kept, for at most `CLOSE_SECONDS`.
        """
        import ray

        with suppress(ray.exceptions.RayError):
            # Without a driver nobody reads it.
            ray.get(self._mailbox.fail.remote(why), timeout=CLOSE_SECONDS)

    def failure(self) -> str | None:
        """What a worker failed of before all were started again; None without.

        Raises:
            GetTimeoutError: no answer came. All workers have to know the same, or some would wait
                for those that ended.
        """
        import ray

        try:
            found: str | None = ray.get(self._mailbox.failure.remote(), timeout=ANSWER_SECONDS)
        except ray.exceptions.RayActorError:
            return None
        return found

    def flush(self) -> None:
        """Send what waits, unless a push is under way; does not wait for the reply."""
        self._push(now=True)

    def close(self) -> None:
        """Send what is left; gives up after `CLOSE_SECONDS`."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while (self._waiting or self._under_way is not None) and time.monotonic() < deadline:
            self._push(now=True)
            if self._under_way is not None:
                self._settle(timeout=max(0.0, deadline - time.monotonic()))

    def _push(self, now: bool = False) -> None:
        if self._under_way is not None:
            self._settle(timeout=0)
        due = time.monotonic() - self._pushed >= PUSH_SECONDS
        if self._under_way is None and (due or now):
            messages, self._waiting = self._waiting, []
            self._pushed = time.monotonic()
            self._under_way = self._mailbox.push.remote(messages)

    def _settle(self, timeout: float) -> None:
        """Look at the push under way: its reply, or the driver's death."""
        import ray

        ready, _ = ray.wait([self._under_way], timeout=timeout)
        if not ready:
            return
        try:
            self._stop = bool(ray.get(ready[0]))
        except ray.exceptions.RayError:
            # The mailbox dies with the driver, and nobody reads what follows.
            self._stop = True
            self._waiting = []
        self._under_way = None


class Channel:
    """The driver's end: gives what workers push to `metrics` and `progress`.

    Use as a context manager around the training; `sender` goes to the workers.

    Args:
        metrics: gets the figures.
        progress: gets counts and notes.
        stop: when set, workers' `should_stop` turns true within about two seconds.
    """

    def __init__(self, metrics: Metrics, progress: Progress, stop: Stop) -> None:
        self._metrics = metrics
        self._progress = progress
        self._stop = stop
        self._closed = threading.Event()
        self._mailbox: Any = None
        self._thread = threading.Thread(target=self._poll, name="channel", daemon=True)

    def __enter__(self) -> Self:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # No CPU of its own: on a cluster of one CPU the training would wait for it for ever.
        # On the driver's node, so that losing another node does not lose figures.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox)
        self._mailbox = actor.remote()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import ray

        self._closed.set()
        self._thread.join(CLOSE_SECONDS)
        self._take()
        ray.kill(self._mailbox)

    @property
    def sender(self) -> Sender:
        """A worker's end, to be pickled into `train_loop_config`."""
        return Sender(self._mailbox)

    def failure(self) -> str | None:
        """What a worker alone failed of, as it said; None without."""
        import ray

        try:
            found: str | None = ray.get(self._mailbox.failure.remote(), timeout=CLOSE_SECONDS)
        except ray.exceptions.RayError:
            return None
        return found

    def _poll(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            self._take()

    def _take(self) -> None:
        import ray

        try:
            messages = ray.get(
                self._mailbox.take.remote(self._stop.is_set()), timeout=CLOSE_SECONDS
            )
        except (ray.exceptions.RayError, AttributeError):
            # Figures are lost, never the training. Ray's own worker object loses its attributes
            # when Ray is shut down under a thread.
            return
        for kind, value in messages:
            if kind == "metrics":
                self._metrics.log(value[1], value[0])
            elif kind == "start":
                self._progress.start(*value)
            elif kind == "advance":
                self._progress.advance(value[0], **value[1])
            else:
                self._progress.note(value)
