"""Where a run begins: at a checkpoint, or as its job says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from stages.training import distributed
from stages.training.checkpoint import State, check_same_run, differences, load_latest
from stages.training.job import Hooks, Job, TrainJob
from stages.training.randomness import key
from stages.training.sharding import own_part
from stages.training.tensor_files import read_tensors
from stages.training.weights import set_moments, set_weights, weights_of


@dataclass(frozen=True)
class Start:
    """The first step of a run, and what a checkpoint says of those before it: `State`."""

    step: int
    tokens_seen: int
    figures: Mapping[str, float]
    settled: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Beginning:
    """What a run without a checkpoint begins with.

    Attributes:
        source: where it is from, for messages.
        weights: by name; empty where each rank draws the same ones.
        moments: of the optimiser, as `weights.moments_of` names them.
    """

    source: str = ""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    moments: Mapping[str, Tensor] = field(default_factory=dict)


class RestoreError(ValueError):
    """Rank 0 could not begin; the other ranks say why with its words."""


def restore(
    job: Job,
    hooks: Hooks,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    rounding: dict[str, Any],
    begin: Callable[[], Beginning],
    draw: Callable[[], Mapping[str, Tensor]],
) -> Start:
    """Fill model and optimiser, the same on all ranks: rank 0 reads, the others receive.

    Args:
        job, hooks: of the run.
        model, optimiser: filled.
        rounding: as `rounding_values`.
        begin: called on rank 0 where there is no checkpoint.
        draw: the weights by name, on CPU; called on every rank where `begin` gave none.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to another configuration (on rank 0; the
            other ranks raise RestoreError with its message).
        ValueError: what `begin` gives does not fit the model, or cannot be read.
    """
    header: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    error: Exception | None = None
    if distributed.rank() == 0:
        try:
            header, tensors = _read(job, hooks, rounding, begin)
        except (ValueError, OSError) as problem:
            # Told to the other ranks too, which would wait for tensors otherwise.
            header, error = {"error": str(problem)}, problem
    device = next(model.parameters()).device
    parameters = dict(model.named_parameters())

    def keep(path: str, tensor: Tensor) -> Tensor:
        # "weights:NAME" or "moments:KEY/NAME".
        name = path.partition(":")[2].rpartition("/")[2]
        return own_part(parameters.get(name), tensor)

    header, tensors = distributed.from_rank_0(header, tensors, device, keep)
    if "error" in header:
        raise error or RestoreError(header["error"])

    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "moments": {}}
    for path, tensor in tensors.items():
        kind, _, name = path.partition(":")
        parts[kind][name] = tensor
    if parts["weights"]:
        set_weights(model, parts["weights"], header["source"])
    else:
        set_weights(model, {n: keep(f"weights:{n}", w) for n, w in draw().items()}, "the seed")
    set_moments(model, optimiser, parts["moments"])
    return Start(
        header.get("step", 0),
        header.get("tokens_seen", 0),
        header.get("figures", {}),
        header.get("settled", {}),
    )


def _read(
    job: Job, hooks: Hooks, rounding: dict[str, Any], begin: Callable[[], Beginning]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    found = load_latest(job.checkpoint_filesystem, job.checkpoint_folder, hooks.notice)
    if found is not None:
        check_same_run(found.state, job.fingerprint, job.described())
        _tell(found.state, rounding, hooks)
        header = {
            "source": f"the checkpoint of step {found.state.step}",
            "step": found.state.step,
            "tokens_seen": found.state.tokens_seen,
            "figures": dict(found.state.figures),
            "settled": dict(found.state.settled),
        }
        return header, _named(found.weights, found.moments)
    beginning = begin()
    return {"source": beginning.source}, _named(beginning.weights, beginning.moments)


def _named(weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = {f"weights:{name}": tensor for name, tensor in weights.items()}
    return tensors | {f"moments:{name}": tensor for name, tensor in moments.items()}


def given_start(job: TrainJob) -> Beginning:
    """What `init_from` and `init_moments` of a run of pretraining say."""
    if job.init_from is None:
        return Beginning()
    moments = {}
    if job.init_moments is not None:
        moments = read_tensors(job.filesystem, job.init_moments)
    return Beginning(job.init_from, read_tensors(job.filesystem, job.init_from), moments)


def _tell(state: State, rounding: dict[str, Any], hooks: Hooks) -> None:
    changed = differences(state.rounding, rounding)
    if changed:
        hooks.notice(
            f"resuming at step {state.step} with other rounding, so the last bits will differ "
            f"from an undisturbed run: {'; '.join(changed)}"
        )
    else:
        # Also where workers died and were started again, which nobody else tells.
        hooks.notice(f"goes on from the checkpoint of step {state.step:,}")


def drawn_weights(config: BertConfig, seed: int) -> dict[str, Tensor]:
    """The weights of a run of this seed that starts from nothing, by name, on CPU."""
    # Drawn on CPU, so that a seed gives the same weights on any device.
    model = BertForPreTraining(config)
    generator = torch.Generator().manual_seed(key(seed, "weights") & (2**63 - 1))
    init_weights(model, generator)
    return weights_of(model)
