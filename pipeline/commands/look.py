"""`clozeline plan`, `status`, `why`, `graph` and `show`: they look, and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.commands.text import (
    amount,
    duration,
    flow,
    is_number,
    size,
    table,
    terminal_width,
)
from pipeline.graph import Graph, Selection
from pipeline.plan import NodePlan, plan
from pipeline.stage import Json, Node, Stage, Table, UserError
from pipeline.store import Artifact, Store

REPORT = "report.html"
"""A node's page, beside its manifest."""

SHOWN_ROWS = 12
"""Of a table in `show`; the report page has all of them."""

CELL_CHARACTERS = 70


def plan_lines(
    graph: Graph, store: Store, selection: Selection, force: bool, as_json: bool
) -> Iterator[str]:
    """What `run` would do with the same words, and why."""
    plans = plan(graph, store, selection, force)
    if as_json:
        yield _json([made.to_json() for made in plans])
        return
    rows = [(p.node, p.state, p.why) for p in plans]
    yield from table(("node", "state", "why"), rows, terminal_width())
    yield from _warnings(plans)
    to_run = sum(made.state in ("run", "failed") for made in plans)
    undecided = sum(made.state == "undecided" for made in plans)
    if to_run or undecided:
        text = f"{to_run} of {len(plans)} nodes to run"
        yield text + (f", {undecided} undecided until then" if undecided else "")
    else:
        yield "nothing to run"


def status_lines(graph: Graph, store: Store, as_json: bool) -> Iterator[str]:
    """What is there of this config, who makes what now, what failed."""
    plans = plan(graph, store)
    if as_json:
        yield _json([made.to_json() for made in plans])
        return
    rows = [(p.node, p.state, *_made(p.artifact), _what(p)) for p in plans]
    yield from table(("node", "state", "made", "took", "size", "what"), rows, terminal_width())
    yield f"store: {store.location}"


def why_lines(graph: Graph, store: Store, selector: str, as_json: bool) -> Iterator[str]:
    """What differs from the nearest result that is there, for each node of `selector`."""
    from pipeline.why import explain

    found = [explain(graph, store, name) for name in graph.match(selector)]
    if as_json:
        yield _json([one.to_json() for one in found])
        return
    for one in found:
        yield from one.lines()


def graph_text(graph: Graph, store: Store, form: str, with_states: bool) -> str:
    """The drawing of the graph as text, mermaid or svg; with the states that `plan` gives."""
    from pipeline.drawing import draw

    states = {made.node: made.state for made in plan(graph, store)} if with_states else None
    return draw(graph, form, states).rstrip("\n")


def show_lines(graph: Graph, store: Store, selector: str, as_json: bool) -> Iterator[str]:
    """Figures of the results of `selector`, and where their report pages are.

    Raises:
        UserError: a node has no result with this config.
    """
    plans = {made.node: made for made in plan(graph, store)}
    artifacts = [found_artifact(plans[name], store) for name in graph.match(selector)]
    if as_json:
        yield _json([_show_json(artifact) for artifact in artifacts])
        return
    for artifact in artifacts:
        yield from _show(artifact)


def report_path(artifact: Artifact) -> str | None:
    """Where the report page of an artifact is; None when there is none."""
    path = f"{artifact.path}/{REPORT}"
    return path if artifact.files_at.size(path) is not None else None


def write_report(artifact: Artifact, notice: Callable[[str], None]) -> None:
    """Write the report page of an artifact beside its manifest; a failure is only noticed."""
    from pipeline.report import page

    stage = Stage(str(artifact.manifest["stage"]), artifact.manifest["stage_version"], run="")
    node = Node(artifact.node, stage, artifact.manifest["config"], artifact.manifest["settings"])
    try:
        html = page(node, artifact.manifest, artifact.result())
        artifact.files_at.write(f"{artifact.path}/{REPORT}", html.encode())
    except OSError as error:
        notice(f"{artifact.node}: its report could not be written: {error}")


