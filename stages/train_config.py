"""What a user may set of training: the group `train`, and phases."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pipeline.config import Group
from stages.config_types import OpenShare, PositiveFloat, PositiveInt, Share

BUDGETS = ("steps", "tokens", "hours")
BATCH_SIZES = ("global_batch_size", "global_batch_tokens")


def check_one_of(group: str, values: Group, names: tuple[str, ...], what: str) -> None:
    """Refuse several of `names`, or none."""
    given = {name: getattr(values, name) for name in names if getattr(values, name) is not None}
    if len(given) == 1:
        return
    said = " and ".join(f"{group}.{name}={value}" for name, value in given.items())
    keep = list(given)[-1] if given else names[0]
    others = " ".join(f"{group}.{name}=null" for name in given if name != keep)
    raise ValueError(
        f"{said} say twice {what}: add {others}"
        if given
        else f"nothing says {what}: set one of {', '.join(f'{group}.{name}' for name in names)}"
    )


class MixedConfig(Group):
    """Rows of another run that are mixed into training."""

    path: Annotated[str, Field(min_length=1)] = Field(
        description="Folder or URI of the artifact: <store>/mask/<length>/<fingerprint> "
        "(with mask.when=loading: pairs/...). Of the same vocabulary."
    )
    weight: OpenShare = Field(description="Its share of the rows; what is left is this run's own.")


def _leave_a_share(mix: tuple[MixedConfig, ...] | None) -> tuple[MixedConfig, ...] | None:
    if mix and (taken := math.fsum(mixed.weight for mixed in mix)) >= 1:
        raise ValueError(
            f"the weights of mix add up to {taken:g}, which leaves no share to this run's own "
            "rows: lower them below 1 together"
        )
    return mix


Mix = Annotated[tuple[MixedConfig, ...], AfterValidator(_leave_a_share)]


class TrainConfig(Group):
    """Optimisation: the mathematics of training."""

    steps: PositiveInt | None = Field(
        1000, description="Optimiser steps. One of steps, tokens and hours is set, the others null."
    )
    tokens: PositiveInt | None = Field(
        None, description="Tokens to see, turned into steps by the mean length of the rows."
    )
    hours: PositiveFloat | None = Field(
        None,
        description="Hours on this machine, turned into steps once by a measured rehearsal, so "
        "that the schedule fits: the result depends on the machine.",
    )
    global_batch_size: PositiveInt | None = Field(
        32, description="Examples a step, over all workers; or null and global_batch_tokens."
    )
    global_batch_tokens: PositiveInt | None = Field(
        None, description="Tokens a step, turned into examples by the mean length of the rows."
    )
    length_bins: Annotated[int, Field(ge=2, le=256)] | None = Field(
        None,
        description="So many bins of equal width up to max_seq_length: a step's examples, of all "
        "workers, are of one bin. null: of any length, as nothing is padded but attention on the "
        "sdpa path.",
    )
    mix: Mix = Field(
        (), description="Artifacts of other runs whose rows are mixed in, in exact proportion."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-3, description="Peak learning rate.")
    warmup_share: Share = Field(0.05, description="Share of the steps with linear warm-up.")
    schedule: Literal["linear", "cosine", "constant", "wsd"] = Field(
        "linear",
        description="After warm-up: down to zero, or constant, or constant and at the end down to "
        "zero (wsd: warm-up, stable, decay).",
    )
    decay_share: OpenShare = Field(0.1, description="Share of the steps that wsd falls over.")
    optimizer: Literal["adamw", "lamb", "muon"] = Field(
        "adamw",
        description="With decay on matrices only. lamb: for large batches. muon: an experiment, on "
        "the encoder's matrices, with AdamW for the rest.",
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.01, description="Decoupled decay.")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="First moment.")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.999, description="Second moment.")
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-6, description="Of the optimiser.")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="Largest global gradient norm; null: no clipping."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="A loss or gradient that is NaN or infinite ends the run, or costs the step "
        "(10 in a row end it too). The batch is kept in the node's work folder until it is made.",
    )
    precision: Literal["bf16", "tf32", "float32"] = Field(
        "bf16",
        description="Of matrix products; weights and optimiser state stay float32. tf32: float32 "
        "rounded to 10 bits of fraction on CUDA devices that have it, float32 elsewhere.",
    )
    checkpoint_every_steps: PositiveInt = Field(500, description="Changes no result.")
    evaluate_every_steps: PositiveInt = Field(
        500, description="Held-out figures while training. Changes no result."
    )
    log_every_steps: PositiveInt = Field(20, description="Changes no result.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest kept. Changes no result.")
    keep_best: bool = Field(
        True,
        description="The checkpoint with the lowest held-out loss is kept too, of those at whose "
        "step it was measured. Changes no result.",
    )
    carry_moments: bool = Field(
        True,
        description="A phase after the first begins with the optimiser's moments and step count "
        "of the one before it; false: with none, as weights alone were handed on.",
    )
    init_from: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Weights to start from instead of drawn ones: a folder that transformers or "
        "export wrote, or a pretrain artifact. Its vocabulary has to be this run's: vocab.from.",
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        check_one_of("train", self, BUDGETS, "how long to train")
        check_one_of("train", self, BATCH_SIZES, "how much a step takes")
        return self


class PhaseConfig(Group):
    """One phase of pretraining: what it sets differently from `pairs` and `train`."""

    max_seq_length: Annotated[int, Field(ge=8)] = Field(description="As pairs.max_seq_length.")
    steps: PositiveInt | None = Field(
        None, description="null, and tokens and hours too: as train says."
    )
    tokens: PositiveInt | None = Field(None, description="Instead of steps.")
    hours: PositiveFloat | None = Field(None, description="Instead of steps.")
    global_batch_size: PositiveInt | None = Field(
        None, description="null, and global_batch_tokens too: as train says."
    )
    global_batch_tokens: PositiveInt | None = Field(
        None, description="Instead of global_batch_size."
    )
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(None, description="null: train's.")
    mix: Mix | None = Field(None, description="null: train's.")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for names, what in ((BUDGETS, "how long to train"), (BATCH_SIZES, "how much a step takes")):
            if any(getattr(self, name) is not None for name in names):
                check_one_of("phases.N", self, names, what)
        return self

    def completed(self, train: TrainConfig) -> PhaseConfig:
        """With what `train` says where it says nothing itself."""
        values: dict[str, Any] = {
            "learning_rate": self.learning_rate or train.learning_rate,
            "mix": train.mix if self.mix is None else self.mix,
        }
        for names in (BUDGETS, BATCH_SIZES):
            own = any(getattr(self, name) is not None for name in names)
            values |= {name: getattr(self if own else train, name) for name in names}
        return PhaseConfig(max_seq_length=self.max_seq_length, **values)
