"""A node's report as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from jinja2 import Environment, PackageLoader, Template, select_autoescape

from pipeline.stage import Histogram, Json, Node, Result, flatten

WIDTH = 640
HEIGHT = 160
"""A histogram's drawing area in SVG units."""


def page(node: Node, manifest: Mapping[str, Json], result: Result) -> str:
    """The report of a node that was made.

    Args:
        node: its name, stage and configuration stand in the page.
        manifest: `fingerprint`, `output_digest`, `inputs`, `versions` and `tracking_run_id` are
            shown where they are there.
        result: counts, figures, tables, histograms and samples. Text is escaped.

    Returns:
        HTML without any outside resource.
    """
    return _template().render(
        node=node,
        manifest=manifest,
        result=result,
        counts=count_rows(result.counts),
        unbalanced=unbalanced(result.counts),
        blocks=[_bars(b) if isinstance(b, Histogram) else b for b in result.report],
        config=list(flatten(node.config)),
        inputs=[_input_row(role, value) for role, value in (manifest.get("inputs") or {}).items()],
        versions=list(flatten(manifest.get("versions") or {})),
    )


def count_rows(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """In, out and each reason with its share of what came in."""
    whole = counts.get("in", 0)
    order = [k for k in ("in", "out") if k in counts]
    order += [k for k in counts if k not in ("in", "out")]
    return [(k, counts[k], f"{counts[k] / whole:.2%}" if whole else "") for k in order]


def unbalanced(counts: Mapping[str, int]) -> str | None:
    """What is wrong when in = out + reasons does not hold; None when it does."""
    if "in" not in counts or "out" not in counts:
        return None
    explained = sum(n for name, n in counts.items() if name != "in")
    missing = counts["in"] - explained
    return f"{missing:,} of {counts['in']:,} are not accounted for." if missing else None


def shown(value: Json) -> str:
    """A value as a person reads it: thousands separated, few digits, lists as JSON."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _bars(histogram: Histogram) -> dict[str, Any]:
    """A histogram's SVG rectangles, tick labels and the same numbers as rows."""
    edges, counts = list(histogram.edges), list(histogram.counts)
    low, high = edges[0], edges[-1]
    across = WIDTH / ((high - low) or 1.0)
    tallest = max(counts, default=0) or 1.0
    bars = []
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        height = HEIGHT * count / tallest
        bars.append(
            {
                "x": f"{(left - low) * across:.2f}",
                "y": f"{HEIGHT - height:.2f}",
                "width": f"{max((right - left) * across - 1, 0.5):.2f}",
                "height": f"{height:.2f}",
                "title": f"{shown(left)} to {shown(right)}: {shown(count)}",
            }
        )
    return {
        "title": histogram.title,
        "unit": histogram.unit,
        "width": WIDTH,
        "height": HEIGHT,
        "bars": bars,
        "ticks": [shown(low), shown((low + high) / 2), shown(high)],
        "rows": [(*pair, n) for pair, n in zip(pairwise(edges), counts, strict=True)],
    }


def _input_row(role: str, value: Json) -> tuple[str, str, str]:
    if isinstance(value, Mapping):
        digest = value.get("output_digest") or value.get("digest") or ""
        return role, str(value.get("node", "")), str(digest)
    return role, "", str(value)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("pipeline"),
        autoescape=select_autoescape(default_for_string=True, default=True),
        trim_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template("report.html.j2")
