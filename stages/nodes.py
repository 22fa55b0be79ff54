"""The nodes of a Ray cluster: what they have, what is free, and how workers fit on them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import NamedTuple

from pipeline.stage import Context

SETTLE_SECONDS = 5.0
"""What the node before may take to give its CPUs back."""

LOST_NODE_SECONDS = 25.0
"""How long the cluster may take to notice that a node is gone: five health checks by default."""

WATCH_SECONDS = 5.0
"""Between two looks at the nodes while training."""


def alive_nodes() -> frozenset[str]:
    """Ids of the nodes that are there."""
    import ray

    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


class Room(NamedTuple):
    """What a node has, in use or not."""

    cpus: float
    gpus: float = 0.0


def nodes_room() -> list[Room]:
    """Of each node that is there."""
    import ray

    found = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [Room(has.get("CPU", 0.0), has.get("GPU", 0.0)) for has in found]


def share_per_worker(
    workers: int, granted: float, nodes: Sequence[Room], gpus: float = 0.0
) -> float:
    """The most CPUs that each of `workers` can have, when `granted` is the cap for all of them.

    A worker lives on one node and wants `gpus` of it, so 3 workers on two nodes of 2 CPUs have 1
    each, not 4/3. Rounded down to 4 decimals, as Ray counts.
    """
    even = granted / workers
    shares = {even} | {n.cpus / k for n in nodes for k in range(1, workers + 1)}
    for share in sorted((s for s in shares if 0 < s <= even), reverse=True):
        if places(nodes, share, gpus) >= workers:
            return math.floor(share * 10_000) / 10_000
    return math.floor(even * 10_000) / 10_000


def places(nodes: Sequence[Room], cpus: float, gpus: float = 0.0) -> int:
    """How many workers that want so much each fit on the nodes."""
    return sum(_places(node, cpus, gpus) for node in nodes)


def _places(node: Room, cpus: float, gpus: float) -> int:
    by_cpu = math.floor(node.cpus / cpus + 1e-9)
    return min(by_cpu, math.floor(node.gpus / gpus + 1e-9)) if gpus else by_cpu


@contextmanager
def watch_room(
    context: Context,
    workers: int,
    cpus: float,
    gpus: float,
    look: Callable[[], Sequence[Room]] = nodes_room,
    seconds: float = WATCH_SECONDS,
) -> Iterator[None]:
    """Inside the block, note when `workers` no longer fit on the nodes, and when they do again."""
    ended = threading.Event()

    def watch() -> None:
        fitted = True
        while not ended.wait(seconds):
            fit = places(look(), cpus, gpus)
            if fitted and fit < workers:
                context.progress.note(
                    f"the nodes that are left hold {fit} of {workers} training workers with "
                    f"{cpus:g} CPUs: waiting for another node. To go on from the last checkpoint "
                    "with those that are left, stop the run (Ctrl-C) and start it again"
                )
            elif not fitted and fit >= workers:
                context.progress.note("there are enough nodes again")
            fitted = fit >= workers

    thread = threading.Thread(target=watch, name="nodes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def worker_deaths() -> tuple[type[Exception], ...]:
    """What Ray raises when a process or a node is gone, rather than when code raised."""
    from ray import exceptions

    return (
        exceptions.ActorDiedError,
        exceptions.ActorUnavailableError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
        exceptions.OutOfMemoryError,
        exceptions.WorkerCrashedError,
    )


def lost_nodes(before: Set[str], error: BaseException) -> int:
    """How many of the nodes are gone; waits for the cluster to notice when `error` suggests it."""
    from ray import exceptions

    known = isinstance(error, exceptions.ActorDiedError | exceptions.OutOfMemoryError)
    if len(before) < 2:
        # The one that this process is on.
        return 0
    deadline = time.monotonic() + (SETTLE_SECONDS if known else LOST_NODE_SECONDS)
    while not (lost := before - alive_nodes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return len(lost)


def say_if_busy(context: Context, cpus: float) -> None:
    """Note that the work about to start has to wait, when fewer than `cpus` CPUs are free.

    It is asked for all the same: a cluster that grows on demand grows then.
    """
    import ray

    deadline = time.monotonic() + SETTLE_SECONDS
    while (free := ray.available_resources().get("CPU", 0.0)) < cpus:
        if time.monotonic() > deadline:
            whole = ray.cluster_resources().get("CPU", 0.0)
            context.progress.note(
                f"{free:g} of the cluster's {whole:g} CPUs are free, {cpus:g} wanted: waiting "
                "until others give theirs back"
            )
            return
        time.sleep(0.2)
