"""Ray Train around a training run: its workers are started, watched, and started again.

Our checkpoints say where a run goes on, not Ray's; they lie in the node's work folder, named by
the fingerprint and the generation, so that a changed config never finds them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from pipeline.channel import Channel
from pipeline.stage import Context, Interrupted, StageError
from stages.nodes import nodes_room, say_if_busy, share_per_worker, watch_room
from stages.remote import run_remote

MAX_FAILURES = 3


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
    use_gpu = _uses_gpus(context, least)
    reached, vain = 0, 0
    for round_ in itertools.count():
        stopped_at = _fit(context, worker, plan, (least, most), use_gpu, round_)
        if stopped_at is None:
            return
        # The run or a worker was told to stop, or workers lost the way to the driver with a node:
        # a checkpoint is written in each case.
        vain = 0 if stopped_at > reached else vain + 1
        if context.stop.is_set() or vain > MAX_FAILURES:
            break
        reached = max(reached, stopped_at)
        context.progress.note(
            f"a worker or its node is taken away; training goes on from the checkpoint of step "
            f"{stopped_at:,}"
        )
    raise Interrupted("training was asked to stop; its checkpoint is written")


def _uses_gpus(context: Context, workers: int) -> bool:
    """Whether to train on GPUs; a person is told where some are left unused.

    Raises:
        StageError: they are asked for in vain.
    """
    device, granted = context.node.settings["cluster"]["device"], context.granted.gpus
    if device == "cpu" or (device == "auto" and not granted):
        return False
    if granted < workers:
        if device == "cuda":
            raise StageError(
                f"cluster.device=cuda: {workers} workers need as many GPUs, this run may use "
                f"{granted:g}. Lower cluster.train_workers or set cluster.device=cpu"
            )
        context.progress.note(
            f"{workers} workers and {granted:g} GPUs: training on CPUs. Lower "
            "cluster.train_workers to train on GPUs"
        )
        return False
    # Ray counts what the machine has. Asked before NCCL starts, which says less.
    torch = run_remote(context, "stages.training_worker:torch_of_worker", {})
    if torch["gpus"]:
        return True
    found = f"torch {torch['version']} sees no GPU in a process that was given one"
    advice = "install a build of torch for CUDA, or a driver that is new enough for it"
    if device == "cuda":
        raise StageError(f"cluster.device=cuda: {found}. {advice}, or set cluster.device=cpu")
    context.progress.note(f"{found}: training on CPUs. To train on GPUs, {advice}")
    return False


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

    cluster = context.node.settings["cluster"]
    cpus = cluster["cpus_per_worker"] or share_per_worker(
        workers[1], context.granted.cpus, nodes_room(), gpus=float(use_gpu)
    )
    least, most = workers_within(workers, cpus, cluster["num_cpus"])
    say_if_busy(context, least * cpus)
    resources = {"CPU": cpus} | ({"GPU": 1.0} if use_gpu else {})
    told = plan(max(1, math.floor(cpus)), use_gpu)
    with Channel(context.metrics, context.progress, context.stop) as channel:
        trainer = TorchTrainer(
            worker,
            train_loop_config={"plan": told, "sender": channel.sender},
            torch_config=LeavingTorchConfig(),
            scaling_config=ScalingConfig(
                num_workers=least if least == most else (least, most),
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
            raise _readable(error) from error
    ended = result.return_value or {"stopped": True, "step": 0}
    if "failed" in ended:
        raise StageError(ended["failed"])
    return int(ended["step"]) if ended["stopped"] else None


def workers_within(workers: tuple[int, int], cpus: float, num_cpus: int | None) -> tuple[int, int]:
    """The range of workers of `cpus` CPUs each that stays within what the run may use.

    A cluster may grow while a run waits for more, so that only `cluster.num_cpus` is a cap.
    """
    least, most = workers
    if num_cpus is None:
        return workers
    return least, max(least, min(most, math.floor(num_cpus / cpus + 1e-9)))


def _readable(error: BaseException) -> Exception:
    """Ray Train wraps what a worker raised several times over; keep what it says first."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, cause = next(iter(sorted(failures.items())))
        return RuntimeError(f"training worker {rank} failed: {cause}")
    return RuntimeError(str(error))
