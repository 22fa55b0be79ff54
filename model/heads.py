"""Pretraining heads: masked words over the vocabulary, and next sentence prediction."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import BertConfig

IS_NEXT = 0
"""Class of the next sentence head when B really follows A (as in the paper's code)."""
NOT_NEXT = 1
"""Class of the next sentence head when B comes from elsewhere."""


def vocabulary_logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Project vectors onto the vocabulary (seed 2.4).

    Args:
        hidden: [..., d].
        weight: [V, d], one row a vocabulary entry (the transpose of the seed's W_vocab).
        bias: [V].

    Returns:
        Logits [..., V], before the softmax.
    """
    return F.linear(hidden, weight, bias)


class MaskedLMHead(nn.Module):
    """Dense, GELU and LayerNorm, then the projection tied to the token embeddings.

    The token table is not a parameter of the head: it is handed in, so that it exists once.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, token_embeddings: Tensor) -> Tensor:
        """Return logits [M, V] for vectors [M, d] and the token table [V, d]."""
        return vocabulary_logits(self.transform(hidden), token_embeddings, self.bias)

    def transform(self, hidden: Tensor) -> Tensor:
        """Dense, GELU, LayerNorm: [M, d] -> [M, d], ready for the projection."""
        transformed: Tensor = self.norm(F.gelu(self.dense(hidden)))
        return transformed


class Pooler(nn.Module):
    """tanh(h W1 + b1) on the vector of [CLS] (seed 3.2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, cls_hidden: Tensor) -> Tensor:
        """[B, d] -> [B, d]."""
        return torch.tanh(self.dense(cls_hidden))


class NextSentenceHead(nn.Module):
    """Two logits for a pooled vector: class 0 is IsNext, class 1 is NotNext."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, d] -> [B, 2]."""
        logits: Tensor = self.classifier(pooled)
        return logits


def next_sentence_logits(cls_hidden: Tensor, pooler: Pooler, head: NextSentenceHead) -> Tensor:
    """Classify vectors of [CLS] [B, d]: tanh(h W1 + b1) W2 + b2, logits [B, 2] (seed 3.3)."""
    logits: Tensor = head(pooler(cls_hidden))
    return logits
