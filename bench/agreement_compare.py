"""What ways say of the same rows, held against each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.commands.text import table

LARGEST = 1e-4
WAYS = ("predictor", "transformers", "onnxruntime", "served")
PAIRS = tuple(itertools.combinations(WAYS, 2))

Row = dict[str, Any]
Said = dict[str, Any]
"""What a way says: "results", one a row, and of some "ids" and "logits", one list a row."""


def numbers(result: Row) -> Iterator[tuple[str, float | None]]:
    """What of a result may differ by little: its kind, and how much it is."""
    if "value" in result:
        yield "value", result["value"]
    for label in sorted(result.get("scores", ())):
        yield "probability", result["scores"][label]
    for word in result.get("words", ()):
        yield "probability", word["score"]
    if "null_margin" in result:
        yield "probability", result["score"]
        yield "null margin", result["null_margin"]


def names(result: Row) -> list[Any]:
    """What of a result has to be the same."""
    if "words" in result:
        return [(word["word"], word["tag"]) for word in result["words"]]
    return [result.get(key) for key in ("label", "answer", "start", "end")]


def compared(left: Said, right: Said) -> Row:
    """The largest difference of each kind, and how many rows have another name or other ids."""
    largest: dict[str, float] = {}
    pairs = list(zip(left["results"], right["results"], strict=True))
    for one, other in pairs:
        for (kind, a), (_, b) in zip(numbers(one), numbers(other), strict=True):
            largest[kind] = max(largest.get(kind, 0.0), difference(a, b))
    found: Row = {"other_names": sum(names(one) != names(other) for one, other in pairs)}
    if "logits" in left and "logits" in right:
        found["other_ids"] = sum(a != b for a, b in zip(left["ids"], right["ids"], strict=True))
        if not found["other_ids"]:
            largest["logits"] = max(
                difference(float(np.abs(np.array(a) - np.array(b)).max()), 0.0)
                for a, b in zip(left["logits"], right["logits"], strict=True)
            )
    return {"largest": largest, **found}


def difference(a: float | None, b: float | None) -> float:
    """Infinite where one of them is none or no number."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    found = abs(a - b)
    return found if found == found else float("inf")


def wrong_of(name: str, figures: Row) -> Iterator[str]:
    """What does not hold of a task."""
    if not figures["command_says_the_same"]:
        yield f"{name}: clozeline predict says something else than Predictor"
    for pair, found in figures["pairs"].items():
        for kind, largest in found["largest"].items():
            if not largest <= LARGEST:
                yield f"{name}, {pair}: {kind} differs by {largest:.2g}, more than {LARGEST:g}"
        if found["other_names"]:
            yield f"{name}, {pair}: {found['other_names']} rows have another label, tag or answer"
        if found.get("other_ids"):
            yield f"{name}, {pair}: {found['other_ids']} rows have other token ids"


def lines(tasks: Mapping[str, Row]) -> Iterator[str]:
    """The table: for each task and kind the largest difference of each two ways."""
    pairs = [f"{a} / {b}" for a, b in PAIRS]
    rows = []
    for name, figures in tasks.items():
        kinds = list(dict.fromkeys(k for p in figures["pairs"].values() for k in p["largest"]))
        first = f"{name}, {figures['objective']}, {figures['rows']} rows"
        for kind in kinds:
            found = [figures["pairs"][pair]["largest"].get(kind) for pair in pairs]
            rows.append((first, kind, *("" if v is None else f"{v:.1e}" for v in found)))
            first = ""
        other = [str(figures["pairs"][pair]["other_names"]) for pair in pairs]
        rows.append(("", "rows with other names", *other))
    yield from table(("", "largest difference of", *pairs), rows)
