"""Multi-head self-attention over packed sequences, never causally masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from model.config import BertConfig
from model.cpu_attention import attend
from model.packing import PaddedLayout, pad, padded_layout, unpad

AttentionPath = Literal["sdpa", "varlen"]
AttentionChoice = Literal["auto", "sdpa", "varlen"]


class AttentionPathError(ValueError):
    """The path that was asked for cannot run here."""


def choose_path(
    choice: AttentionChoice,
    *,
    device_type: str,
    compute_capability: tuple[int, int] | None,
    dtype: torch.dtype,
    head_size: int,
    dropout: float,
) -> AttentionPath:
    """Decide how attention is computed; pure, so that it holds for devices that are not here.

    Args:
        choice: what the user asked for.
        device_type: "cpu", "cuda", "mps"...
        compute_capability: of the CUDA device; None elsewhere.
        dtype: of queries, keys and values (autocast's where it is on).
        head_size: width of a head.
        dropout: attention dropout in force: 0 in evaluation.

    Raises:
        AttentionPathError: "varlen" was asked for where it cannot run; says why and what to set.
    """
    obstacle = None
    if device_type != "cuda":
        obstacle = f"it runs on CUDA, and this is {device_type}"
    elif compute_capability is not None and compute_capability < (8, 0):
        major, minor = compute_capability
        obstacle = f"it needs compute capability 8.0 (Ampere), and this device has {major}.{minor}"
    elif dtype not in (torch.bfloat16, torch.float16):
        obstacle = f"it computes in bfloat16 or float16, not in {str(dtype).removeprefix('torch.')}"
    elif head_size % 8 or head_size > 256:
        obstacle = f"heads must be a multiple of 8 and at most 256 wide, not {head_size}"
    elif dropout > 0.0:
        obstacle = f"it has no attention dropout, and attention_dropout is {dropout:g}"
    if choice == "sdpa" or (choice == "auto" and obstacle):
        return "sdpa"
    if obstacle:
        raise AttentionPathError(
            f"attention path 'varlen' cannot be used: {obstacle}. Set rounding.attention=auto, "
            "which takes 'sdpa' in that case"
        )
    return "varlen"


@dataclass(frozen=True)
class AttentionPlan:
    """Which tokens attend to which: made once a forward pass and shared by all layers.

    Attributes:
        cu_seqlens: int32 [B + 1].
        max_seqlen: no sequence is longer.
        path: how attention is computed.
        layout: the padded form; None on the varlen path.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    path: AttentionPath
    layout: PaddedLayout | None


def plan_attention(
    cu_seqlens: Tensor, max_seqlen: int, tokens: int, path: AttentionPath
) -> AttentionPlan:
    """Precompute what every layer's attention shares for one packed batch of `tokens` tokens.

    Raises:
        ValueError: `cu_seqlens` does not describe `tokens` tokens in sequences of 1 to
            `max_seqlen`. It is looked for where that costs nothing, on CPU.
    """
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        lengths = cu_seqlens.diff()
        fits = len(lengths) == 0 or 1 <= int(lengths.min()) <= int(lengths.max()) <= max_seqlen
        if not fits or int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != tokens:
            raise ValueError(
                f"cu_seqlens must rise from 0 to the {tokens} tokens of the batch in steps of 1 to "
                f"max_seqlen={max_seqlen}, and it is {cu_seqlens.tolist()[:20]}"
            )
    layout = padded_layout(cu_seqlens, max_seqlen, tokens) if path == "sdpa" else None
    return AttentionPlan(cu_seqlens, max_seqlen, path, layout)


class SelfAttention(nn.Module):
    """Each token attends to every token of its own sequence, left and right (seed 4.1).

    Queries, keys and values come from one matrix [3d, d], in this order.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, plan: AttentionPlan) -> Tensor:
        """Attend and project: [T, d] -> [T, d], without residual, dropout or norm."""
        qkv = self.qkv(hidden)
        context = self._padded(qkv, plan.layout) if plan.layout else self._packed(qkv, plan)
        projected: Tensor = self.output(context)
        return projected

    def _padded(self, qkv: Tensor, layout: PaddedLayout) -> Tensor:
        batch, length = layout.batch_size, layout.length
        split = pad(qkv, layout).view(batch, length, 3, self.num_heads, self.head_size)
        dropout = self.dropout if self.training else 0.0
        if qkv.dtype == torch.bfloat16 and qkv.device.type == "cpu" and not is_compiling():
            context = attend(split, layout.key_mask, dropout)
        else:
            query, key, value = (part.transpose(1, 2) for part in split.unbind(2))
            context = F.scaled_dot_product_attention(
                query, key, value, attn_mask=layout.key_mask, dropout_p=dropout
            ).transpose(1, 2)
        flat = context.reshape(batch * length, self.num_heads * self.head_size)
        return unpad(flat, layout)

    def _packed(self, qkv: Tensor, plan: AttentionPlan) -> Tensor:
        # Imported here: torch builds without CUDA need not have it.
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = qkv.view(-1, 3, self.num_heads, self.head_size).unbind(1)
        context = varlen_attn(
            query, key, value, plan.cu_seqlens, plan.cu_seqlens, plan.max_seqlen, plan.max_seqlen
        )
        assert isinstance(context, Tensor)
        return context.flatten(1)
