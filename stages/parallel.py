"""One function over many jobs in Ray Data: a job in, a JSON record out, as each is done.

A job makes one part of an artifact: it streams its input, writes one file and returns what there
is to say of it. Which worker takes a job, and in what order jobs end, changes nothing.
"""

from __future__ import annotations

import importlib
import json
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from pipeline.stage import Context, StageError

Record = dict[str, Any]


class Worker(Protocol):
    """Made once in each worker process (it may load a vocabulary); called once a job."""

    def __call__(self, job: Record) -> Record:
        """Do one job; returns a JSON-able record."""
        ...


MAX_RESTARTS = 3
"""Of an actor, and of a job whose actor died."""


class JobFailed(Exception):  # noqa: N818 - named for what it says
    """Raised by a worker for a reason that a person can act on; becomes a `StageError`."""


class _Call:
    """What Ray Data runs in an actor: names instead of objects, so that nothing big is pickled."""

    def __init__(self, worker: str, arguments: Mapping[str, Any]) -> None:
        module, _, name = worker.partition(":")
        self._failure: str | None = None
        self._worker: Worker | None = None
        try:
            self._worker = getattr(importlib.import_module(module), name)(**arguments)
        except Exception:
            # A constructor that raises makes Ray restart the actor for ever: tell it per job.
            self._failure = traceback.format_exc()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        return {"record": [self._one(json.loads(job)) for job in batch["job"]]}

    def _one(self, job: Record) -> str:
        if self._worker is None:
            return json.dumps({"job": job, "traceback": self._failure})
        try:
            return json.dumps(self._worker(job))
        except JobFailed as error:
            return json.dumps({"job": job, "failed": str(error)})
        except Exception:
            return json.dumps({"job": job, "traceback": traceback.format_exc()})


def run_jobs(
    context: Context, worker: str, arguments: Mapping[str, Any], jobs: Sequence[Record]
) -> Iterator[Record]:
    """Run `worker` ("module:Class") over `jobs` on the CPUs granted; yield records as they come.

    Args:
        arguments: for the worker's constructor; pickled once to each actor.
        jobs: JSON-able.

    Raises:
        StageError: a worker raised `JobFailed`.
        RuntimeError: it raised anything else; the text is the worker's traceback.
        Interrupted: the run was asked to stop; jobs that were done stay done.
    """
    if not jobs:
        return
    import ray

    # `max_restarts` has no named parameter yet; Ray prints the hint on every run.
    warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
    size = max(1, min(int(context.granted.cpus), len(jobs)))
    dataset = ray.data.from_items(
        [{"job": json.dumps(job)} for job in jobs], override_num_blocks=len(jobs)
    ).map_batches(
        _Call,
        fn_constructor_kwargs={"worker": worker, "arguments": dict(arguments)},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=size),
        num_cpus=1,
        # A worker that is killed each time (memory) must end the stage, not start for ever.
        max_restarts=MAX_RESTARTS,
        max_task_retries=MAX_RESTARTS,
    )
    for row in _rows(dataset, context):
        record: Record = json.loads(row["record"])
        if "failed" in record:
            raise StageError(record["failed"])
        if "traceback" in record:
            raise RuntimeError(f"job {record['job']}:\n{record['traceback']}")
        yield record


def _rows(dataset: Any, context: Context) -> Iterator[Record]:
    import ray

    try:
        for row in dataset.iter_rows():
            context.stop.check()
            yield row
    except ray.exceptions.RayError as error:
        context.stop.check()
        text = str(error)
        if "died" not in text and "OutOfMemory" not in type(error).__name__:
            raise
        raise StageError(
            f"a worker process ended {MAX_RESTARTS + 1} times on the same job, most likely for "
            "want of memory: lower corpus.shard_bytes or cluster.num_cpus, or give the machine "
            f"more memory. Ray says: {text.splitlines()[0][:300]}"
        ) from error
