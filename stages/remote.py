"""One function in one Ray task, for work that needs all that a node was granted."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping
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

    task = ray.remote(_call).options(
        num_cpus=context.granted.cpus, num_gpus=context.granted.gpus, max_retries=0
    )
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


def _call(function: str, arguments: Mapping[str, Any]) -> Record:
    module, _, name = function.partition(":")
    try:
        record: Record = getattr(importlib.import_module(module), name)(**arguments)
        return record
    except JobFailed as error:
        return {"failed": str(error)}
    except Exception:
        return {"traceback": traceback.format_exc()}
