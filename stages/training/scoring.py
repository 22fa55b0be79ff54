"""Scores of many sequences: packed without padding, by a budget of tokens, back in their order.

Legend: N sequences, T tokens over all of them, B sequences and t tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.bert import BertForPreTraining, BertWithHeads
from model.task_heads import BertForTask
from stages.training.device import Precision, autocast
from stages.training.examples import Ragged
from stages.training.packing import cut, lay_out

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """N sequences as a model reads them.

    Attributes:
        input_ids: special tokens included; none is empty.
        a_length: [N], segment 0 is positions 0..a_length + 1.
    """

    input_ids: Ragged
    a_length: Int64s

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class _Packed:
    """A micro-batch: which sequences it holds, and where its tokens stand among all of them.

    Attributes:
        rows: int64 [B].
        tokens: int64 [t], into T.
        inputs: the arguments of `BertModel.forward`, on the device.
    """

    rows: Int64s
    tokens: Int64s
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, int]


class Forward:
    """A model ready to score; not for training.

    Sequences of like length share a micro-batch, so that little is padded where attention pads.
    How they are grouped moves the last bits of scores.

    Args:
        model: moved to the device and put into evaluation mode.
        device: a name for `torch.device`.
        precision: of matrix products.
        micro_batch_tokens: of a micro-batch; a longer sequence is one by itself.
    """

    def __init__(
        self,
        model: BertWithHeads,
        device: str = "cpu",
        precision: Precision = "float32",
        micro_batch_tokens: int = 8192,
    ) -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.precision = precision
        self.micro_batch_tokens = micro_batch_tokens

    def task_scores(self, sequences: Sequences) -> Float32s:
        """Scores of a `BertForTask`: [N, K] of a "sequence" model, [T, K] of others (spans: 2)."""
        model = self.model
        assert isinstance(model, BertForTask)
        per_row = model.kind == "sequence"
        size = len(sequences) if per_row else len(sequences.input_ids.values)
        found = np.zeros((size, model.classes), np.float32)
        with torch.inference_mode(), autocast(self.device, self.precision):
            for batch in self._batches(sequences):
                scores = model(*batch.inputs).float().cpu().numpy()
                found[batch.rows if per_row else batch.tokens] = scores
        return found

    def mean_vectors(self, sequences: Sequences) -> Float32s:
        """[N, d]: the mean of the last layer over all tokens, `[CLS]` and `[SEP]` among them."""
        found = np.zeros((len(sequences), self.model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for batch in self._batches(sequences):
                with autocast(self.device, self.precision):
                    hidden = self.model.bert(*batch.inputs).float()
                ends = batch.inputs[3].long()
                means = torch.segment_reduce(hidden, "mean", lengths=ends.diff(), axis=0)
                found[batch.rows] = means.cpu().numpy()
        return found

    def top_tokens(
        self, sequences: Sequences, positions: Int64s, offered: NDArray[np.bool_], top: int
    ) -> tuple[Int64s, Float32s]:
        """The likeliest tokens at masked positions, by a `BertForPreTraining`.

        Args:
            sequences: with mask tokens in them.
            positions: [M] rising, into T.
            offered: bool [V] (or shorter: the rest is not), tokens that may be given.
            top: how many, at most as many as are offered.

        Returns:
            int64 [M, top] ids, best first, and their probabilities among the whole vocabulary.
        """
        model = self.model
        assert isinstance(model, BertForPreTraining)
        barred = np.ones(model.config.vocab_size, np.bool_)
        barred[: len(offered)] = ~offered
        not_offered = torch.from_numpy(barred).to(self.device)
        wanted = np.zeros(len(sequences.input_ids.values), np.bool_)
        wanted[positions] = True
        ids = np.zeros((len(positions), top), np.int64)
        shares = np.zeros((len(positions), top), np.float32)
        with torch.inference_mode(), autocast(self.device, self.precision):
            for batch in self._batches(sequences):
                places = np.flatnonzero(wanted[batch.tokens])
                where = torch.from_numpy(places).to(self.device)
                logits = model(*batch.inputs, where).mlm_logits.float()
                likely = logits.softmax(-1).masked_fill(not_offered, -1.0)
                best = likely.topk(top, dim=-1)
                at = np.searchsorted(positions, batch.tokens[places])
                ids[at] = best.indices.cpu().numpy()
                shares[at] = best.values.cpu().numpy()
        return ids, shares

    def _batches(self, sequences: Sequences) -> Iterator[_Packed]:
        lengths = sequences.input_ids.lengths
        # The longest first: what does not fit in memory fails at once.
        order = np.argsort(-lengths, kind="stable")
        for run in cut(lengths[order], self.micro_batch_tokens):
            yield self._packed(sequences, order[run])

    def _packed(self, sequences: Sequences, rows: Int64s) -> _Packed:
        taken = sequences.input_ids.take(rows)
        laid = lay_out(taken, sequences.a_length[rows])
        inputs = (
            laid.input_ids.to(self.device),
            laid.segment_ids.to(self.device),
            laid.position_ids.to(self.device),
            laid.cu_seqlens.to(self.device),
            laid.max_seqlen,
        )
        starts = np.repeat(sequences.input_ids.offsets[:-1][rows], taken.lengths)
        tokens = starts + laid.position_ids.numpy()
        return _Packed(rows, tokens, inputs)