def found_artifact(made: NodePlan, store: Store) -> Artifact:
    """The result of a planned node. Raises UserError when there is none: it says what to do."""
    if made.artifact is not None:
        return made.artifact
    others = store.artifacts(made.node)
    hint = (
        "If a run with other words made it, this command needs the same words: overrides, "
        f"--conf-dir.\nclozeline run --until {made.node} makes it with these."
    )
    if others:
        hint += (
            f"\nThere {'is one' if len(others) == 1 else f'are {len(others)}'} of other configs; "
            f"clozeline why {made.node} says what differs."
        )
    raise UserError(f"{made.node} has no result with this config ({made.why}).\n{hint}")


def _show(artifact: Artifact) -> Iterator[str]:
    manifest = artifact.manifest
    created, took, large = _made(artifact)
    yield artifact.node
    facts = [("in -> out", flow(manifest)), ("made", f"{created} UTC in {took}, {large}")]
    facts += [("fingerprint", artifact.fingerprint), ("output", artifact.output_digest)]
    facts.append(("path", artifact.files_at.shown(artifact.path)))
    report = report_path(artifact)
    if report is not None:
        facts.append(("report", _link(artifact, report)))
    yield from (f"  {name:<11}  {value}" for name, value in facts)
    tables = [block for block in artifact.result().report if isinstance(block, Table)]
    for block in tables:
        if block.rows:
            yield from _table(block)
    if not tables:
        yield ""
        width = max((len(name) for name in artifact.figures), default=0)
        for name, value in artifact.figures.items():
            yield f"  {name:<{width}}  {amount(value)}"
    yield ""
    yield "histograms and samples: the report; all figures: --json"


def _table(block: Table) -> Iterator[str]:
    """A table of the report, cut to what a terminal holds."""
    most = CELL_CHARACTERS if len(block.columns) > 1 else None
    rows = [[_cell(cell, most) for cell in row] for row in block.rows]
    yield ""
    yield f"{block.title}"
    kept = rows if len(rows) <= SHOWN_ROWS + 1 else rows[:SHOWN_ROWS]
    numeric = [all(is_number(row[i]) for row in rows) for i in range(len(block.columns))]
    widths = [max(len(line[i]) for line in (block.columns, *kept)) for i in range(len(numeric))]
    for line in (block.columns, *kept):
        cells = zip(line, widths, numeric, strict=True)
        text = "  ".join(f"{c:>{w}}" if right else f"{c:<{w}}" for c, w, right in cells)
        yield f"  {text}".rstrip()
    if len(kept) < len(rows):
        yield f"  ... and {len(rows) - len(kept)} more in the report"


def _cell(value: Json, most: int | None) -> str:
    text = " ".join(amount(value).split())
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def _show_json(artifact: Artifact) -> Json:
    keys = ("node", "fingerprint", "output_digest", "rows", "bytes", "created", "seconds")
    row = {key: artifact.manifest.get(key) for key in keys}
    return row | {
        "path": artifact.path,
        "report": report_path(artifact),
        "counts": dict(artifact.manifest.get("counts") or {}),
        "figures": dict(artifact.figures),
    }


def _link(artifact: Artifact, path: str) -> str:
    return Path(path).absolute().as_uri() if artifact.is_local else artifact.files_at.shown(path)


def _what(made: NodePlan) -> str:
    return made.why if made.artifact is None else flow(made.artifact.manifest)


def _made(artifact: Artifact | None) -> tuple[str, str, str]:
    """When, how long, how large."""
    if artifact is None:
        return ("", "", "")
    manifest = artifact.manifest
    created = str(manifest.get("created", ""))[:16].replace("T", " ")
    seconds = manifest.get("seconds")
    took = duration(seconds) if isinstance(seconds, int | float) else ""
    return created, took, size(manifest.get("bytes") or 0)


def _warnings(plans: Sequence[NodePlan]) -> Iterator[str]:
    for made in plans:
        for text in made.warnings:
            yield f"warning: {made.node}: {text}"


def _json(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
