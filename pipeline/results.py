"""A stage's `Result` as JSON and back, so that `show` has it long after the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from pipeline.stage import Histogram, Json, Result, StageError, Table

KINDS = {"table": Table, "histogram": Histogram}


def result_to_json(result: Result) -> dict[str, Json]:
    """Everything in it; `result_from_json` reverses it."""
    names = {kind: name for name, kind in KINDS.items()}
    return {
        "figures": dict(result.figures),
        "counts": dict(result.counts),
        "report": [{"kind": names[type(item)], **asdict(item)} for item in result.report],
        "samples": list(result.samples),
    }


def result_from_json(value: Mapping[str, Json]) -> Result:
    """The reverse of `result_to_json`."""
    report = [
        KINDS[i["kind"]](**{k: v for k, v in i.items() if k != "kind"}) for i in value["report"]
    ]
    return Result(
        figures=value["figures"],
        counts=value["counts"],
        report=report,
        samples=value["samples"],
    )


def check_counts(node: str, counts: Mapping[str, int]) -> None:
    """Raise StageError unless what came in went out or is counted under a reason."""
    if "in" not in counts:
        return
    rest = {name: n for name, n in counts.items() if name != "in"}
    lost = counts["in"] - sum(rest.values())
    if lost:
        said = ", ".join(f"{name} {n}" for name, n in rest.items())
        raise StageError(
            f"{node}: {abs(lost)} {'are lost' if lost > 0 else 'too many came out'}: "
            f"{counts['in']} came in, but {said}. This is a fault of the stage"
        )
