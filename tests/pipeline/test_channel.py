"""Worker to driver and back, through a real Ray actor."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pipeline.channel import Channel, Sender
from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig


class Log:
    """Metrics, progress and stop in one."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.stopping = False

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.seen.append((step, dict(values)))

    def start(self, total: float | None, unit: str, done: float = 0) -> None:
        self.seen.append(("start", total, unit, done))

    def advance(self, amount: float = 1, **figures: float | int | str) -> None:
        self.seen.append(("advance", amount, figures))

    def note(self, text: str) -> None:
        self.seen.append(("note", text))

    def is_set(self) -> bool:
        return self.stopping

    def check(self) -> None:
        raise AssertionError("not for the channel")


@pytest.fixture(scope="module")
def one_cpu() -> Iterator[None]:
    cluster = Cluster(ClusterConfig.model_validate({"num_cpus": 1, "object_store_mb": 100}))
    cluster.start()
    yield
    cluster.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("one_cpu")
def test_all_arrives_in_order_and_stop_goes_back_on_a_cluster_of_one_cpu() -> None:
    import ray

    def train(sender: Sender) -> int:
        sender.start(1000, "steps", 10)
        steps = 10
        while not sender.should_stop():
            steps += 1
            sender.log({"train/loss": 1 / steps}, steps)
            sender.advance(1, loss=1 / steps)
            time.sleep(0.001)
        sender.note("stopped")
        sender.close()
        return steps

    log = Log()
    with Channel(log, log, log) as channel:
        running = ray.remote(train).remote(channel.sender)
        time.sleep(3)
        log.stopping = True
        steps = ray.get(running, timeout=30)
    assert log.seen[0] == ("start", 1000, "steps", 10)
    assert log.seen[-1] == ("note", "stopped")
    figures = [s for s in log.seen if isinstance(s[0], int)]
    assert figures == [(s, {"train/loss": 1 / s}) for s in range(11, steps + 1)]
    assert sum(s[1] for s in log.seen if s[0] == "advance") == steps - 10


@pytest.mark.slow
@pytest.mark.usefixtures("one_cpu")
def test_a_worker_whose_driver_end_is_gone_stops_and_does_not_hang() -> None:
    import ray

    def train(sender: Sender) -> float:
        for step in range(10):
            sender.log({"x": 1.0}, step)
        began = time.monotonic()
        while not sender.should_stop():
            time.sleep(0.01)
        sender.log({"x": 1.0}, 11)
        sender.close()
        return time.monotonic() - began

    log = Log()
    with Channel(log, log, log) as channel:
        sender = channel.sender
    assert ray.get(ray.remote(train).remote(sender), timeout=60) < 10


@pytest.mark.slow
@pytest.mark.usefixtures("one_cpu")
def test_a_worker_that_has_to_end_stops_all_and_says_why() -> None:
    log = Log()
    with Channel(log, log, log) as channel:
        first, other = channel.sender, channel.sender
        assert not other.should_stop()
        first.leave("told to end")
        assert first.should_stop()
        deadline = time.monotonic() + 20
        while not other.should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert other.should_stop()
    assert log.seen == [("note", "told to end")]


@pytest.mark.slow
def test_pushing_costs_little_and_pushes_once_a_second(one_cpu: None) -> None:
    log = Log()
    with Channel(log, log, log) as channel:
        sender = channel.sender
        sender.log({"x": 0.0}, 0)
        sender.close()
        began = time.perf_counter()
        for step in range(1, 2001):
            sender.log({"x": float(step)}, step)
            sender.should_stop()
        took = time.perf_counter() - began
        sender.close()
    assert took / 2000 < 1e-3
    assert [s[0] for s in log.seen] == list(range(2001))


@pytest.mark.slow
@pytest.mark.usefixtures("one_cpu")
def test_what_a_worker_alone_met_is_said_at_once_and_kept() -> None:
    log = Log()
    with Channel(log, log, log) as channel:
        first, other = channel.sender, channel.sender
        assert first.failure() is None and channel.failure() is None
        first.fail("row group 2 is damaged")
        other.fail("the connection was closed")
        assert other.failure() == channel.failure() == "row group 2 is damaged"
        first.began()
        other.began()
    assert log.seen[0] == ("note", "row group 2 is damaged")
    assert len(log.seen) == 2 and "were started again: one died" in log.seen[1][1]
    # Without a driver nobody knows, and nobody waits. Ray ends an actor in its own time.
    deadline = time.monotonic() + 20
    while other.failure() is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert other.failure() is None
