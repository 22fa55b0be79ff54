"""BERT over packed sequences, and BERT with its pretraining heads (Devlin et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.attention import AttentionChoice, AttentionPath, choose_path, plan_attention
from model.config import BertConfig
from model.embeddings import Embeddings
from model.encoder import Encoder
from model.heads import MaskedLMHead, NextSentenceHead, Pooler, next_sentence_logits
from model.losses import vocabulary_loss_sum


class BertModel(nn.Module):
    """Embeddings and encoder.

    Args:
        config: the shape.
        attention: how attention is computed; changes only the last bits of results.
        checkpointing: as in `Encoder`; changes no result.
    """

    def __init__(
        self,
        config: BertConfig,
        attention: AttentionChoice = "auto",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.attention = attention
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config, checkpointing)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """Encode sequences that are laid end to end.

        Args:
            input_ids: int [T], all sequences' tokens.
            segment_ids: int [T], 0 or 1.
            position_ids: int [T], position of each token in its own sequence.
            cu_seqlens: int32 [B + 1], where each sequence begins; the last entry is T.
            max_seqlen: no sequence is longer.

        Returns:
            Hidden states [T, d].

        Raises:
            ValueError: a sequence longer than the position table.
        """
        if max_seqlen > self.config.max_position_embeddings:
            self.embeddings.check_length(max_seqlen)
        hidden = self.embeddings(input_ids, segment_ids, position_ids)
        path = self._path(hidden)
        plan = plan_attention(cu_seqlens, max_seqlen, input_ids.shape[0], path)
        encoded: Tensor = self.encoder(hidden, plan)
        return encoded

    def _path(self, hidden: Tensor) -> AttentionPath:
        kind = hidden.device.type
        capability = torch.cuda.get_device_capability(hidden.device) if kind == "cuda" else None
        autocast = torch.is_autocast_enabled(kind)
        return choose_path(
            self.attention,
            device_type=kind,
            compute_capability=capability,
            dtype=torch.get_autocast_dtype(kind) if autocast else hidden.dtype,
            head_size=self.config.head_size,
            dropout=self.config.attention_dropout if self.training else 0.0,
        )


class BertWithHeads(nn.Module):
    """The encoder, under the name `bert`, to which subclasses add heads.

    Arguments as of `BertModel`.
    """

    def __init__(
        self,
        config: BertConfig,
        attention: AttentionChoice = "auto",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, attention, checkpointing)
        self._compiled: Callable[..., Tensor] | None = None

    def compile_encoder(self, backend: str = "inductor") -> None:
        """Compile embeddings and encoder, in training mode, for batches that all have one shape.

        Their tokens, sequences and `max_seqlen` must not change, so that one graph serves all:
        another shape is compiled anew. In evaluation mode any batch runs as it is. Heads stay
        uncompiled: in pretraining the number of masked positions differs from batch to batch, and
        filling it up would fill the vocabulary projection up.

        Args:
            backend: of `torch.compile`.
        """
        # The method, not the module, which would take the parameters' names along.
        self._compiled = torch.compile(
            self.bert.forward, fullgraph=True, dynamic=False, backend=backend
        )

    def encode(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """`BertModel.forward`, compiled where it is and in training mode."""
        compiled = self._compiled if self.training else None
        forward = self.bert if compiled is None else compiled
        hidden: Tensor = forward(input_ids, segment_ids, position_ids, cu_seqlens, max_seqlen)
        return hidden


class PretrainingOutput(NamedTuple):
    """What a pretraining step reads.

    Attributes:
        mlm_logits: [M, V], for the masked positions alone; [0, V] when labels were given.
        nsp_logits: [B, 2], class 0 is IsNext; None without the objective.
        hidden: [T, d].
        mlm_loss_sum: scalar, summed over the masked positions; None when no labels were given.
    """

    mlm_logits: Tensor
    nsp_logits: Tensor | None
    hidden: Tensor
    mlm_loss_sum: Tensor | None = None


class BertForPreTraining(BertWithHeads):
    """BERT with the masked word head and, when `config.nsp`, the next sentence head.

    Arguments as of `BertModel`.
    """

    def __init__(
        self,
        config: BertConfig,
        attention: AttentionChoice = "auto",
        checkpointing: bool = False,
    ) -> None:
        super().__init__(config, attention, checkpointing)
        self.mlm = MaskedLMHead(config)
        self.pooler = Pooler(config) if config.nsp else None
        self.nsp = NextSentenceHead(config) if config.nsp else None

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        mlm_positions: Tensor,
        mlm_labels: Tensor | None = None,
    ) -> PretrainingOutput:
        """Run the encoder once and both heads on it (seed 3.4).

        Args:
            input_ids, segment_ids, position_ids, cu_seqlens, max_seqlen: as in `BertModel`.
            mlm_positions: int64 [M], indexes into T of the positions to predict. No other
                position reaches the vocabulary projection.
            mlm_labels: int64 [M], the original tokens. With them the loss is computed slice by
                slice and no logits are kept, which is faster and needs less memory.
        """
        hidden = self.encode(input_ids, segment_ids, position_ids, cu_seqlens, max_seqlen)
        masked = hidden.index_select(0, mlm_positions)
        table = self.bert.embeddings.token.weight
        mlm_loss = None
        if mlm_labels is None:
            mlm_logits = self.mlm(masked, table)
        else:
            mlm_logits = hidden.new_empty((0, table.shape[0]))
            vectors = self.mlm.transform(masked)
            mlm_loss = vocabulary_loss_sum(vectors, table, self.mlm.bias, mlm_labels)
        nsp_logits = None
        if self.pooler is not None and self.nsp is not None:
            cls_hidden = hidden.index_select(0, cu_seqlens[:-1])
            nsp_logits = next_sentence_logits(cls_hidden, self.pooler, self.nsp)
        return PretrainingOutput(mlm_logits, nsp_logits, hidden, mlm_loss)


@torch.no_grad()
def init_weights(
    model: nn.Module, generator: torch.Generator | None = None, *, std: float | None = None
) -> None:
    """Initialise as the paper's code does: truncated normal, zero biases, LayerNorm 1 and 0.

    Matrices and tables are drawn in the order of `named_parameters`, in which the encoder comes
    before the heads: one seed gives the same bits, and the same encoder with and without the
    next sentence head.

    Args:
        model: its parameters lie on the generator's device.
        generator: source of all draws; None takes torch's default one.
        std: standard deviation; needed for modules without a `config`, such as a task's head.
    """
    if std is None:
        config = model.config
        assert isinstance(config, BertConfig)
        std = config.initializer_range
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.trunc_normal_(parameter, 0.0, std, -2 * std, 2 * std, generator=generator)
        elif name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            parameter.zero_()
