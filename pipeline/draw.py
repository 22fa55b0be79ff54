"""The graph as text, as Mermaid and as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pipeline.graph import Graph

BOX_HEIGHT = 34
ROW = 58
GAP = 56
CHARACTER = 7.6
"""Of the SVG, in its units; a character of 13 px monospace is that wide."""


def text(graph: Graph) -> str:
    """A line a node, in the order of making: its name and what it reads."""
    width = max(len(name) for name in graph.names)
    rows = []
    for node in graph:
        reads = list(dict.fromkeys(node.inputs.values()))
        reads += [f"{name} (watches)" for name in dict.fromkeys(node.watches.values())]
        rows.append(f"{node.name:<{width}}  <- {', '.join(reads)}" if reads else node.name)
    return "\n".join(rows)


def mermaid(graph: Graph) -> str:
    """A Mermaid flowchart, as Markdown pages and MLflow show it."""
    numbers = {name: f"n{i}" for i, name in enumerate(graph.names)}
    rows = ["flowchart LR"]
    rows += [f'    {numbers[name]}["{name}"]' for name in graph.names]
    for source, target, is_watch in _edges(graph):
        rows.append(f"    {numbers[source]} {'-.->' if is_watch else '-->'} {numbers[target]}")
    return "\n".join(rows)


def svg(graph: Graph) -> str:
    """An SVG drawing in columns from left to right; dashed lines are watches."""
    columns = _columns(graph)
    place: dict[str, tuple[float, float, float]] = {}
    x, tallest = 16.0, max(len(column) for column in columns)
    for column in columns:
        width = max(len(name) for name in column) * CHARACTER + 24
        top = 16 + (tallest - len(column)) * ROW / 2
        place |= {name: (x, top + i * ROW, width) for i, name in enumerate(column)}
        x += width + GAP
    size = f"{x - GAP + 16:.0f} {tallest * ROW - ROW + BOX_HEIGHT + 32:.0f}"
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'width="{size.split()[0]}" height="{size.split()[1]}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="end" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#667085"/></marker></defs>',
    ]
    for source, target, is_watch in _edges(graph):
        (x0, y0, width), (x1, y1, _) = place[source], place[target]
        start, end, bend = x0 + width, x1, GAP / 2
        dashes = ' stroke-dasharray="4 4"' if is_watch else ""
        rows.append(
            f'<path d="M{start:.0f},{y0 + BOX_HEIGHT / 2:.0f} C{start + bend:.0f},'
            f"{y0 + BOX_HEIGHT / 2:.0f} {end - bend:.0f},{y1 + BOX_HEIGHT / 2:.0f} "
            f'{end:.0f},{y1 + BOX_HEIGHT / 2:.0f}" fill="none" stroke="#667085"{dashes} '
            'marker-end="url(#end)"/>'
        )
    for name, (x0, y0, width) in place.items():
        rows.append(
            f'<rect x="{x0:.0f}" y="{y0:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="6" '
            'fill="#eef4ff" stroke="#3538cd"/>'
            f'<text x="{x0 + width / 2:.0f}" y="{y0 + BOX_HEIGHT / 2 + 5:.0f}" '
            f'text-anchor="middle" fill="#101828">{escape(name)}</text>'
        )
    return "\n".join([*rows, "</svg>"])


def _edges(graph: Graph) -> Iterator[tuple[str, str, bool]]:
    """(from, to, whether it is a watch), each once."""
    for node in graph:
        for name in dict.fromkeys(node.inputs.values()):
            yield name, node.name, False
        for name in dict.fromkeys(node.watches.values()):
            if name not in node.inputs.values():
                yield name, node.name, True


def _columns(graph: Graph) -> list[list[str]]:
    """Nodes by their distance from the sources: each stands right of all that it reads."""
    depth: dict[str, int] = {}
    for node in graph:
        before = [*node.inputs.values(), *node.watches.values()]
        depth[node.name] = 1 + max((depth.get(name, -1) for name in before), default=-1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, column in depth.items():
        columns[column].append(name)
    return columns
