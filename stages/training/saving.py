"""Checkpoints written beside the training: a copy at the step, the writing in a thread.

Rank 0 copies weights and moments into buffers of its own, which costs the time of the copy, and a
thread serialises and uploads them. Where they are cut among ranks, all ranks bring them together
first, one tensor at a time. There is one set of buffers: the next save waits for the last.
A failure is told at the next step, and the run goes on; it ends when writing failed several times
in a row, and at once when it cannot get better by itself (a full disk).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from stages.training import checkpoint, distributed
from stages.training.job import Hooks, Job
from stages.training.sharding import gathered, is_sharded
from stages.training.weights import moments_of, weights_of

MAX_FAILURES = 3
"""Saves that may fail in a row before the run ends."""

_HOPELESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


class CheckpointWriteError(OSError):
    """Checkpoints cannot be written; on rank 0 the message says why."""


def full_disk(error: BaseException | None) -> OSError | None:
    """The error of a full disk or a used-up quota that lies behind `error`, or None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error
        error = error.__cause__ or error.__context__
    return None


class Saver:
    """Saves a run. A context manager; only rank 0 writes.

    Leaving the block waits for the write under way, also after an error.

    Args:
        job: where checkpoints lie, and what stands in them.
        hooks: told of each complete checkpoint and of each failure, in the training's thread.
        model: whose weights are saved, in its own order.
        optimiser: whose moments are saved.
        rounding: as `TrainJob.rounding_values`.
    """

    def __init__(
        self,
        job: Job,
        hooks: Hooks,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        rounding: Mapping[str, Any],
    ) -> None:
        self._job, self._hooks = job, hooks
        self._model, self._optimiser, self._rounding = model, optimiser, rounding
        self._buffers: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        self._copied: torch.cuda.Event | None = None
        self._thread: threading.Thread | None = None
        self._state: checkpoint.State | None = None
        self._problem: Exception | None = None
        self._failures = 0
        self._error: CheckpointWriteError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._settle()

    def save(
        self,
        step: int,
        position: tuple[int, int],
        tokens_seen: int,
        figures: Mapping[str, float],
        score: float | None = None,
        settled: Mapping[str, Any] | None = None,
    ) -> None:
        """Save the model as it is now; waits for the save before, not for this one.

        Called on every rank, at the same step.

        Args:
            step: finished optimiser steps.
            position: (epoch, row) where the next batch begins.
            tokens_seen, figures, score, settled: as in `checkpoint.State`.
        """
        if distributed.rank() != 0:
            if is_sharded(self._model):
                for tensors in self._tensors():
                    for _ in gathered(tensors):
                        pass
            return
        if self._thread is not None:
            self._settle()
        for buffers, tensors in zip(self._buffers, self._tensors(), strict=True):
            _copy(gathered(tensors), buffers)
        if torch.cuda.is_available() and any(p.is_cuda for p in self._model.parameters()):
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        self._state = checkpoint.State(
            step=step,
            epoch=position[0],
            row=position[1],
            tokens_seen=tokens_seen,
            figures=figures,
            fingerprint=self._job.fingerprint,
            vocabulary_digest=self._job.vocabulary_digest,
            config=self._job.described(),
            rounding=self._rounding,
            score=score,
            settled=settled or {},
        )
        self._begin()

    def in_trouble(self) -> bool:
        """Look at the write under way, without waiting; whether the run has to end."""
        if self._thread is not None and not self._thread.is_alive():
            self._settle()
        return self._error is not None

    def fail(self) -> None:
        """End the run, as rank 0 asked all ranks to.

        Raises:
            CheckpointWriteError: always.
        """
        raise self._error or CheckpointWriteError("rank 0 could not write checkpoints")

    def finish(self, required: bool, goes_on: bool = False) -> None:
        """Wait for the last save; when it failed and is required, try it again.

        Called on every rank, at the same step.

        Args:
            required: all that is left of a stopped run, or nothing may follow without it.
            goes_on: steps follow, and other ranks must not wait there for one that ends here. At
                the end of a run they leave at once, as they may have been told to be quick.

        Raises:
            CheckpointWriteError: it could not be written, and is required.
        """
        if self._thread is not None:
            self._settle()
        while required and self._failures and self._error is None:
            self._begin()
            self._settle()
        if required and goes_on:
            device = next(self._model.parameters()).device
            failed, _ = distributed.from_rank_0(self._error is not None, {}, device)
            if failed:
                self.fail()
        elif required and self._error is not None:
            self.fail()
        elif self._error is not None:
            self._hooks.notice(str(self._error))

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return weights_of(self._model), moments_of(self._model, self._optimiser)

    def _begin(self) -> None:
        self._problem = None
        self._thread = threading.Thread(target=self._write, name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        assert self._state is not None
        try:
            if self._copied is not None:
                self._copied.synchronize()
            checkpoint.save(
                self._job.checkpoint_filesystem,
                self._job.checkpoint_folder,
                self._job.attempt,
                self._state,
                *self._buffers,
                self._job.train.keep_checkpoints,
                self._job.train.keep_best,
            )
        except Exception as problem:  # Whatever a filesystem raises; told by `_settle`.
            self._problem = problem

    def _settle(self) -> None:
        """Wait for the write under way and say what came of it."""
        assert self._thread is not None and self._state is not None
        self._thread.join()
        self._thread = None
        step, problem = self._state.step, self._problem
        if problem is None:
            self._failures = 0
            self._hooks.saved(step)
            return
        self._failures += 1
        said = f"the checkpoint of step {step:,} could not be written ({problem})"
        if getattr(problem, "errno", None) in _HOPELESS or self._failures >= MAX_FAILURES:
            again = f", nor could the {self._failures - 1} before it" if self._failures > 1 else ""
            self._error = CheckpointWriteError(
                f"{said}{again}, so training ends here: what it does from now on would be lost. "
                f"{self._need()}The checkpoints before it stay, and the same command goes on from "
                "the newest"
            )
            self._error.__cause__ = problem
        else:
            self._hooks.notice(f"{said}; training goes on, and the next one is tried")

    def _need(self) -> str:
        bytes_ = sum(t.numel() * t.element_size() for b in self._buffers for t in b.values())
        kept = self._job.train.keep_checkpoints
        return (
            f"A checkpoint takes {bytes_ / 1e6:,.0f} MB, and {kept + 1} of them lie in "
            f"{self._job.checkpoint_folder} for a moment ({self._job.group}.keep_checkpoints="
            f"{kept}). "
        )


def _copy(tensors: Iterable[tuple[str, Tensor]], buffers: dict[str, Tensor]) -> None:
    """Copy tensors into buffers on CPU of the same names, made where they are not there yet."""
    for name, tensor in tensors:
        if name not in buffers:
            buffers[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        # In order with the step after it on the device, which does not wait for it.
        buffers[name].copy_(tensor, non_blocking=tensor.is_cuda)
