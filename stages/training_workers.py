"""Ray Train around a training run: its workers are started, watched, and started again.

Our checkpoints say where a run goes on, not Ray's; they lie in the node's work folder, named by
the fingerprint and the generation, so that a changed config never finds them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.channel import Channel
from pipeline.stage import Context, Interrupted, StageError
from stages.nodes import nodes_room, say_if_busy, share_per_worker, watch_room, worker_deaths
from stages.remote import run_remote

MAX_FAILURES = 3
"""Times that workers may die between two checkpoints."""

RESIZE_SECONDS = 600.0
"""Between two looks at whether a range of workers can grow: each change starts all of them anew,
from the last checkpoint."""


def train_on_workers(
    context: Context,
    worker: Callable[[dict[str, Any]], dict[str, Any] | None],
    plan: Callable[[int, bool], Any],
) -> None:
    """Run `worker` in each of the training processes until it is done.

    Args:
        context: its settings `cluster` say how many, on what; checkpoints lie in its work folder.
        worker: what each runs, with {"plan", "sender"}; see `training_worker.as_worker`.
        plan: what the workers are told, from the threads of each and whether it has a GPU.

    Raises:
        Interrupted: the run was asked to stop; a checkpoint is written.
        StageError: a worker says what a person has to mend, or GPUs are asked for in vain.
    """
    least, most = context.node.settings["cluster"]["train_workers"]
    use_gpu = _uses_gpus(context, least, most)
    reached, vain = 0, 0
    saved = _checkpoints(context)
    for round_ in itertools.count():
        try:
            stopped_at = _fit(context, worker, plan, (least, most), use_gpu, round_)
        except TrainingBroke as error:
            before, saved = saved, _checkpoints(context)
            if saved != before:
                # A run of weeks may lose more workers than Ray would start again.
                text = f"{_last_line(error):.200}; training goes on from its last checkpoint"
                context.progress.note(text)
                continue
            if not error.died:
                raise
            tokens = context.node.settings["rounding"]["micro_batch_tokens"]
            raise StageError(
                "processes of training workers died several times without a checkpoint in between, "
                f"most often for want of memory: lower rounding.micro_batch_tokens ({tokens} now), "
                "set rounding.gradient_checkpointing=true, or take a smaller model. Ray says: "
                f"{' '.join(str(error).split()):.300}"
            ) from error
        if stopped_at is None:
            return
        # The run or a worker was told to stop, or workers lost the way to the driver with a node:
        # a checkpoint is written in each case.
        vain = 0 if stopped_at > reached else vain + 1
        if context.stop.is_set() or vain > MAX_FAILURES:
            break
        reached = max(reached, stopped_at)
        where = f"goes on from the checkpoint of step {stopped_at:,}" if stopped_at else "begins"
        context.progress.note(f"a worker or its node is taken away; training {where}")
    written = "its checkpoint is written" if stopped_at else "before its first step"
    raise Interrupted(f"training was asked to stop; {written}")


class TrainingBroke(RuntimeError):  # noqa: N818 - what happened, not an error of ours
    """Training workers died, raised or did not start more often than `MAX_FAILURES`.

    Attributes:
        died: it was the end of a process.
    """

    died = False


def _checkpoints(context: Context) -> frozenset[str]:
    """Folders of checkpoints, of all seeds."""
    from pyarrow.fs import FileSelector, FileType

    folder = f"{context.output.work}/checkpoints"
    selector = FileSelector(folder, recursive=True, allow_not_found=True)
    found = context.output.fs.get_file_info(selector)
    return frozenset(info.path for info in found if info.type == FileType.Directory)


def _uses_gpus(context: Context, workers: int, most: int) -> bool:
    """Whether to train on GPUs; a person is told where some are left unused.

    Args:
        workers: the fewest.
        most: of them.

    Raises:
        StageError: they are asked for in vain.
    """
    cluster, granted = context.node.settings["cluster"], context.granted.gpus
    device = cluster["device"]
    if device == "cpu" or (device == "auto" and not granted):
        return False
    if granted < workers:
        cap = cluster["num_gpus"]
        if device == "cuda" and cluster["may_grow"] and (cap is None or cap >= workers):
            # A cluster that grows on demand has none before somebody waits for them.
            context.progress.note(
                f"cluster.device=cuda: waiting for {workers} GPUs, the cluster has {granted:g} now"
            )
            return True
        if device == "cuda":
            raise StageError(
                f"cluster.device=cuda: {_workers(workers)} as many GPUs, this run may use "
                f"{granted:g}. {_fewer(granted)} or set cluster.device=cpu"
            )
        context.progress.note(
            f"{workers} workers and {granted:g} GPUs: training on CPUs. {_fewer(granted)} to "
            "train on GPUs"
        )
        return False
    # Ray counts what the machine has. Asked before NCCL starts, which says less.
    torch = run_remote(context, "stages.training_worker:torch_of_worker", {})
    if torch["gpus"]:
        if granted > most:
            context.progress.note(
                f"training uses {most} of {granted:g} GPUs: cluster.train_workers={granted:g} "
                "would use them all"
            )
        return True
    found = f"torch {torch['version']} sees no GPU in a process that was given one"
    advice = "install a build of torch for CUDA, or a driver that is new enough for it"
    if device == "cuda":
        raise StageError(f"cluster.device=cuda: {found}. {advice}, or set cluster.device=cpu")
    context.progress.note(f"{found}: training on CPUs. To train on GPUs, {advice}")
    return False


def _fewer(granted: float) -> str:
    if granted:
        return "Lower cluster.train_workers"
    return "Raise cluster.num_gpus, if it is set and there are GPUs,"


def _workers(count: int) -> str:
    return "1 worker needs" if count == 1 else f"{count} workers need"


def _fit(
    context: Context,
    worker: Callable[[dict[str, Any]], dict[str, Any] | None],
    plan: Callable[[int, bool], Any],
    workers: tuple[int, int],
    use_gpu: bool,
    round_: int,
) -> int | None:
    """Train until the end or a stop; returns the step of the checkpoint of a stop, else None."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from stages.train_backend import LeavingTorchConfig
    from stages.training.device import backend

    cluster = context.node.settings["cluster"]
    cpus = cluster["cpus_per_worker"] or share_per_worker(
        workers[1], context.granted.cpus, nodes_room(), gpus=float(use_gpu)
    )
    num_gpus = cluster["num_gpus"] if use_gpu else None
    least, most = workers_within(workers, cpus, cluster["num_cpus"], num_gpus)
    say_if_busy(context, least * cpus)
    resources = {"CPU": cpus} | ({"GPU": 1.0} if use_gpu else {})
    told = plan(max(1, math.floor(cpus)), use_gpu)
    with Channel(context.metrics, context.progress, context.stop) as channel:
        trainer = TorchTrainer(
            worker,
            train_loop_config={"plan": told, "sender": channel.sender},
            torch_config=LeavingTorchConfig(backend=backend("cuda" if use_gpu else "cpu")),
            scaling_config=ScalingConfig(
                num_workers=least if least == most else (least, most),
                elastic_resize_monitor_interval_s=RESIZE_SECONDS,
                use_gpu=use_gpu,
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                # The attempt is in the name: our checkpoints say where to go on, not Ray's.
                name=f"{context.output.run_name}-{context.attempt}-{round_}",
                storage_path=f"{context.output.work}/ray_train",
                storage_filesystem=None if context.output.is_local else context.output.fs,
                failure_config=FailureConfig(
                    max_failures=MAX_FAILURES, controller_failure_limit=MAX_FAILURES
                ),
            ),
        )
        try:
            with watch_room(context, least, cpus, float(use_gpu)):
                result = trainer.fit()
        except Exception as error:
            context.stop.check()
            failed = channel.failure()
            if failed is not None:
                raise StageError(failed) from error
            raise _readable(error) from error
    ended = result.return_value or {"stopped": True, "step": 0}
    if "failed" in ended:
        raise StageError(ended["failed"])
    return int(ended["step"]) if ended["stopped"] else None


