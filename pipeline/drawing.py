"""The graph as text, Mermaid or SVG; what a node only watches is dashed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from itertools import pairwise

from pipeline.graph import Graph, needs
from pipeline.stage import UserError

BOX_WIDTH, BOX_HEIGHT = 150, 44
LANE_HEIGHT = 6
GAP_X, GAP_Y = 70, 18
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
        read = [n if n in node.inputs.values() else f"{n} (watched)" for n in needs(node)]
        arrow = f"  <- {', '.join(read)}" if read else ""
        lines.append(f"{node.name:{widths[0]}}{state}{arrow}".rstrip())
    return "\n".join(lines) + "\n"


def _mermaid(graph: Graph, states: Mapping[str, str]) -> str:
    number = {name: f"n{i}" for i, name in enumerate(graph.names)}
    lines = ["flowchart LR"]
    for name, n in number.items():
        suffix = f":::{states[name]}" if name in states else ""
        lines.append(f'  {n}["{name}"]{suffix}')
    for node in graph:
        for source in needs(node):
            line = "-->" if source in node.inputs.values() else "-.->"
            lines.append(f"  {number[source]} {line} {number[node.name]}")
    for state in dict.fromkeys(states.values()):
        fill, border = COLOURS[state]
        lines.append(f"  classDef {state} fill:{fill},stroke:{border}")
    return "\n".join(lines) + "\n"


def _svg(graph: Graph, states: Mapping[str, str]) -> str:
    chains = _chains(graph)
    layers = _layers(graph, chains)
    heights = [sum(map(_height, layer)) + GAP_Y * (len(layer) - 1) for layer in layers]
    height = 2 * MARGIN + max(heights)
    width = 2 * MARGIN + len(layers) * (BOX_WIDTH + GAP_X) - GAP_X
    spots: dict[str, tuple[float, float]] = {}
    for i, layer in enumerate(layers):
        top = (height - heights[i]) / 2
        for slot in layer:
            spots[slot] = (MARGIN + i * (BOX_WIDTH + GAP_X), top + _height(slot) / 2)
            top += _height(slot) + GAP_Y
    edges = [
        _edge([spots[slot] for slot in chain], chain[0] in graph[chain[-1]].inputs.values())
        for chain in chains
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


def _chains(graph: Graph) -> list[list[str]]:
    """For each edge the slots it runs through: its source, one in each column between, its target.

    Slots between are named "source>target>column"; without them an edge would run behind boxes.
    """
    depth = _depths(graph)
    chains = []
    for node in graph:
        for source in needs(node):
            between = range(depth[source] + 1, depth[node.name])
            slots = [f"{source}>{node.name}>{column}" for column in between]
            chains.append([source, *slots, node.name])
    return chains


def _depths(graph: Graph) -> dict[str, int]:
    depth: dict[str, int] = {}
    for node in graph:
        depth[node.name] = 1 + max((depth[n] for n in needs(node)), default=-1)
    return depth


def _layers(graph: Graph, chains: list[list[str]]) -> list[list[str]]:
    """Columns of slots, each slot near the middle of those that lead to it."""
    column = _depths(graph)
    before: dict[str, list[str]] = {name: [] for name in graph.names}
    for chain in chains:
        for i, (left, right) in enumerate(pairwise(chain)):
            before.setdefault(right, []).append(left)
            column.setdefault(right, column[chain[0]] + i + 1)
    row: dict[str, float] = {}
    layers = []
    for i in range(max(column.values()) + 1):
        middle = {
            slot: sum(row[left] for left in lefts) / max(1, len(lefts))
            for slot, lefts in before.items()
            if column[slot] == i
        }
        layer = sorted(middle, key=lambda slot: middle[slot])
        row.update({slot: j - (len(layer) - 1) / 2 for j, slot in enumerate(layer)})
        layers.append(layer)
    return layers


def _height(slot: str) -> int:
    return LANE_HEIGHT if ">" in slot else BOX_HEIGHT


def _edge(spots: list[tuple[float, float]], solid: bool) -> str:
    """A curve from the right side of the first spot, across those between, to the last."""
    x, y = spots[0][0] + BOX_WIDTH, spots[0][1]
    curve = f"M{x:g} {y:g}"
    for i, (left, middle) in enumerate(spots[1:], start=2):
        end = left - 2 if i == len(spots) else left
        curve += f" C{x + GAP_X / 2:g} {y:g} {left - GAP_X / 2:g} {middle:g} {end:g} {middle:g}"
        x, y = left + BOX_WIDTH, middle
        if i < len(spots):
            curve += f" L{x:g} {y:g}"
    dashes = "" if solid else ' stroke-dasharray="5 4"'
    return (
        f'<path class="edge" d="{curve}" fill="none" stroke="#80868b"{dashes} '
        'marker-end="url(#tip)"/>'
    )


def _box(name: str, state: str, left: float, centre: float) -> str:
    fill, border = COLOURS[state]
    middle = left + BOX_WIDTH / 2
    base = centre + (-4 if state else 5)
    lines = [
        f'<rect x="{left:g}" y="{centre - BOX_HEIGHT / 2:g}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="{border}"/>',
        f'<text x="{middle:g}" y="{base:g}" font-size="14">{escape(name)}</text>',
    ]
    if state:
        lines.append(
            f'<text x="{middle:g}" y="{centre + 14:g}" font-size="11" fill="#5f6368">{state}</text>'
        )
    return "\n".join(lines)


FORMS: dict[str, Callable[[Graph, Mapping[str, str]], str]] = {
    "text": _text,
    "mermaid": _mermaid,
    "svg": _svg,
}
