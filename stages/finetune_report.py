"""What the stage finetune says when its model is there: figures, tables, the model card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.lineage import lineage_of_inputs
from pipeline.stage import Context, Json, LoggedModel, Result, Table
from stages.finetune_worker import (
    FIGURES,
    PAGE,
    PREDICTIONS,
    TABLES,
    best_first,
    task_description,
)
from stages.metrics.intervals import over_seeds, wilson
from stages.model_card import CARD_FILE, SHAPE, Card, CardData, CardFigure, data_side, model_card
from stages.registered_model import registered_model

SHARES = {"classification": "accuracy", "answers": "exact"}
"""Figures that are shares of independent rows, and have an interval of their own."""

USE = """\
from transformers import AutoTokenizer, {model}

folder = "{folder}"
model = {model}.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)"""


def finetune_result(context: Context) -> Result:
    """Write the model card, and say what came out."""
    output = context.output
    described = task_description(context.inputs["task"])
    found = json.loads(_read(context, FIGURES))
    shape = json.loads(_read(context, "config.json"))
    name = context.node.name.partition("/")[2]
    parameters = output.finished()["model.safetensors"].figures["parameters"]
    card = _card(context, name, described, found, shape, int(parameters))
    # No part of the result: it names runs and folders.
    output.write_bytes(CARD_FILE, model_card(card).encode(), content=False)
    best = next(one for one in found["seeds"] if one["seed"] == found["seed"])
    figures: dict[str, Json] = {
        "rows_train": described["train"]["rows"],
        "rows_dev": described["dev"]["rows"],
        "parameters": parameters,
        "metric": found["metric"],
        **{f"dev/{key}": value for key, value in found["dev"].items()},
        **_over_seeds(found["seeds"], found["dev"]),
        **{key: best[key] for key in ("seed", "steps", "kept_step", "ended_early", "tokens_seen")},
        **{key: value for key, value in best.items() if key.startswith("train/")},
    }
    for text in _limits(described, found):
        context.progress.note(text)
    value = found["dev"].get(found["metric"])
    said = "undefined" if value is None else f"{value:.4f}"
    return Result(
        figures=figures,
        flow=f"{described['train']['rows']:,} rows, {best['steps']:,} steps -> {found['metric']} "
        f"{said} on {described['dev']['rows']:,} dev rows",
        report=[
            Table("Where the model is", ["folder"], [[output.shown]]),
            _seeds_table(found),
            *(
                Table(table["title"], table["columns"], table["rows"])
                for table in json.loads(_read(context, TABLES))
            ),
        ],
        samples=[USE.format(model=auto_model(shape), folder=output.data)],
        model=_logged(context, name, described),
    )


def auto_model(shape: Mapping[str, Any]) -> str:
    """The class of transformers that opens the folder."""
    return str(shape["architectures"][0]).replace("BertFor", "AutoModelFor")


def _read(context: Context, name: str) -> bytes:
    data = context.output.files.read(f"{context.output.data}/{name}")
    assert data is not None, name
    return data


def _over_seeds(seeds: Sequence[Mapping[str, Any]], dev: Mapping[str, float]) -> dict[str, Json]:
    if len(seeds) < 2:
        return {}
    figures: dict[str, Json] = {"seeds": len(seeds)}
    for name in dev:
        values = [one[f"dev/{name}"] for one in seeds if f"dev/{name}" in one]
        if len(values) == len(seeds):
            spread = over_seeds(values)
            figures |= {
                f"dev/{name}_mean": spread.mean,
                f"dev/{name}_deviation": spread.deviation,
            }
    return figures


def _seeds_table(found: Mapping[str, Any]) -> Table:
    names = list(found["dev"])
    rows = [
        [
            f"{one['seed']}{' (the model)' if one['seed'] == found['seed'] else ''}",
            *(one.get(f"dev/{name}") for name in names),
            one["kept_step"],
            one["steps"],
        ]
        for one in best_first(found["seeds"], found["metric"], found["higher_is_better"])
    ]
    columns = ["run", *(f"dev {name}" for name in names), "weights of step", "steps"]
    return Table("Runs that differ in their seed alone, the best first", columns, rows)


def _card(
    context: Context,
    name: str,
    described: Mapping[str, Any],
    found: Mapping[str, Any],
    shape: Mapping[str, Any],
    parameters: int,
) -> Card:
    config = context.node.config
    figures = {
        key: CardFigure(
            value,
            *_interval(key, value, described),
            seeds=[one[f"dev/{key}"] for one in found["seeds"] if f"dev/{key}" in one],
            baseline=_baseline(key, described),
        )
        for key, value in found["dev"].items()
    }
    return Card(
        name=name,
        described=shape["clozeline"],
        shape={key: shape[key] for key in SHAPE},
        parameters=parameters,
        labels=described["classes"],
        data=[_data_side(context, which, described) for which in ("train", "dev")],
        figures=figures,
        chosen_by=found["metric"] if config["train"]["keep"] == "best" else None,
        training={
            **({"encoder": encoder} if (encoder := _encoder(context)) else {}),
            **{key: value for key, value in config["train"].items() if value is not None},
        },
        lineage=lineage_of_inputs(context.inputs),
        onnx=config["onnx"],
        more_limits=_limits(described, found),
    )


def _data_side(context: Context, which: str, described: Mapping[str, Any]) -> CardData:
    """One side of the data; its files are those that the stage task listed."""
    listed = context.inputs["task"].raw() or []
    found = described[which]
    counts = {
        "in": found["in"],
        "out": found["rows"],
        **found["reasons"],
        "classes": class_counts(described, which),
    }
    return data_side(which, counts, [row["name"] for row in listed if row.get("set") == which])


def class_counts(described: Mapping[str, Any], which: str) -> Mapping[str, int]:
    """How often each class stands in train or dev; none where the objective has no classes.

    Args:
        described: of task.json, which counts nothing of numbers and answers.
        which: "train" or "dev".
    """
    counts: Mapping[str, int] = described["class_counts"].get(which, {})
    return counts


def _encoder(context: Context) -> str:
    """Which given encoder it started from; "" for this run's own, which the lineage has."""
    given = context.node.settings["init_from"]
    if given is None:
        return ""
    entry = next(iter(context.raw.entries)) if context.raw is not None else {}
    name = given.rstrip("/").rpartition("/")[2]
    return f"{name} (SHA-256 of its weights {entry.get('sha256', '')[:16]})"


