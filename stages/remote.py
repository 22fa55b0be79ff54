"""One function in one Ray task, for work that needs all that a node was granted."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping
from typing import Any

from pipeline.stage import Context, StageError
from stages.nodes import (
    alive_nodes,
    lost_nodes,
    nodes_room,
    say_if_busy,
    share_per_worker,
    worker_deaths,
)
from stages.parallel import JobFailed, Record

POLL_SECONDS = 0.5


def device_of(requested: str, gpus: float) -> str:
    """What to ask for in a task: the CPU where no GPU was granted, though torch may see some.

    Raises:
        StageError: a GPU is asked for, and none was granted.
    """
    if gpus:
        return requested
    if requested == "cuda":
        raise StageError(
            "cluster.device=cuda: this run may use no GPU. Raise cluster.num_gpus, or set "
            "cluster.device=auto or cpu"
        )
    return "cpu"


def run_remote(context: Context, function: str, arguments: Mapping[str, Any]) -> Record:
    """Call `function` ("module:name") with `arguments` in a Ray task; returns its record.

    Raises:
        StageError: it raised `JobFailed`, or its process died.
        RuntimeError: it raised anything else; the text is its traceback.
        Interrupted: the run was asked to stop; the task is cancelled.
    """
    import ray

    while True:
        before = alive_nodes()
        gpus = min(context.granted.gpus, 1.0)
        # What is granted may lie on several nodes; a task runs on one.
        cpus = share_per_worker(1, context.granted.cpus, nodes_room(), gpus)
        say_if_busy(context, cpus)
        # Ray's rule that a process which had a GPU ends with its task, and frees its memory, holds
        # for what the decorator is told alone.
        once = {"max_calls": 1} if gpus else {}
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, **once)(_call)
        pending = task.remote(function, dict(arguments))
        while not ray.wait([pending], timeout=POLL_SECONDS)[0]:
            if context.stop.is_set():
                ray.cancel(pending, force=True)
                context.stop.check()
        try:
            record: Record = ray.get(pending)
            break
        except worker_deaths() as error:
            context.stop.check()
            if not lost_nodes(before, error):
                raise StageError(
                    "the worker process died, most likely for want of memory. Ray says: "
                    f"{str(error).splitlines()[0]:.300}"
                ) from error
            context.progress.note("lost the node that it ran on; begins again on another")
    if "failed" in record:
        raise StageError(record["failed"])
    if "traceback" in record:
        raise RuntimeError(record["traceback"])
    return record


def _call(function: str, arguments: Mapping[str, Any]) -> Record:
    module, _, name = function.partition(":")
    try:
        record: Record = getattr(importlib.import_module(module), name)(**arguments)
        return record
    except JobFailed as error:
        return {"failed": str(error)}
    except Exception:
        return {"traceback": traceback.format_exc()}
