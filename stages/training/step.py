"""One optimiser step: the gradient of a global batch, then the change of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.bert import BertForPreTraining
from model.losses import nsp_loss_sum
from stages.training.device import autocast
from stages.training.gradients import gradients_of
from stages.training.job import TrainJob
from stages.training.packing import StepBatch
from stages.training.randomness import seed_dropout
from stages.training.weights import moments_of, set_moments


@dataclass(frozen=True)
class StepLosses:
    """Of a global batch, the same on all ranks.

    Attributes:
        mlm: nats a masked position.
        pair: nats a pair; 0 without pairs.
        grad_norm: of all gradients, before clipping.
        asked: what rank 0 asks of all ranks at this step.
    """

    mlm: float
    pair: float
    grad_norm: float
    asked: float

    @property
    def finite(self) -> bool:
        """Whether the gradients can be applied."""
        return math.isfinite(self.mlm + self.pair) and math.isfinite(self.grad_norm)


class Stepper:
    """Steps of one rank.

    Args:
        job: its precision, clipping and seed.
        model: float32, on `device`; its gradients belong to this object from now on.
        optimiser: of the model's parameters.
        device: of the model.
        rank: of this process.
    """

    def __init__(
        self,
        job: TrainJob,
        model: BertForPreTraining,
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        rank: int,
    ) -> None:
        self._job = job
        self._model = model
        self._optimiser = optimiser
        self._device = device
        self._rank = rank
        # Summed over ranks with the gradients: MLM loss, pair loss, what rank 0 asks of all.
        self._gradients = gradients_of(model, figures=3)

    def gradients_of(self, step: int, batch: StepBatch, ask: Callable[[], float]) -> StepLosses:
        """Losses and gradients of a global batch, of which `batch` is this rank's part.

        Args:
            step: counted from 0; keys the dropout.
            batch: may hold no example; of a sharded model, as many micro-batches on all ranks.
            ask: called on rank 0 alone, for `StepLosses.asked`.
        """
        gradients = self._gradients
        seed_dropout(self._job.seed, step, self._rank)
        gradients.zero()
        for number, micro in enumerate(batch.micro_batches, 1):
            gradients.before_pass(last=number == len(batch.micro_batches))
            micro = micro.to(self._device)
            with autocast(self._device.type, self._job.train.precision):
                output = self._model(*micro.inputs(), micro.mlm_labels)
            assert output.mlm_loss_sum is not None
            loss = output.mlm_loss_sum / max(1, batch.masked)
            gradients.figures[0] += loss.detach()
            if output.nsp_logits is not None and micro.is_next is not None:
                nsp_loss = nsp_loss_sum(output.nsp_logits, micro.is_next) / batch.pairs
                gradients.figures[1] += nsp_loss.detach()
                loss = loss + nsp_loss
            loss.backward()
        if self._rank == 0:
            gradients.figures[2] = ask()
        gradients.sum_over_ranks()
        # The one place of a step where the CPU waits for the device.
        mlm, pair, asked, norm = torch.cat([gradients.figures, gradients.norm()[None]]).tolist()
        return StepLosses(mlm, pair, norm, asked)

    def change_weights(self, rate: float, grad_norm: float) -> None:
        """Clip the gradients of the last `gradients_of` and apply them."""
        largest = self._job.train.clip_norm
        if largest is not None:
            self._gradients.clip(grad_norm, largest)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()

    def moments(self) -> dict[str, Tensor]:
        """A copy of the optimiser's tensors by name."""
        moments = moments_of(self._model, self._optimiser)
        return {name: tensor.clone() for name, tensor in moments.items()}

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Return the optimiser to what `moments` gave."""
        set_moments(self._model, self._optimiser, moments)
