"""Heads of fine-tuning, and BERT with one of them (seed 5.1; Devlin et al. 2018, section 4).

Their last projection is computed in the type of its weights, float32, under autocast too: it is
small, and in bfloat16 a score of 4 moves in steps of 0.03.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import AttentionChoice
from model.bert import BertWithHeads
from model.config import BertConfig
from model.dropout import dropout
from model.heads import Pooler

TaskKind = Literal["sequence", "token", "span"]
"""What is read from the encoder: [CLS], every token, or where a span starts and ends."""


def project(hidden: Tensor, layer: nn.Linear) -> Tensor:
    """Apply `layer` to vectors [..., d] in the type of its weights, whatever autocast says."""
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden.to(layer.weight.dtype), layer.weight, layer.bias)


class SequenceHead(nn.Module):
    """Pooler, dropout and one linear layer on [CLS]; for one text and for pairs of texts.

    Args:
        config: the encoder's.
        classes: K; 1 is regression.
        head_dropout: on the pooled vector.
    """

    def __init__(self, config: BertConfig, classes: int, head_dropout: float) -> None:
        super().__init__()
        self.pooler = Pooler(config)
        self.classifier = nn.Linear(config.hidden_size, classes)
        self.dropout = head_dropout

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """[T, d] and int32 [B + 1] -> logits [B, K]."""
        pooled = self.pooler(hidden.index_select(0, cu_seqlens[:-1]))
        return project(dropout(pooled, self.dropout, self.training), self.classifier)


class TokenHead(nn.Module):
    """Dropout and one linear layer on every token.

    Args:
        config: the encoder's.
        classes: K tags.
        head_dropout: on each token's vector.
    """

    def __init__(self, config: BertConfig, classes: int, head_dropout: float) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, classes)
        self.dropout = head_dropout

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """[T, d] -> logits [T, K]; `cu_seqlens` is not looked at."""
        return project(dropout(hidden, self.dropout, self.training), self.classifier)


class SpanHead(nn.Module):
    """Two vectors S and E: a token's dot products with them score an answer's start and end.

    Their biases are there because transformers' layout has them. They shift all scores of a
    sequence alike, and so change no probability. No dropout, as in the original.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.scorer = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """[T, d] -> scores [T, 2], start and end; `cu_seqlens` is not looked at."""
        return project(hidden, self.scorer)


class BertForTask(BertWithHeads):
    """BERT with the head of one task.

    Args:
        config: the encoder's shape. `nsp` is set to False: there is no such head.
        kind: of the task.
        classes: K of "sequence" (1 is regression) and "token"; "span" has 2, its two scores.
        head_dropout: of the head; None takes `config.hidden_dropout`.
        attention, checkpointing: as of `BertModel`.

    Raises:
        ValueError: a kind that does not exist, or a number of classes that it cannot have.
    """

    def __init__(
        self,
        config: BertConfig,
        kind: TaskKind,
        classes: int = 2,
        head_dropout: float | None = None,
        attention: AttentionChoice = "auto",
        checkpointing: bool = False,
    ) -> None:
        super().__init__(dataclasses.replace(config, nsp=False), attention, checkpointing)
        self.kind = kind
        self.classes = classes
        self.head_dropout = config.hidden_dropout if head_dropout is None else head_dropout
        if not 0.0 <= self.head_dropout < 1.0:
            raise ValueError(f"head_dropout={head_dropout!r} must lie in [0, 1): 0 switches it off")
        self.head = _head(config, kind, classes, self.head_dropout)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """Run the encoder and the head on it.

        Args:
            input_ids, segment_ids, position_ids, cu_seqlens, max_seqlen: as in `BertModel`.

        Returns:
            "sequence": [B, K]; "token": [T, K]; "span": [T, 2]. What fills a batch up to its
            shape has rows too, the last ones.
        """
        hidden = self.encode(input_ids, segment_ids, position_ids, cu_seqlens, max_seqlen)
        scores: Tensor = self.head(hidden, cu_seqlens)
        return scores


def _head(config: BertConfig, kind: TaskKind, classes: int, head_dropout: float) -> nn.Module:
    least = {"sequence": 1, "token": 2, "span": 2}
    if kind not in least:
        raise ValueError(f"there is no task of the kind {kind!r}: {', '.join(least)}")
    if classes < least[kind] or (kind == "span" and classes != 2):
        room = "exactly 2 classes" if kind == "span" else f"at least {least[kind]} classes"
        raise ValueError(f"a task of the kind {kind!r} has {room}, not {classes}")
    if kind == "sequence":
        return SequenceHead(config, classes, head_dropout)
    if kind == "token":
        return TokenHead(config, classes, head_dropout)
    return SpanHead(config)
