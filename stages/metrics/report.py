"""The confusion matrix and the worst mistakes as tables, JSON and a small HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

import numpy as np
from jinja2 import Environment, Template
from numpy.typing import NDArray

from pipeline.stage import Table
from stages.metrics.figures import Figures
from stages.metrics.mistakes import Mistake

MOST_CLASSES = 40
"""A larger matrix is no picture: its most confused classes are listed instead."""

TEXT_CHARACTERS = 600


def confusion_table(matrix: NDArray[np.int64], classes: Sequence[str]) -> Table:
    """Gold classes down, predicted ones across."""
    rows = [[name, *line.tolist()] for name, line in zip(classes, matrix, strict=True)]
    return Table("Confusion: gold down, predicted across", ["gold", *classes], rows)


def most_confused(matrix: NDArray[np.int64], classes: Sequence[str], count: int = 20) -> Table:
    """The pairs of classes that were mistaken most often, with the share of the gold class."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    of = matrix.sum(axis=1)
    pairs = [(int(i) // len(classes), int(i) % len(classes)) for i in order]
    rows = [
        [classes[g], classes[p], int(wrong[g, p]), round(float(wrong[g, p] / of[g]), 4)]
        for g, p in pairs
        if wrong[g, p]
    ]
    return Table("Most confused", ["gold", "predicted", "rows", "share of gold"], rows)


def mistakes_table(
    mistakes: Sequence[Mistake], texts: Sequence[str], ids: Sequence[str] | None = None
) -> Table:
    """The worst mistakes with their texts.

    Args:
        mistakes: of one task, so with one measure.
        texts: of all rows, as a person reads them; long ones are cut.
        ids: of all rows; their indices where None.
    """
    measure = mistakes[0].measure if mistakes else "loss"
    rows = [
        [
            str(m.row) if ids is None else ids[m.row],
            _beginning(texts[m.row]),
            m.gold,
            m.predicted,
            round(m.badness, 4),
        ]
        for m in mistakes
    ]
    return Table("Worst mistakes", ["row", "text", "gold", "predicted", measure], rows)


def figures_table(figures: Figures) -> Table:
    """All figures with what must be known of them; an undefined one is empty."""
    names = [*figures.values, *(n for n in figures.notes if n not in figures.values)]
    rows = [[n, figures.values.get(n), figures.notes.get(n, "")] for n in names]
    return Table("Figures", ["figure", "value", "note"], rows)


def tables_json(tables: Sequence[Table]) -> str:
    """[{"title", "columns", "rows"}...], for programs."""
    return json.dumps([asdict(table) for table in tables], ensure_ascii=False, indent=1)


def page(
    title: str,
    tables: Sequence[Table],
    matrix: NDArray[np.int64] | None = None,
    classes: Sequence[str] = (),
) -> str:
    """One self-contained HTML page: the matrix with its cells shaded, then the tables.

    Args:
        title: heading.
        tables: as given; all text is escaped.
        matrix: int64[K, K], gold down. Over `MOST_CLASSES` classes only its most confused show.
        classes: K names.
    """
    cells = None
    if matrix is not None and len(classes) <= MOST_CLASSES:
        shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
        cells = [
            (name, [(n, round(100 * s)) for n, s in zip(line, share, strict=True)])
            for name, line, share in zip(classes, matrix.tolist(), shares.tolist(), strict=True)
        ]
    elif matrix is not None:
        tables = [most_confused(matrix, classes), *tables]
    return _template().render(title=title, tables=tables, cells=cells, classes=classes)


def _beginning(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS].rstrip() + " …"


@cache
def _template() -> Template:
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(PAGE)


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --ground: #fff; --ink: #1c1c1e; --quiet: #5f6368; --line: #d9dce0; --bar: #2f6fb0; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16181b; --ink: #e7e8ea; --quiet: #a2a7ae; --line: #3a3e44; --bar: #6fa8dc; }
}
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .925rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
thead th { font-weight: normal; color: var(--quiet); }
tbody th { font-weight: normal; }
.matrix td { text-align: right; padding: .25rem .6rem; font-variant-numeric: tabular-nums;
  background: color-mix(in srgb, var(--bar) calc(var(--share) * .6%), transparent); }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% if cells %}
<div class="scroll"><table class="matrix">
<caption>Confusion: gold down, predicted across; shaded by the share of the gold class</caption>
<thead><tr><td></td>{% for c in classes %}<th scope="col">{{ c }}</th>{% endfor %}</tr></thead>
<tbody>
{% for name, line in cells %}
<tr><th scope="row">{{ name }}</th>
{%- for n, share in line %}<td style="--share: {{ share }}">{{ n }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endif %}
{% for table in tables %}
<div class="scroll"><table>
<caption>{{ table.title }}</caption>
<thead><tr>{% for c in table.columns %}<th scope="col">{{ c }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for cell in row %}<td>{{ "–" if cell is none else cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
</body>
</html>
"""