def workers_within(
    workers: tuple[int, int], cpus: float, num_cpus: int | None, num_gpus: float | None = None
) -> tuple[int, int]:
    """The range of workers of `cpus` CPUs each that stays within what the run may use.

    A cluster may grow while a run waits for more, so that only settings are caps.

    Args:
        workers: fewest and most.
        cpus: of each.
        num_cpus: `cluster.num_cpus`.
        num_gpus: `cluster.num_gpus`, where each worker has one.
    """
    least, most = workers
    if num_cpus is not None:
        most = min(most, math.floor(num_cpus / cpus + 1e-9))
    if num_gpus is not None:
        most = min(most, math.floor(num_gpus))
    return least, max(least, most)


def _readable(error: BaseException) -> TrainingBroke:
    """Ray Train wraps what a worker raised several times over; keep what says most.

    When a process dies, the others fail because the connection to it is closed: that it died comes
    first, then what Python raised, then what torch says of a connection.
    """
    failures: Mapping[int, BaseException] | None = getattr(error, "worker_failures", None)
    if not failures:
        # Of a controller's failure the text alone says nothing.
        within = getattr(error, "controller_failure", None)
        said = str(error).strip() or repr(error)
        return TrainingBroke(f"{said} {within!r}" if within and not str(within) else said)

    def rank_of(item: tuple[int, BaseException]) -> tuple[int, int]:
        rank, cause = item
        if _died(cause):
            return 0, rank
        return 2 if _CONNECTION.search(str(cause)) else 1, rank

    rank, cause = min(failures.items(), key=rank_of)
    others = f" ({len(failures)} of the workers failed)" if len(failures) > 1 else ""
    broke = TrainingBroke(f"training worker {rank} failed{others}: {cause}")
    broke.died = _died(cause)
    return broke


def _died(cause: BaseException) -> bool:
    """Whether a worker's process ended; Ray Train says so through its health check."""
    return isinstance(getattr(cause, "health_check_failure", cause), worker_deaths())


def _last_line(error: BaseException) -> str:
    """Of a traceback the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0].partition(':')[0]}: {lines[-1]}"


_CONNECTION = re.compile(
    r"connection (closed|reset|refused)|broken pipe|gloo.*(peer|timeout)|nccl.*(remote|timeout)"
    r"|collective operation timeout",
    re.IGNORECASE,
)
