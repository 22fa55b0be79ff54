"""One optimiser step: the gradient of a global batch, then the change of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stages.training.device import autocast
from stages.training.gradients import gradients_of
from stages.training.job import Job
from stages.training.randomness import seed_dropout
from stages.training.weights import moments_of, set_moments


class Objective(Protocol):
    """What is learned."""

    @property
    def losses(self) -> tuple[str, ...]:
        """The parts that the loss is the sum of, in words."""
        ...

    def forward(self, model: nn.Module, micro: Any) -> Any:
        """Run the model on a micro-batch; under autocast."""
        ...

    def parts(self, output: Any, micro: Any, batch: Any) -> Sequence[Tensor]:
        """This micro-batch's share of each part: sums divided by counts of the global batch."""
        ...


@dataclass(frozen=True)
class StepLosses:
    """Of a global batch, the same on all ranks.

    Attributes:
        parts: as `Objective.losses` names them; nats, or squared units of regression.
        grad_norm: of all gradients, before clipping.
        asked: what rank 0 asks of all ranks at this step.
    """

    parts: tuple[float, ...]
    grad_norm: float
    asked: float

    @property
    def loss(self) -> float:
        """The sum of the parts."""
        return sum(self.parts)

    @property
    def finite(self) -> bool:
        """Whether the gradients can be applied."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Stepper:
    """Steps of one rank.

    Args:
        job: its precision, clipping and seed.
        model: float32, on `device`; its gradients belong to this object from now on.
        optimiser: of the model's parameters that learn. A group with a `scale` learns so many
            times as fast as the schedule says.
        objective: what is learned.
        device: of the model.
        rank: of this process.
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        objective: Objective,
        device: torch.device,
        rank: int,
    ) -> None:
        self._job = job
        self._model = model
        self._optimiser = optimiser
        self._objective = objective
        self._device = device
        self._rank = rank
        # Summed over ranks with the gradients: the parts of the loss, what rank 0 asks of all.
        self._gradients = gradients_of(model, figures=len(objective.losses) + 1)

    def gradients_of(self, step: int, batch: Any, ask: Callable[[], float]) -> StepLosses:
        """Losses and gradients of a global batch, of which `batch` is this rank's part.

        Args:
            step: counted from 0; keys the dropout.
            batch: its `micro_batches` may be none; of a sharded model, as many on all ranks.
            ask: called on rank 0 alone, for `StepLosses.asked`.
        """
        gradients, objective = self._gradients, self._objective
        seed_dropout(self._job.seed, step, self._rank)
        gradients.zero()
        for number, micro in enumerate(batch.micro_batches, 1):
            gradients.before_pass(last=number == len(batch.micro_batches))
            micro = micro.to(self._device)
            with autocast(self._device.type, self._job.train.precision):
                output = objective.forward(self._model, micro)
            parts = objective.parts(output, micro, batch)
            for place, part in enumerate(parts):
                gradients.figures[place] += part.detach()
            loss = parts[0]
            for part in parts[1:]:
                loss = loss + part
            loss.backward()  # type: ignore[no-untyped-call]
        if self._rank == 0:
            gradients.figures[-1] = ask()
        gradients.sum_over_ranks()
        # The one place of a step where the CPU waits for the device.
        *sums, asked, norm = torch.cat([gradients.figures, gradients.norm()[None]]).tolist()
        return StepLosses(tuple(sums), norm, asked)

    def change_weights(self, rate: float, grad_norm: float) -> None:
        """Clip the gradients of the last `gradients_of` and apply them."""
        largest = self._job.train.clip_norm
        if largest is not None:
            self._gradients.clip(grad_norm, largest)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        self._optimiser.step()

    def moments(self) -> dict[str, Tensor]:
        """A copy of the optimiser's tensors by name."""
        moments = moments_of(self._model, self._optimiser)
        return {name: tensor.clone() for name, tensor in moments.items()}

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Return the optimiser to what `moments` gave."""
        set_moments(self._model, self._optimiser, moments)
