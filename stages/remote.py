"""One function in one Ray task, for work that needs all that a node was granted."""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.stage import Context, StageError
from stages.parallel import JobFailed, Record

POLL_SECONDS = 0.5


def run_remote(context: Context, function: str, arguments: Mapping[str, Any]) -> Record:
    """Call `function` ("module:name") with `arguments` in a Ray task; returns its record.

    Raises:
        StageError: it raised `JobFailed`.
        RuntimeError: it raised anything else; the text is its traceback.
        Interrupted: the run was asked to stop; the task is cancelled.
    """
    import ray

    # What is granted may lie on several nodes; a task runs on one.
    cpus = min(context.granted.cpus, max(node_resources("CPU"), default=1.0))
    gpus = min(context.granted.gpus, 1.0)
    task = ray.remote(_call).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)
    pending = task.remote(function, dict(arguments))
    while not ray.wait([pending], timeout=POLL_SECONDS)[0]:
        if context.stop.is_set():
            ray.cancel(pending, force=True)
            context.stop.check()
    record: Record = ray.get(pending)
    if "failed" in record:
        raise StageError(record["failed"])
    if "traceback" in record:
        raise RuntimeError(record["traceback"])
    return record


def node_resources(name: str) -> list[float]:
    """How much of "CPU" or "GPU" each node of the cluster has, largest first."""
    import ray

    found = (node["Resources"].get(name, 0.0) for node in ray.nodes() if node["Alive"])
    return sorted((float(n) for n in found if n), reverse=True)


def share_per_worker(workers: int, granted: float, nodes: Sequence[float]) -> float:
    """The most that each of `workers` can have when nodes hold `nodes` and `granted` is the cap.

    A worker lives on one node, so 3 workers on two nodes of 2 CPUs have 1 each, not 4/3. Rounded
    down to 4 decimals, as Ray counts.
    """
    even = granted / workers
    shares = {even} | {n / k for n in nodes for k in range(1, workers + 1) if n / k < even}
    for share in sorted(shares, reverse=True):
        if sum(math.floor(n / share + 1e-9) for n in nodes) >= workers:
            return math.floor(share * 10_000) / 10_000
    return math.floor(even * 10_000) / 10_000


def _call(function: str, arguments: Mapping[str, Any]) -> Record:
    module, _, name = function.partition(":")
    try:
        record: Record = getattr(importlib.import_module(module), name)(**arguments)
        return record
    except JobFailed as error:
        return {"failed": str(error)}
    except Exception:
        return {"traceback": traceback.format_exc()}
