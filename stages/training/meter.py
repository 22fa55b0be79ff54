"""Rates between two lines of the log: the only clock of training."""

from __future__ import annotations

import time

from stages.training.packing import StepBatch


class Meter:
    """Counts tokens and time since it was last read."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._since = self._mark = time.perf_counter()
        self._waited = 0.0
        self._tokens = 0
        self._share_tokens = 0
        self._padded_tokens = 0

    def waiting(self) -> None:
        """The loop begins to wait for a batch."""
        self._mark = time.perf_counter()

    def received(self, batch: StepBatch) -> None:
        """The batch is here."""
        self._waited += time.perf_counter() - self._mark
        self._tokens += batch.tokens
        self._share_tokens += batch.share_tokens
        self._padded_tokens += batch.padded_tokens

    def read(self, attention_is_padded: bool) -> dict[str, float]:
        """Figures by name since the last reading; starts anew.

        Tokens per second are real tokens of the whole global batch; the share of padding is that
        of this rank's attention, as nothing else is ever padded.
        """
        seconds = max(time.perf_counter() - self._since, 1e-9)
        padding = 0.0
        if attention_is_padded and self._padded_tokens:
            padding = 1.0 - self._share_tokens / self._padded_tokens
        figures = {
            "train/tokens_per_second": self._tokens / seconds,
            "train/padding_share": padding,
            "train/data_wait_share": self._waited / seconds,
        }
        self._restart()
        return figures
