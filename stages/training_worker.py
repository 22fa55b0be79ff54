"""What the workers of all training stages do alike: run, tell the driver, and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.channel import Sender


def as_worker(
    config: dict[str, Any], train_here: Callable[[Any, Sender, int, int], dict[str, Any]]
) -> dict[str, Any] | None:
    """Train in a Ray Train worker.

    Args:
        config: {"plan", "sender"}.
        train_here: called with plan, sender, rank and the rank among those of the host; returns
            whether it was "stopped", and the last "step".

    Returns:
        Rank 0's outcome. Errors that a person can act on come back as {"failed": text}; the others
        raise.

    Raises:
        StageError: this worker alone met what a person has to mend, and the others wait for it:
            raising makes Ray end them all. Started again, each returns what was met.
    """
    import ray.train

    from model.attention import AttentionPathError
    from pipeline.stage import StageError
    from stages.leaving import training
    from stages.training.checkpoint import CheckpointMismatchError
    from stages.training.device import memory_ran_out
    from stages.training.nonfinite import NonFiniteError
    from stages.training.rehearsal import BudgetError
    from stages.training.row_groups import DataError
    from stages.training.saving import CheckpointWriteError, full_disk
    from stages.training.start import RestoreError

    sender: Sender = config["sender"]
    ranks = ray.train.get_context()
    rank = ranks.get_world_rank()
    failed = sender.failure()
    if failed is not None:
        return {"failed": failed}
    if rank == 0:
        sender.began()
    told = f"training worker {rank} is told to end (SIGTERM): saving, and stopping all workers"
    try:
        with training(lambda: sender.leave(told)):
            outcome = train_here(config["plan"], sender, rank, ranks.get_local_rank())
    except (
        NonFiniteError, CheckpointMismatchError, CheckpointWriteError, RestoreError, BudgetError
    ) as error:  # fmt: skip
        # All ranks raise these, at the same step.
        return {"failed": str(error)}
    except (AttentionPathError, DataError) as error:
        failed = str(error)
    except OSError as error:
        # Started again it would fill the disk again.
        if not full_disk(error):
            raise
        failed = str(error)
    except RuntimeError as error:
        failed = memory_ran_out(error, config["plan"].settings["rounding"])
        if failed is None:
            raise
    finally:
        sender.close()
    if failed is None:
        return outcome if rank == 0 else None
    if ranks.get_world_size() > 1:
        sender.fail(failed)
        raise StageError(failed)
    return {"failed": failed}


def torch_of_worker() -> dict[str, Any]:
    """In a task with a GPU: how many torch can use, and its version."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"gpus": gpus, "version": torch.__version__}


class DriverHooks:
    """Hands a training run's words to the driver.

    Args:
        sender: to the driver.
        prefix: of the names of figures.
    """

    def __init__(self, sender: Sender, prefix: str = "") -> None:
        self._sender = sender
        self._prefix = prefix
        self._steps = 0
        self._begun = False
        self._warned = False
        self._last = 0

    def planned(self, steps: int, done: int) -> None:
        """Begin the progress line."""
        self._steps = steps
        self._sender.start(steps, "steps", done=done)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send figures, and move the progress line."""
        self._sender.log({f"{self._prefix}{name}": v for name, v in values.items()}, step)
        if "train/loss" not in values:
            return
        if not self._begun:
            # Anew: the first steps claim memory and compile, and say nothing of the time left.
            self._sender.start(self._steps, "steps", done=step)
            self._begun = True
            self._last = step
        self._sender.advance(step - self._last, **figures_in_words(values))
        self._last = step

    def should_stop(self) -> bool:
        """Whether the driver, or a worker that has to leave, asked for it."""
        return self._sender.should_stop()

    def should_save(self) -> bool:
        """Once, when a machine is about to be taken away."""
        if self._warned or not _machine_is_leaving():
            return False
        self._warned = True
        self._sender.note("a machine of this training is about to be taken away: saving now")
        return True

    def saved(self, step: int) -> None:
        """Send the figures up to here: a kill after this moment goes on from here."""
        self._sender.flush()

    def notice(self, text: str) -> None:
        """A line under the node's name."""
        self._sender.note(text)


def figures_in_words(values: Mapping[str, float]) -> dict[str, float | int | str]:
    """The figures of a step for the progress line: what is shown, by its label.

    Args:
        values: as logged; those of a rate are missing after the first step of a process.
    """
    shown: dict[str, float | int | str] = {"loss": round(values["train/loss"], 3)}
    if "train/tokens_per_second" in values:
        shown["tokens/s"] = round(values["train/tokens_per_second"])
    for name, label in (("learning_rate", "rate"), ("grad_norm", "gradient")):
        if f"train/{name}" in values:
            shown[label] = f"{values[f'train/{name}']:.3g}"
    for name, label in (("mfu", "MFU"), ("padding_share", "padding"), ("data_wait_share", "wait")):
        if f"train/{name}" in values:
            shown[label] = f"{100 * values[f'train/{name}']:.3g} %"
    if "train/memory_gb" in values:
        shown["memory"] = f"{values['train/memory_gb']:.3g} GB"
    if values.get("train/skipped_steps"):
        shown["skipped"] = round(values["train/skipped_steps"])
    return shown


def _machine_is_leaving() -> bool:
    """Whether Ray was told that a node of this training will be taken away (drained).

    `ray.train.get_preemption_info` gives the same, but waits for all workers at each call.
    """
    try:
        from ray.train.v2._internal.execution.context import get_train_context

        return get_train_context().preemption_context.preemption_info is not None
    except (ImportError, AttributeError, RuntimeError):
        # A release without it, or training outside of Ray Train.
        return False
