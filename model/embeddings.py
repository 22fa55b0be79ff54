"""Input representation: token + segment + learned position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import BertConfig
from model.dropout import dropout


class Embeddings(nn.Module):
    """Sum of three lookups, then LayerNorm and dropout (seed 1.3; Devlin et al. 2018, 3.2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout

    def embedding_sum(self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Add the three embeddings, without LayerNorm and dropout (seed 1.7).

        Args:
            input_ids: integer tensor of any shape, rows of the token table.
            segment_ids: same shape, 0 for segment A and 1 for segment B.
            position_ids: same shape, position of each token in its own sequence.

        Returns:
            Float tensor [*shape, d].

        Raises:
            ValueError: a position beyond the table. It is looked for where that costs nothing, on
                CPU; elsewhere `check_length` guards the known length of a batch.
        """
        on_cpu = position_ids.device.type == "cpu" and not torch.compiler.is_compiling()
        if on_cpu and position_ids.numel():
            self.check_length(int(position_ids.max()) + 1)
        summed: Tensor = self.token(input_ids)
        # The lookup made a new tensor, and no gradient needs its value: add in place.
        summed += self.segment(segment_ids)
        summed += self.position(position_ids)
        return summed

    def check_length(self, length: int) -> None:
        """Raise ValueError when a sequence of `length` tokens has no row for each position."""
        rows = self.position.num_embeddings
        if length > rows:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the position table of {rows} rows: "
                f"truncate it to {rows} tokens, or cut it into overlapping windows of at most "
                f"{rows} tokens"
            )

    def forward(self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return the normalised sum [*shape, d]; arguments as in `embedding_sum`."""
        summed = self.embedding_sum(input_ids, segment_ids, position_ids)
        return dropout(self.norm(summed), self.dropout, self.training)
