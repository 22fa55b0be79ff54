"""What a measurement of training is asked for, as it travels to the processes that measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

PARTS = ("mini", "base", "ladder")


@dataclass(frozen=True)
class Switches:
    """What our side can do without; the defaults are what a run has.

    Attributes:
        attention: "auto" is varlen where it exists and attention dropout is 0.
        gathered: only masked positions reach the vocabulary projection, slice by slice; otherwise
            all positions do, with their logits in memory.
        precision: of matrix products.
        fused: the optimiser in one pass over each parameter.
        compile: torch.compile the model.
        checkpointing: recompute each block in backward.
    """

    attention: Literal["auto", "sdpa", "varlen"] = "auto"
    gathered: bool = True
    precision: Literal["bf16", "tf32", "float32"] = "bf16"
    fused: bool = True
    compile: bool = False
    checkpointing: bool = False


@dataclass(frozen=True)
class Shape:
    """A model and what a step of it gets.

    Attributes:
        size: a name of `model.config.SIZES`.
        length: rows are padded to it on their side, and none is longer.
        rows: of a step, which is one micro-batch, on both sides.
        steps: of a round.
    """

    size: str
    length: int
    rows: int
    steps: int


CPU_SHAPES = {"mini": Shape("mini", 128, 64, 3), "base": Shape("base", 128, 64, 1)}
CUDA_SHAPES = {"mini": Shape("mini", 128, 512, 20), "base": Shape("base", 128, 256, 10)}
LADDER = (Shape("base", 128, 256, 10), Shape("large", 512, 64, 5))

RUNGS: Mapping[str, Switches] = {
    "all": Switches(),
    "and compiled": Switches(compile=True),
    "attention by padded sdpa": Switches(attention="sdpa"),
    "all positions to the head": Switches(gathered=False),
    "tf32": Switches(precision="tf32"),
    "float32": Switches(precision="float32"),
    "optimiser not fused": Switches(fused=False),
    "and checkpointing": Switches(checkpointing=True),
}
"""Each differs from the first in one thing."""


@dataclass(frozen=True)
class TrainSettings:
    """A whole measurement.

    Attributes:
        examples: Parquet files of masked rows, of each length one; none: random rows.
        entries: size of the vocabulary, where the file does not say it.
        rounds: each side runs so often, in turn.
        rows: of a step; None: the part's own.
        steps: of a round; None: the part's own.
        precision: of both sides.
        dropout: of both sides, hidden and (but in the ladder) attention.
        threads: torch's; None leaves them as they are.
        device: "cpu" or "cuda".
        peers: whether transformers runs too.
        full: random rows are all of full length, so that nothing is padded on either side.
    """

    examples: Sequence[str] = ()
    entries: int | None = None
    rounds: int = 5
    rows: int | None = None
    steps: int | None = None
    precision: Literal["bf16", "tf32", "float32"] = "bf16"
    dropout: float = 0.1
    threads: int | None = None
    device: str = "cpu"
    peers: bool = True
    full: bool = False

    def shape(self, part: str) -> Shape:
        """What `part` measures here."""
        return self.sized((CPU_SHAPES if self.device == "cpu" else CUDA_SHAPES)[part])

    def lengths(self, parts: Sequence[str]) -> list[int]:
        """Of the rows that `parts` are measured on."""
        found = {self.shape(part).length for part in parts if part != "ladder"}
        return sorted(found | {shape.length for shape in LADDER if "ladder" in parts})

    def sized(self, shape: Shape) -> Shape:
        """`shape` with the rows and steps that were asked for."""
        return Shape(shape.size, shape.length, self.rows or shape.rows, self.steps or shape.steps)
