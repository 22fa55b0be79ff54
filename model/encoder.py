"""The Transformer encoder: post-norm blocks with exact GELU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import AttentionPlan, SelfAttention
from model.config import BertConfig
from model.dropout import dropout


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm.

    Post-norm as in Vaswani et al. 2017 and Devlin et al. 2018; GELU by erf, not by tanh.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.feed_forward_size)
        self.output = nn.Linear(config.feed_forward_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout

    def forward(self, hidden: Tensor, plan: AttentionPlan) -> Tensor:
        """[T, d] -> [T, d]."""
        attended = dropout(self.attention(hidden, plan), self.dropout, self.training)
        hidden = self.attention_norm(hidden + attended)
        transformed = self.output(F.gelu(self.intermediate(hidden)))
        transformed = dropout(transformed, self.dropout, self.training)
        normed: Tensor = self.output_norm(hidden + transformed)
        return normed


class Encoder(nn.Module):
    """`num_layers` blocks, one after another.

    Args:
        config: the shape.
        checkpointing: keep the input of each block alone, and compute the block again, with the
            same dropout, when its gradient is wanted (Chen et al. 2016): a third more FLOPs for
            most of the memory of activations. Same results, to the bit.
    """

    def __init__(self, config: BertConfig, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_layers))

    def forward(self, hidden: Tensor, plan: AttentionPlan) -> Tensor:
        """[T, d] -> [T, d]."""
        for layer in self.layers:
            if self.checkpointing and self.training:
                hidden = checkpoint(layer, hidden, plan, use_reentrant=False)
            else:
                hidden = layer(hidden, plan)
        return hidden
