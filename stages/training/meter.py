"""Rates between two lines of the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from model.attention import choose_path
from model.config import BertConfig
from stages.training.device import Precision
from stages.training.flops import model_flops, model_flops_utilisation
from stages.training.job import Rounding


class Measured(Protocol):
    """What is counted of a rank's part of a step; as `packing.StepBatch`."""

    @property
    def tokens(self) -> int:
        """Of the global batch."""
        ...

    @property
    def masked(self) -> int:
        """Positions of the global batch that reach the vocabulary projection."""
        ...

    @property
    def pairs(self) -> int:
        """Sequences of the global batch that reach the pooler."""
        ...

    @property
    def padded_tokens(self) -> int:
        """Of this rank's share, as attention on the padded path sees it."""
        ...

    @property
    def laid_tokens(self) -> int:
        """Of this rank's share, as laid end to end."""
        ...

    @property
    def share_tokens(self) -> int:
        """Of this rank's share."""
        ...

    @property
    def squared_lengths(self) -> int:
        """Sum over the global batch."""
        ...


class Meter:
    """Counts tokens, FLOPs and time since it was last read.

    The first step of a process, in which memory is claimed and kernels are compiled, and what
    lies between `paused` are left out: rates after a resume are those of any other time.

    Args:
        config: the shape, for FLOPs.
        peak: FLOP/s of all devices together; None where it is not known.
        attention_is_padded: whether micro-batches are padded for attention.
    """

    def __init__(self, config: BertConfig, peak: float | None, attention_is_padded: bool) -> None:
        self._config = config
        self._peak = peak
        self._attention_is_padded = attention_is_padded
        self._warm = False
        self._restart()

    def _restart(self) -> None:
        self._since = self._mark = time.perf_counter()
        self._waited = 0.0
        self._flops = 0.0
        self._tokens = 0
        self._share_tokens = 0
        self._computed_tokens = 0

    def waiting(self) -> None:
        """The loop begins to wait for a batch."""
        self._mark = time.perf_counter()

    def received(self, batch: Measured) -> None:
        """The batch is here."""
        self._waited += time.perf_counter() - self._mark
        self._tokens += batch.tokens
        self._share_tokens += batch.share_tokens
        # With a fixed shape what fills up is in both; only attention pads beyond it.
        padded = self._attention_is_padded
        self._computed_tokens += batch.padded_tokens if padded else batch.laid_tokens
        self._flops += model_flops(
            self._config, batch.tokens, batch.squared_lengths, batch.masked, batch.pairs
        )

    def stepped(self) -> None:
        """A step is done."""
        if not self._warm:
            self._warm = True
            self._restart()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is no part of a step."""
        began = time.perf_counter()
        yield
        self._since += time.perf_counter() - began

    def read(self) -> dict[str, float]:
        """Figures by name since the last reading; starts anew. None after the first step.

        Tokens per second are real tokens of the whole global batch. The share of padding is that
        of the positions that this rank's attention computes, the padding there is most of: with a
        padded path up to the longest row, and with a fixed shape also the examples that fill it
        up, which all other layers compute too. MFU is the share of the peak of all devices that
        went into the model's own FLOPs (Chowdhery et al. 2022, appendix B).
        """
        if not self._tokens:
            return {}
        seconds = max(time.perf_counter() - self._since, 1e-9)
        padding = 0.0
        if self._computed_tokens:
            padding = 1.0 - self._share_tokens / self._computed_tokens
        figures = {
            "train/tokens_per_second": self._tokens / seconds,
            "train/padding_share": padding,
            "train/data_wait_share": self._waited / seconds,
        }
        if self._peak is not None:
            figures["train/mfu"] = model_flops_utilisation(self._flops, seconds, self._peak)
        self._restart()
        return figures


def attention_is_padded(
    rounding: Rounding, precision: Precision, config: BertConfig, device: torch.device
) -> bool:
    """Whether micro-batches are padded for attention on this device."""
    path = choose_path(
        rounding.attention,
        device_type=device.type,
        compute_capability=(
            torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        ),
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        head_size=config.head_size,
        dropout=config.attention_dropout,
    )
    return path == "sdpa"
