"""A node's report as one self-contained HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from jinja2 import Environment, PackageLoader, Template, select_autoescape
from markupsafe import Markup, escape

from pipeline.commands.text import duration, flow, is_number, size
from pipeline.stage import Histogram, Json, Node, Result, Table, flatten

WIDTH = 640
HEIGHT = 160
"""A histogram's drawing area in SVG units."""

MOST_TICKS = 9

# In a sample "[shown→meant]" is a place to look at.
MARKED = re.compile(r"\[[^\[\]\s]+→[^\[\]\s]+\]")


def page(node: Node, manifest: Mapping[str, Json], result: Result) -> str:
    """The report of a node that was made.

    Args:
        node: its name, stage and configuration stand in the page.
        manifest: `fingerprint`, `output_digest`, `inputs`, `versions`, `created`, `seconds`,
            `bytes`, `unit`, `flow` and `tracking_run_id` are shown where they are there.
        result: counts, figures, tables, histograms and samples. Text is escaped.

    Returns:
        HTML without any outside resource.
    """
    counts = count_rows(result.counts)
    return _template().render(
        node=node,
        manifest=manifest,
        result=result,
        lead=_lead(manifest),
        facts=list(_facts(manifest)),
        unit=result.unit or manifest.get("unit") or "",
        counts=counts,
        shares=[row for row in counts if row[0] != "in"],
        whole=result.counts.get("in", 0),
        unbalanced=unbalanced(result.counts),
        blocks=[_bars(b) if isinstance(b, Histogram) else _cells(b) for b in result.report],
        config=list(flatten(node.config)),
        inputs=[_input_row(role, value) for role, value in (manifest.get("inputs") or {}).items()],
        versions=[row for row in flatten(manifest.get("versions") or {}) if row[1] != {}],
    )


def count_rows(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """In, out and each reason with its share of what came in."""
    whole = counts.get("in", 0)
    order = [k for k in ("in", "out") if k in counts]
    order += [k for k in counts if k not in ("in", "out")]
    return [
        (k.replace("_", " "), counts[k], f"{counts[k] / whole:.2%}" if whole else "") for k in order
    ]


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


def marked(text: str) -> Markup:
    """A sample, with what `MARKED` finds in it set off."""
    pieces, end = [], 0
    for found in MARKED.finditer(text):
        pieces += [escape(text[end : found.start()]), Markup("<mark>{}</mark>").format(found[0])]
        end = found.end()
    return Markup("").join([*pieces, escape(text[end:])])


def _lead(manifest: Mapping[str, Json]) -> str:
    known = manifest.get("counts") or manifest.get("flow")
    return flow(manifest).replace("->", "→") if known else ""


def _facts(manifest: Mapping[str, Json]) -> Iterator[str]:
    if manifest.get("created"):
        yield f"made {str(manifest['created'])[:16].replace('T', ' ')} UTC"
    if isinstance(manifest.get("seconds"), int | float):
        yield f"in {duration(manifest['seconds'])}"
    if manifest.get("bytes"):
        yield size(manifest["bytes"])


def _cells(table: Table) -> dict[str, Any]:
    """A table's texts; a column of numbers is read from the right."""
    rows = [[shown(cell) for cell in row] for row in table.rows]
    right = [i > 0 and all(is_number(row[i]) for row in rows) for i in range(len(table.columns))]
    return {"title": table.title, "columns": list(table.columns), "rows": rows, "right": right}


def _bars(histogram: Histogram) -> dict[str, Any]:
    """A histogram's SVG rectangles, tick labels and the same numbers as rows."""
    edges, counts = list(histogram.edges), list(histogram.counts)
    places = _places(edges)
    tallest = max(counts, default=0) or 1.0
    bars = []
    for (left, right), (low, high), count in zip(
        pairwise(edges), pairwise(places), counts, strict=True
    ):
        height = HEIGHT * count / tallest
        bars.append(
            {
                "x": f"{low:.2f}",
                "y": f"{HEIGHT - height:.2f}",
                "width": f"{max(high - low - 1, 0.5):.2f}",
                "height": f"{height:.2f}",
                "title": f"{shown(left)} to {shown(right)}: {shown(count)}",
            }
        )
    step = -(-len(edges) // MOST_TICKS)
    ticks = [
        {"at": f"{100 * place / WIDTH:.2f}", "text": f"{edge:,.4g}" if edge < 1e4 else shown(edge)}
        for edge, place in list(zip(edges, places, strict=True))[::step]
    ]
    return {
        "title": histogram.title,
        "unit": histogram.unit,
        "width": WIDTH,
        "height": HEIGHT,
        "bars": bars,
        "tallest": shown(tallest),
        "ticks": ticks,
        "rows": [(*pair, n) for pair, n in zip(pairwise(edges), counts, strict=True)],
    }


def _places(edges: Sequence[float]) -> list[float]:
    """Where the edges lie across the drawing; bins that double are drawn equally wide."""
    low, high = edges[0], edges[-1]
    bins = len(edges) - 1
    narrow = min(right - left for left, right in pairwise(edges)) * bins < (high - low) / 4
    if narrow:
        return [WIDTH * i / bins for i in range(bins + 1)]
    return [(edge - low) * WIDTH / ((high - low) or 1.0) for edge in edges]


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
    environment.filters["marked"] = marked
    return environment.get_template("report.html.j2")
