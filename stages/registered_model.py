"""What MLflow is told of a model: its name, columns and example rows, by objective."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipeline.stage import Column, Json, LoggedModel
from stages.model_card import CARD_FILE
from stages.model_card_use import PRETRAINED

PREFIX = "clozeline-"
DISTRIBUTIONS = (
    "mlflow",
    "numpy",
    "pandas",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "torch",
)
"""What `stages.served_model` imports."""

_TAKES: Mapping[str, tuple[Column, ...]] = {
    "classification": (Column("text", "string"), Column("text_b", "string", required=False)),
    "regression": (Column("text", "string"), Column("text_b", "string", required=False)),
    # A list of words; MLflow's own type for it refuses rows that have a text instead.
    "tagging": (
        Column("text", "string", required=False),
        Column("words", "any", required=False),
    ),
    "answers": (Column("question", "string"), Column("context", "string")),
    PRETRAINED: (Column("text", "string"),),
}
_GIVES: Mapping[str, tuple[Column, ...]] = {
    "classification": (
        Column("label", "string"),
        Column("score", "double"),
        Column("scores", "any"),
    ),
    "regression": (Column("value", "double"),),
    "tagging": (Column("words", "any"), Column("entities", "any")),
    "answers": (
        Column("answer", "any"),
        Column("start", "any"),
        Column("end", "any"),
        Column("score", "double"),
        Column("null_margin", "any"),
    ),
    PRETRAINED: (Column("masks", "any"), Column("filled", "string")),
}
_EXAMPLES: Mapping[str, tuple[Mapping[str, Json], ...]] = {
    "classification": ({"text": "An example of a text."}, {"text": "Another one."}),
    "regression": ({"text": "A plane is taking off.", "text_b": "An air plane takes off."},),
    "tagging": ({"text": "Ada Lovelace was born in London."},),
    "answers": ({"question": "Who was born?", "context": "Ada Lovelace was born in London."},),
    PRETRAINED: ({"text": "An example of a [MASK]."},),
}


def registered_model(
    name: str,
    objective: str,
    *,
    pairs: bool = False,
    example: Sequence[Mapping[str, Json]] = (),
    leave_out: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> LoggedModel:
    """A model for `pipeline.stage.Result.model`.

    Args:
        name: of the task; "pretrained" for a pretrained model. Registered as `clozeline-NAME`.
        objective: one of the four, or `PRETRAINED`.
        pairs: whether `text_b` is needed.
        example: rows; made-up ones without.
        leave_out: parts that serving does not need (figures, pages, predictions).
        tags: of the version.
    """
    takes = _TAKES[objective]
    if pairs:
        takes = tuple(Column(column.name, column.type) for column in takes)
    return LoggedModel(
        name=PREFIX + re.sub(r"[^\w-]", "-", name),
        entry="stages.served_model",
        packages=("model", "pipeline", "stages"),
        distributions=DISTRIBUTIONS,
        takes=takes,
        gives=_GIVES[objective],
        example=example or _EXAMPLES[objective],
        options={"do": "", "top": 0},
        leave_out=leave_out,
        tags={"clozeline.objective": objective, **(tags or {})},
        about=f"Made by clozeline. {CARD_FILE} among its artifacts is the model card.",
    )
