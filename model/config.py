"""The encoder's shape, as a plain dataclass."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Everything that decides which parameters a model has and what it computes with them.

    Attributes:
        vocab_size: rows of the token table, special tokens included.
        hidden_size: width d of every position's vector.
        num_layers: encoder blocks L.
        num_heads: attention heads; must divide `hidden_size`.
        intermediate_size: width of the feed-forward layer; None becomes 4 x `hidden_size`.
        max_position_embeddings: rows of the position table; no sequence may be longer.
        type_vocab_size: rows of the segment table.
        hidden_dropout: dropout on the embeddings and on the output of each sub-layer.
        attention_dropout: dropout on the attention probabilities.
        layer_norm_eps: epsilon of every LayerNorm.
        initializer_range: standard deviation of the truncated normal initialisation.
        pad_token_id: id that fills padded batches; kept for export, never attended to.
        nsp: whether there are a pooler and a next sentence head. Without them no parameter is
            left without gradient when the objective is masked language modelling alone.
    """

    vocab_size: int
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 2
    intermediate_size: int | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int = 0
    nsp: bool = True

    def __post_init__(self) -> None:
        if self.intermediate_size is None:
            object.__setattr__(self, "intermediate_size", 4 * self.hidden_size)
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of 1 or more")
        if self.hidden_size % self.num_heads:
            near = min(
                (h for h in range(1, self.hidden_size + 1) if self.hidden_size % h == 0),
                key=lambda h: abs(h - self.num_heads),
            )
            raise ValueError(
                f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}: "
                f"try num_heads={near}"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must lie in [0, 1): 0 switches it off"
                )
        for name in ("layer_norm_eps", "initializer_range"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be above 0")
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is no entry of a vocabulary of "
                f"{self.vocab_size}: give the id of [PAD], 0 in BERT's vocabularies"
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def feed_forward_size(self) -> int:
        """`intermediate_size` with None resolved."""
        assert self.intermediate_size is not None
        return self.intermediate_size

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from `to_dict`'s values.

        Raises:
            ValueError: an unknown key (the nearest known one is named), a missing `vocab_size`,
                or a value out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
                raise ValueError(f"unknown key {key!r} in the model's configuration: {hint}")
        if "vocab_size" not in values:
            raise ValueError("vocab_size is missing: give the number of vocabulary entries")
        return cls(**values)


def _size(num_layers: int, hidden_size: int) -> dict[str, int]:
    return {"num_layers": num_layers, "hidden_size": hidden_size, "num_heads": hidden_size // 64}


SIZES: dict[str, dict[str, int]] = {
    "tiny": _size(2, 128),
    "mini": _size(4, 256),
    "small": _size(4, 512),
    "medium": _size(8, 512),
    "base": _size(12, 768),
    "large": _size(24, 1024),
}
"""Named shapes: tiny to medium from Turc et al. 2019, base and large from Devlin et al. 2018.

Use as `BertConfig(vocab_size=..., **SIZES["base"])`.
"""
