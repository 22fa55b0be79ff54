"""What a training run is told, and what it tells: plain frozen dataclasses and one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch
from pyarrow.fs import FileSystem

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
        steps: optimiser steps.
        global_batch_size: examples a step, over all workers.
        learning_rate: the highest.
        warmup_share: of the steps, with linear warm-up.
        schedule: after warm-up.
        optimizer: "adamw".
        weight_decay: decoupled, on matrices only.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: of the optimiser.
        clip_norm: largest global gradient norm; None for no clipping.
        precision: of matrix products.
        length_bins: a step's examples are of one of so many bins of length; None: of any length.
        max_seq_length: tokens of the longest row; the bins are of equal width up to it.
        checkpoint_every_steps: changes no result, as all below.
        evaluate_every_steps: held-out figures, where the job has validation files.
        log_every_steps: lines of figures.
        keep_checkpoints: newest kept.
    """

    steps: int
    global_batch_size: int
    learning_rate: float
    warmup_share: float = 0.05
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    optimizer: Literal["adamw"] = "adamw"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    clip_norm: float | None = 1.0
    precision: Precision = "bf16"
    length_bins: int | None = None
    max_seq_length: int | None = None
    checkpoint_every_steps: int = 500
    evaluate_every_steps: int = 500
    log_every_steps: int = 20
    keep_checkpoints: int = 2

    @property
    def warmup_steps(self) -> int:
        """Steps of warm-up."""
        return round(self.warmup_share * self.steps)

    def mathematics(self) -> dict[str, Any]:
        """The fields that the result depends on."""
        frequency = (
            "checkpoint_every_steps",
            "evaluate_every_steps",
            "log_every_steps",
            "keep_checkpoints",
        )
        return {k: v for k, v in asdict(self).items() if k not in frequency}

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
        compile: torch.compile the model.
    """

    micro_batch_tokens: int = 8192
    threads: int | None = None
    attention: Literal["auto", "sdpa", "varlen"] = "auto"
    compile: bool = False


@dataclass(frozen=True)
class Validation:
    """Held-out rows for figures during training.

    Attributes:
        files: of a mask artifact of validation documents, in the job's filesystem.
        mask_token_id: id of `[MASK]`.
        max_rows: the first so many rows.
    """

    files: tuple[ShardFile, ...]
    mask_token_id: int
    max_rows: int = 2_000


@dataclass(frozen=True)
class TrainJob:
    """A training run. The same for all ranks.

    Attributes:
        model: the model's shape.
        train: the mathematics.
        rounding: the last bits.
        seed: of weights, order of batches and dropout.
        filesystem: where `copies` and `init_from` lie.
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
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        local_rank: number of this process among those of its host, to choose a GPU.
        prefetch_batches: global batches read ahead; changes no result.
        validation: held-out rows, or None for no figures during training.
        pair_name: with which the names of the figures of pairs begin.
        masks: to be drawn while reading, where `copies` are pairs; None: they hold masked rows.
        mix: other sources of training rows; `copies` have the share that these leave.
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
    device: str = "auto"
    local_rank: int = 0
    prefetch_batches: int = 4
    validation: Validation | None = None
    pair_name: str = "nsp"
    masks: DrawnMasks | None = None
    mix: tuple[MixedSource, ...] = ()

    def described(self) -> dict[str, Any]:
        """The configuration that the result depends on, nested, as JSON values."""
        return {
            **self.config,
            "model": asdict(self.model),
            "train": self.train.mathematics(),
            "seed": self.seed,
        }

    def rounding_values(self, device: str, world_size: int) -> dict[str, Any]:
        """What decides the last bits here; two equal ones give equal bits on CPU."""
        return {
            "workers": world_size,
            "threads": torch.get_num_threads(),
            "precision": self.train.precision,
            "micro_batch_tokens": self.rounding.micro_batch_tokens,
            "attention": self.rounding.attention,
            "compile": self.rounding.compile,
            "device": torch.device(device).type,
            "torch": torch.__version__,
        }


class Hooks(Protocol):
    """How a run talks to whoever started it. Steps count finished optimiser steps, from 1."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of a step. Called on rank 0."""
        ...

    def should_stop(self) -> bool:
        """Whether to end after this step, with a checkpoint. Asked on rank 0, each step."""
        ...

    def saved(self, step: int) -> None:
        """A checkpoint is complete. Called on every rank, after rank 0 has written it."""
        ...

    def notice(self, text: str) -> None:
        """Something a person should know, in one line. Called on rank 0."""
        ...


class NoHooks:
    """Hooks that do nothing, to inherit from."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Drop them."""

    def should_stop(self) -> bool:
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
        stopped: it was asked to stop before its last step; its checkpoint is written.
        step: finished optimiser steps.
        resumed_from: step of the checkpoint it began with; 0 for none.
        tokens_seen: real tokens of all steps, those before resuming included.
        figures: the last step's, as logged; empty when this process made no step.
        model: with its last weights, on the run's device.
    """

    stopped: bool
    step: int
    resumed_from: int
    tokens_seen: int
    figures: Mapping[str, float]
    model: BertForPreTraining
