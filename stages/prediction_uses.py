"""What can be asked of which model."""

from __future__ import annotations

from pathlib import Path

from pipeline.stage import UserError
from stages.prediction_models import Loaded, Objective
from stages.prediction_rows import Do

USES: dict[Objective, tuple[Do, ...]] = {
    "classification": ("classify", "pair", "embed"),
    "regression": ("classify", "pair", "embed"),
    "tagging": ("tag", "embed"),
    "answers": ("answer", "embed"),
    "fill_mask": ("fill_mask", "embed"),
    "embed": ("embed",),
}
"""The first is what is done when nothing is said."""

_SAID: dict[Objective, str] = {
    "classification": "classifies texts",
    "regression": "gives texts a value",
    "tagging": "tags words",
    "answers": "answers questions",
    "fill_mask": "is not fine-tuned",
    "embed": "is an encoder without heads",
}


def check_use(folder: Path, loaded: Loaded, do: Do | None) -> Do:
    """What is asked of a model, if it can do it; None: what it is for.

    Raises:
        UserError: it cannot; the message says what it is for.
    """
    objective = loaded.task.objective
    can = USES[objective]
    if do is None:
        do = can[0]
    if do not in can:
        number = len(loaded.task.labels)
        classes = f" ({number} classes)" if objective in ("classification", "tagging") else ""
        commands = " or ".join(command(use) for use in can)
        raise UserError(
            f"{folder} {_SAID[objective]}{classes}, so it cannot {command(do)}: it is for "
            f"clozeline predict {commands}"
        )
    if do in ("pair", "answer") and loaded.model.config.type_vocab_size < 2:
        raise UserError(
            f"{folder}: config.json says type_vocab_size=1: the model was made for one text, not "
            "for two"
        )
    return do


def command(do: Do) -> str:
    """As the command line names it."""
    return do.replace("_", "-")
