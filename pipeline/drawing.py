"""The graph as text, Mermaid or SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from pipeline.graph import Graph
from pipeline.stage import UserError

BOX_WIDTH, BOX_HEIGHT = 150, 44
GAP_X, GAP_Y = 70, 22
MARGIN = 20
COLOURS = {
    "cached": ("#e6f4ea", "#34a853"),
    "run": ("#fef7e0", "#f29900"),
    "undecided": ("#f1f3f4", "#80868b"),
    "running": ("#e8f0fe", "#1a73e8"),
    "failed": ("#fce8e6", "#d93025"),
    "": ("#ffffff", "#5f6368"),
}
"""State -> fill and border."""


def draw(graph: Graph, form: str, states: Mapping[str, str] | None = None) -> str:
    """The graph in one of `FORMS`; with `states` (name -> state) these are shown too.

    Raises UserError for another form.
    """
    if form not in FORMS:
        raise UserError(f"{form!r} is no form of a graph: {', '.join(FORMS)}")
    return FORMS[form](graph, states or {})


def _text(graph: Graph, states: Mapping[str, str]) -> str:
    widths = [max(len(x) for x in column) for column in (graph.names, [*states.values(), ""])]
    lines = []
    for node in graph:
        state = f"  {states.get(node.name, ''):{widths[1]}}" if states else ""
        inputs = ", ".join(dict.fromkeys(node.inputs.values()))
        arrow = f"  <- {inputs}" if inputs else ""
        lines.append(f"{node.name:{widths[0]}}{state}{arrow}".rstrip())
    return "\n".join(lines) + "\n"


def _mermaid(graph: Graph, states: Mapping[str, str]) -> str:
    number = {name: f"n{i}" for i, name in enumerate(graph.names)}
    lines = ["flowchart LR"]
    for name, n in number.items():
        suffix = f":::{states[name]}" if name in states else ""
        lines.append(f'  {n}["{name}"]{suffix}')
    for node in graph:
        sources = dict.fromkeys(node.inputs.values())
        lines += [f"  {number[source]} --> {number[node.name]}" for source in sources]
    for state in dict.fromkeys(states.values()):
        fill, border = COLOURS[state]
        lines.append(f"  classDef {state} fill:{fill},stroke:{border}")
    return "\n".join(lines) + "\n"


def _svg(graph: Graph, states: Mapping[str, str]) -> str:
    layers = _layers(graph)
    tallest = max(len(layer) for layer in layers)
    height = 2 * MARGIN + tallest * BOX_HEIGHT + (tallest - 1) * GAP_Y
    width = 2 * MARGIN + len(layers) * BOX_WIDTH + (len(layers) - 1) * GAP_X
    spots: dict[str, tuple[float, float]] = {}
    for i, layer in enumerate(layers):
        own = len(layer) * BOX_HEIGHT + (len(layer) - 1) * GAP_Y
        for j, name in enumerate(layer):
            top = (height - own) / 2 + j * (BOX_HEIGHT + GAP_Y)
            spots[name] = (MARGIN + i * (BOX_WIDTH + GAP_X), top)
    edges = [
        _edge(spots[source], spots[node.name])
        for node in graph
        for source in dict.fromkeys(node.inputs.values())
    ]
    boxes = [_box(name, states.get(name, ""), *spots[name]) for name in graph.names]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" '
            f'width="{width}" height="{height:g}" font-family="sans-serif" text-anchor="middle">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#80868b"/></marker>'
            "</defs>",
            *edges,
            *boxes,
            "</svg>\n",
        ]
    )


def _layers(graph: Graph) -> list[list[str]]:
    """Columns of names: each node right of all it reads, near the middle of those."""
    depth: dict[str, int] = {}
    for node in graph:
        depth[node.name] = 1 + max((depth[n] for n in node.inputs.values()), default=-1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    row: dict[str, float] = {}
    for level, layer in enumerate(layers):
        names = [name for name in graph.names if depth[name] == level]
        wanted = {name: _middle([row[n] for n in graph[name].inputs.values()]) for name in names}
        layer += sorted(names, key=lambda name: wanted[name])
        row.update({name: i - (len(layer) - 1) / 2 for i, name in enumerate(layer)})
    return layers


def _middle(rows: list[float]) -> float:
    return sum(rows) / len(rows) if rows else 0.0


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    x1, y1 = source[0] + BOX_WIDTH, source[1] + BOX_HEIGHT / 2
    x2, y2 = target[0] - 2, target[1] + BOX_HEIGHT / 2
    bend = x1 + GAP_X / 2, x2 - GAP_X / 2
    curve = f"M{x1:g} {y1:g} C{bend[0]:g} {y1:g} {bend[1]:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="edge" d="{curve}" fill="none" stroke="#80868b" marker-end="url(#tip)"/>'


def _box(name: str, state: str, x: float, y: float) -> str:
    fill, border = COLOURS[state]
    middle = x + BOX_WIDTH / 2
    lift = -4 if state else 5
    lines = [
        f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="{border}"/>',
        f'<text x="{middle:g}" y="{y + BOX_HEIGHT / 2 + lift:g}" font-size="14">'
        f"{escape(name)}</text>",
    ]
    if state:
        lines.append(
            f'<text x="{middle:g}" y="{y + BOX_HEIGHT / 2 + 14:g}" font-size="11" '
            f'fill="#5f6368">{state}</text>'
        )
    return "\n".join(lines)


FORMS: dict[str, Callable[[Graph, Mapping[str, str]], str]] = {
    "text": _text,
    "mermaid": _mermaid,
    "svg": _svg,
}
