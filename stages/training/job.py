"""What a training run is told, and what it tells: plain frozen dataclasses and one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pyarrow.fs import FileSystem
from torch import Tensor

from model.bert import BertForPreTraining
from model.config import BertConfig
from stages.training.bins import LengthBins
from stages.training.device import Precision
from stages.training.drawn_masks import DrawnMasks
from stages.training.loader import MixedSource
from stages.training.row_groups import ShardFile


@dataclass(frozen=True)
class TrainConfig:
    """The mathematics of optimisation, and how often something is written.

    Attributes:
        steps: optimiser steps; one of `steps`, `tokens` and `hours` is given.
        global_batch_size: examples a step, over all workers; None: from `global_batch_tokens`.
        learning_rate: the highest.
        tokens: real tokens to see, turned into steps by the mean length of the rows.
        hours: wall-clock time, turned into steps by a rehearsal on the machine.
        global_batch_tokens: real tokens a step, turned into examples by the mean length.
        warmup_share: of the steps, with linear warm-up.
        schedule: after warm-up.
        decay_share: of the steps, at the end, with falling rate; of "wsd" alone.
        optimizer: "adamw", "lamb" or "muon".
        weight_decay: decoupled, on matrices only.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: of the optimiser.
        clip_norm: largest global gradient norm; None for no clipping.
        precision: of matrix products.
        length_bins: a step's examples are of one of so many bins of length; None: of any length.
        max_seq_length: tokens of the longest row; the bins are of equal width up to it.
        on_nonfinite: what a loss or gradient that is NaN or infinite does: end the run, or lose
            the step, which counts and changes nothing. Changes no result of a run that meets
            none, and one that ended there can go on with "skip". No result changes with those
            below.
        checkpoint_every_steps: between two.
        evaluate_every_steps: held-out figures, where the job has validation files.
        log_every_steps: lines of figures.
        keep_checkpoints: newest kept.
        keep_best: the checkpoint with the lowest held-out loss is kept too.
    """

    steps: int | None
    global_batch_size: int | None
    learning_rate: float
    tokens: int | None = None
    hours: float | None = None
    global_batch_tokens: int | None = None
    warmup_share: float = 0.05
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    decay_share: float = 0.1
    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    clip_norm: float | None = 1.0
    precision: Precision = "bf16"
    length_bins: int | None = None
    max_seq_length: int | None = None
    on_nonfinite: Literal["stop", "skip"] = "stop"
    checkpoint_every_steps: int = 500
    evaluate_every_steps: int = 500
    log_every_steps: int = 20
    keep_checkpoints: int = 2
    keep_best: bool = True

    def mathematics(self) -> dict[str, Any]:
        """The fields that the result depends on."""
        without_effect = (
            "on_nonfinite",
            "checkpoint_every_steps",
            "evaluate_every_steps",
            "log_every_steps",
            "keep_checkpoints",
            "keep_best",
        )
        return {k: v for k, v in asdict(self).items() if k not in without_effect}

    @property
    def bins(self) -> LengthBins | None:
        """The bins, or None.

        Raises:
            ValueError: `length_bins` without `max_seq_length`.
        """
        if self.length_bins is None:
            return None
        if self.max_seq_length is None:
            raise ValueError("length_bins needs max_seq_length, up to which the bins go")
        return LengthBins(self.length_bins, self.max_seq_length)


@dataclass(frozen=True)
class Rounding:
    """What changes the last bits only.

    Attributes:
        micro_batch_tokens: token budget of a micro-batch.
        threads: torch's; None leaves them as they are.
        attention: path; "auto" is varlen where it exists and attention dropout is off.
        compile: torch.compile the encoder, with micro-batches that are filled up to one shape.
        gradient_checkpointing: compute activations again instead of keeping them; the same bits,
            unless compiled.
        sharding: "none": each rank has the whole model; "full": weights, moments and gradients are
            cut among the ranks, and gathered block by block to compute.
    """

    micro_batch_tokens: int = 8192
    threads: int | None = None
    attention: Literal["auto", "sdpa", "varlen"] = "auto"
    compile: bool = False
    gradient_checkpointing: bool = False
    sharding: Literal["none", "full"] = "none"


@dataclass(frozen=True)
class Validation:
    """Held-out rows for figures during training.

    Attributes:
        files: of a mask artifact of validation documents, in the job's filesystem.
        mask_token_id: id of `[MASK]`.
        max_rows: the first so many rows.
        label_counts: [V] how often each id is a training label, for the unigram baseline; None
            leaves it out.
    """

    files: tuple[ShardFile, ...]
    mask_token_id: int
    max_rows: int = 2_000
    label_counts: NDArray[np.int64] | None = None


class Job(Protocol):
    """What all training runs have: for the parts of the loop that do not ask what is learned."""

    @property
    def train(self) -> TrainConfig:
        """Optimisation, and how often something is written."""
        ...

    @property
    def seed(self) -> int:
        """Of weights, order and dropout."""
        ...

    @property
    def checkpoint_filesystem(self) -> FileSystem:
        """Where checkpoints lie."""
        ...

    @property
    def checkpoint_folder(self) -> str:
        """Its folder for them."""
        ...

    @property
    def fingerprint(self) -> str:
        """Stands in checkpoints."""
        ...

    @property
    def attempt(self) -> str:
        """Unique for this try."""
        ...

    @property
    def vocabulary_digest(self) -> str:
        """Recorded in checkpoints."""
        ...

    @property
    def nonfinite_folder(self) -> str | None:
        """For batches that are not finite; None keeps none."""
        ...

    @property
    def group(self) -> str:
        """Of the settings that `train` came from, for messages."""
        ...

    def described(self) -> dict[str, Any]:
        """The configuration that the result depends on, nested, as JSON values."""
        ...


@dataclass(frozen=True)
class TrainJob:
    """A run of pretraining. The same for all ranks.

    Attributes:
        model: the model's shape.
        train: the mathematics.
        rounding: the last bits.
        seed: of weights, order of batches and dropout.
        filesystem: where `copies`, `init_from` and `init_moments` lie.
        copies: training files of each copy; epoch e reads copy e mod len(copies).
        checkpoint_filesystem: where checkpoints lie.
        checkpoint_folder: its folder for them, made when it is not there.
        fingerprint: stands in checkpoints; another one's are refused.
        attempt: unique for this try; temporary names carry it.
        vocabulary_digest: recorded in checkpoints.
        schema_metadata: entries that the files' schema metadata must equal where it has them.
        config: what the fingerprint covers, as JSON, to say what differs; model and train are
            added by `described`.
        init_from: weights (`weights.safetensors`) to start from; None draws them.
        init_moments: the optimiser's tensors (`optimiser.safetensors`) to start from, its step
            counts included; None begins with none.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        local_rank: number of this process among those of its host, to choose a GPU.
        prefetch_batches: global batches read ahead; changes no result.
        validation: held-out rows, or None for no figures during training.
        pair_name: with which the names of the figures of pairs begin.
        mean_row_tokens: mean tokens of a training row; needed for budgets in tokens.
        max_row_tokens: no row is longer; None: what the model can read.
        nonfinite_folder: in the checkpoints' filesystem, for batches with a loss or gradient that
            is not finite; None keeps none.
        masks: to be drawn while reading, where `copies` are pairs; None: they hold masked rows.
        mix: other sources of training rows; `copies` have the share that these leave.
        group: of settings, for messages.
    """

    model: BertConfig
    train: TrainConfig
    rounding: Rounding
    seed: int
    filesystem: FileSystem
    copies: tuple[tuple[ShardFile, ...], ...]
    checkpoint_filesystem: FileSystem
    checkpoint_folder: str
    fingerprint: str
    attempt: str
    vocabulary_digest: str = ""
    schema_metadata: tuple[tuple[str, str], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    init_from: str | None = None
    init_moments: str | None = None
    device: str = "auto"
    local_rank: int = 0
    prefetch_batches: int = 4
    validation: Validation | None = None
    pair_name: str = "nsp"
    mean_row_tokens: float | None = None
    max_row_tokens: int | None = None
    nonfinite_folder: str | None = None
    masks: DrawnMasks | None = None
    mix: tuple[MixedSource, ...] = ()
    group: str = "train"

    def described(self) -> dict[str, Any]:
        """The configuration that the result depends on, nested, as JSON values."""
        return {
            **self.config,
            "model": asdict(self.model),
            "train": self.train.mathematics(),
            "seed": self.seed,
        }


def rounding_values(
    rounding: Rounding, precision: Precision, device: str, world_size: int
) -> dict[str, Any]:
    """What decides the last bits here; two equal ones give equal bits on CPU."""
    return {
        "workers": world_size,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "micro_batch_tokens": rounding.micro_batch_tokens,
        "attention": rounding.attention,
        "compile": rounding.compile,
        "gradient_checkpointing": rounding.gradient_checkpointing,
        "sharding": rounding.sharding if world_size > 1 else "none",
        "device": torch.device(device).type,
        "torch": torch.__version__,
    }


class Hooks(Protocol):
    """How a run talks to whoever started it. Steps count finished optimiser steps, from 1."""

    def planned(self, steps: int, done: int) -> None:
        """The last step's number is known, and how many are made. Called on rank 0, once."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of a step. Called on rank 0."""
        ...

    def should_stop(self) -> bool:
        """Whether to end after this step, with a checkpoint. Asked on rank 0, each step."""
        ...

    def should_save(self) -> bool:
        """Whether to save after this step and go on: a machine is about to be taken away.

        Asked on rank 0, each step.
        """
        ...

    def saved(self, step: int) -> None:
        """A checkpoint is complete. Called on rank 0, at a later step than the one it holds."""
        ...

    def notice(self, text: str) -> None:
        """Something a person should know, in one line. Called on rank 0."""
        ...


class NoHooks:
    """Hooks that do nothing, to inherit from."""

    def planned(self, steps: int, done: int) -> None:
        """Do nothing."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Drop them."""

    def should_stop(self) -> bool:
        """Never."""
        return False

    def should_save(self) -> bool:
        """Never."""
        return False

    def saved(self, step: int) -> None:
        """Do nothing."""

    def notice(self, text: str) -> None:
        """Drop it."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        stopped: it was asked to stop before its last step; its checkpoint is written, unless it
            had made no step yet.
        step: finished optimiser steps.
        resumed_from: step of the checkpoint it began with; 0 for none.
        tokens_seen: real tokens of all steps, those before resuming included.
        figures: the last step's, as logged; empty when this process made no step.
        model: with its last weights, on the run's device. With sharding it is whole on rank 0
            alone, on CPU, and on no rank when the run was stopped.
        moments: the optimiser's tensors by name, as `weights.moments_of` names them; with sharding
            as the model.
    """

    stopped: bool
    step: int
    resumed_from: int
    tokens_seen: int
    figures: Mapping[str, float]
    model: BertForPreTraining
    moments: Mapping[str, Tensor]