def _limits(described: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures must know."""
    said = []
    metric, dev = found["metric"], found["dev"]
    if metric not in dev:
        why = found["notes"].get(metric, "undefined")
        said.append(f"{metric} cannot be told on these dev rows ({why}): the last weights are kept")
    baseline = _baseline("accuracy", described)
    if baseline is not None and dev["accuracy"] <= baseline:
        said.append(
            f"accuracy {dev['accuracy']:.4f} is no better than always saying the most frequent "
            f"class ({baseline:.4f})"
        )
    shared = described["dev"].get("rows_in_train", 0)
    if shared:
        said.append(f"{shared:,} of the {described['dev']['rows']:,} dev rows stand in train too")
    return said


def _interval(
    name: str, value: float, described: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    rows = described["dev"]["rows"]
    if SHARES.get(described["objective"]) != name:
        return None, None
    interval = wilson(round(value * rows), rows)
    return interval.low, interval.high


def _baseline(name: str, described: Mapping[str, Any]) -> float | None:
    classes = class_counts(described, "dev")
    if described["objective"] != "classification" or name != "accuracy" or not classes:
        return None
    counts: list[int] = list(classes.values())
    return max(counts) / sum(counts)


def _logged(context: Context, name: str, described: Mapping[str, Any]) -> LoggedModel | None:
    if not context.node.settings["register"]:
        return None
    first = next(iter(_read(context, PREDICTIONS).decode().splitlines()), "{}")
    row = json.loads(first)
    keys = ("text", "text_b", "words", "question", "context")
    example = {key: row[key] for key in keys if row.get(key) is not None}
    aside = [FIGURES, PREDICTIONS, PAGE, TABLES, "model.onnx"]
    aside += [part for part in context.output.finished() if part.startswith("seeds/")]
    return registered_model(
        name,
        described["objective"],
        pairs="text_b" in example,
        example=[example] if example else (),
        leave_out=aside,
    )
