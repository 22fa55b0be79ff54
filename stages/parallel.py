"""One function over many jobs in Ray Data: a job in, a JSON record out, as each is done.

A job makes one part of an artifact: it streams its input, writes one file and returns what there
is to say of it. Which worker takes a job, and in what order jobs end, changes nothing.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import secrets
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.stage import Context, StageError
from stages.memory import give_back
from stages.nodes import alive_nodes, lost_nodes, say_if_busy, worker_deaths

Record = dict[str, Any]


class Worker(Protocol):
    """Made once in each worker process (it may load a vocabulary); called once a job."""

    def __call__(self, job: Record) -> Record:
        """Do one job; returns a JSON-able record."""
        ...


MAX_RESTARTS = 3
"""Of the worker processes after one of them died, in one stage; lost nodes do not count."""


class JobFailed(Exception):  # noqa: N818 - named for what it says
    """Raised by a worker for a reason that a person can act on; becomes a `StageError`."""


FAILURES = ("failed", "traceback")
"""Keys of a record that says why a job failed."""


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

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        numbers, records = [], []
        for number, job in (job for chunk in batch["jobs"] for job in json.loads(chunk)):
            record = self._one(job)
            numbers.append(number)
            records.append(json.dumps(record))
            if not record.keys().isdisjoint(FAILURES):
                break  # The stage ends with it.
        return {"number": numbers, "record": records, "node": [node] * len(numbers)}

    def _one(self, job: Record) -> Record:
        if self._worker is None:
            return {"job": job, "traceback": self._failure}
        try:
            return self._worker(job)
        except JobFailed as error:
            return {"job": job, "failed": str(error)}
        except Exception:
            return {"job": job, "traceback": traceback.format_exc()}


@dataclass
class _Kept:
    """What a process keeps from one task to the next: the worker of the jobs that it does now."""

    jobs: str = ""
    call: _Call | None = None


_kept = _Kept()


def _call_kept(
    batch: dict[str, Any], jobs: str, worker: str, arguments: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """What Ray Data runs as a task. Ray gives tasks to processes that are there already.

    Args:
        jobs: names the call of `run_jobs`: each has workers of its own, made once a process.
    """
    if _kept.call is None or _kept.jobs != jobs:
        # First the old one goes, with all that it keeps.
        _kept.call = None
        gc.collect()
        give_back()
        _kept.call, _kept.jobs = _Call(worker, arguments), jobs
    return _kept.call(batch)


def run_jobs(
    context: Context, worker: str, arguments: Mapping[str, Any], jobs: Sequence[Record]
) -> Iterator[Record]:
    """Run `worker` ("module:Class") over `jobs` on the CPUs granted; yield records as they come.

    Args:
        arguments: for the worker's constructor; pickled once to each actor, or to each task.
        jobs: JSON-able.

    Raises:
        StageError: a worker raised `JobFailed`.
        RuntimeError: it raised anything else; the text is the worker's traceback.
        Interrupted: the run was asked to stop; jobs that were done stay done.
    """
    if not jobs:
        return
    left = dict(enumerate(jobs))
    done_by: Counter[str] = Counter()
    restarts = 0
    while left:
        before = alive_nodes()
        say_if_busy(context, 1)
        try:
            for row in _rows(context, worker, arguments, left):
                done_by[row["node"]] += 1
                del left[int(row["number"])]
                yield _checked(json.loads(row["record"]))
        except worker_deaths() as error:
            context.stop.check()
            lost = lost_nodes(before, error)
            restarts += not lost
            if restarts > MAX_RESTARTS:
                raise StageError(
                    _WORKERS_DIE.format(restarts, str(error).splitlines()[0])
                ) from error
            what = f"{lost} of {len(before)} nodes" if lost else "a worker process"
            context.progress.note(f"lost {what}; {len(left)} of {len(jobs)} jobs are left to do")
    nodes = len(alive_nodes())
    if nodes > 1 and len(jobs) > 1:
        shares = ", ".join(str(n) for n in sorted(done_by.values(), reverse=True))
        context.progress.note(f"jobs on {len(done_by)} of {nodes} nodes: {shares}")


_WORKERS_DIE = (
    "worker processes died {} times, most likely for want of memory: lower corpus.shard_bytes or "
    "cluster.num_cpus, or give the machine more memory. Ray says: {:.300}"
)


def _checked(record: Record) -> Record:
    if "failed" in record:
        raise StageError(record["failed"])
    if "traceback" in record:
        raise RuntimeError(f"job {record['job']}:\n{record['traceback']}")
    return record


MOST_AT_A_TIME = 8


def chunks(jobs: int, workers: int) -> list[int]:
    """How many jobs are handed out at a time, from the first to the last.

    Ray Data looks ten times a second whether a task has ended: workers would wait longer for short
    jobs than they take. Of the jobs that are left, a worker is handed half of its share, so that
    the last ones are handed out one by one and all workers end together (guided self-scheduling,
    Polychronopoulos and Kuck 1987).
    """
    sizes = []
    while jobs:
        sizes.append(min(MOST_AT_A_TIME, -(-jobs // (2 * workers))))
        jobs -= sizes[-1]
    return sizes


QUEUED = 2
"""Chunks that are handed out for each CPU or actor: the one that is done, and the next."""


def _rows(
    context: Context, worker: str, arguments: Mapping[str, Any], jobs: Mapping[int, Record]
) -> Iterator[dict[str, Any]]:
    import ray

    size = max(1, min(int(context.granted.cpus), len(jobs)))
    # Beside another node's tasks, those that wait would take its CPUs.
    has_all = context.granted.cpus >= ray.cluster_resources().get("CPU", 0.0)
    numbered = iter(jobs.items())
    handed = [
        {"jobs": json.dumps(list(itertools.islice(numbered, n)))} for n in chunks(len(jobs), size)
    ]
    items = ray.data.from_items(handed, override_num_blocks=len(handed))
    # Jobs need next to no memory of Ray's, and what may run is granted. With reservations, Ray Data
    # would start one task alone for a second, and hand out none before a CPU is free.
    items.context.op_resource_reservation_enabled = False
    made_of: dict[str, Any] = {"worker": worker, "arguments": dict(arguments)}
    if context.node.settings.get("speed", {}).get("workers") != "actors":
        dataset = items.map_batches(
            _call_kept,
            fn_kwargs={"jobs": secrets.token_hex(8), **made_of},
            batch_size=1,
            compute=ray.data.TaskPoolStrategy(
                size=min(len(handed), size * (QUEUED if has_all else 1))
            ),
            num_cpus=1,
            max_retries=0,
        )
    else:
        dataset = items.map_batches(
            _Call,
            fn_constructor_kwargs=made_of,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=QUEUED),
            num_cpus=1,
            # A lost actor is not restarted by Ray: on a cluster with fewer CPUs than before, its
            # job would wait for it for ever.
            max_restarts=0,
            max_task_retries=0,
        )
    for row in dataset.iter_rows():
        context.stop.check()
        yield row
