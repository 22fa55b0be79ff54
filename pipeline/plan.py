"""What a run would do: for each node whether its result is there, and why not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.compare import ABSENT_TEXT, Difference, nearest
from pipeline.fingerprint import fingerprint, fingerprint_parts, source_hash
from pipeline.graph import Graph, Selection, needs
from pipeline.lease import live_holder
from pipeline.stage import Json, Node, RawInput, UserError
from pipeline.store import Artifact, Store

NodeState = Literal["cached", "run", "undecided", "running", "failed"]


@dataclass(frozen=True)
class NodePlan:
    """What would become of one node.

    Attributes:
        state: `cached`: the result is there. `run`: it has to be made. `undecided`: an input is
            yet to be made, so that nobody can say. `running`: a run makes it now. `failed`: as
            `run`; the last attempt failed.
        fingerprint: None while undecided.
        path: where its artifact is, or will be, inside the store's filesystem; None likewise.
        why: one line.
        warnings: e.g. that the code changed and VERSION did not.
        artifact: when it is there (also when it will be made anew because of `--force`).
    """

    node: str
    state: NodeState
    fingerprint: str | None
    path: str | None
    why: str
    warnings: tuple[str, ...] = ()
    artifact: Artifact | None = None

    def to_json(self) -> dict[str, Json]:
        """As `plan --json` prints it."""
        keys = ("node", "state", "fingerprint", "path", "why")
        return {key: getattr(self, key) for key in keys} | {"warnings": list(self.warnings)}


class Planner:
    """Decides nodes one by one, in topological order; lists external input once.

    Args:
        forced: nodes to be made anew even when they are there.
    """

    def __init__(self, graph: Graph, store: Store, forced: Collection[str] = ()) -> None:
        self.graph = graph
        self.store = store
        self.forced = forced
        self._raw: dict[str, RawInput | None] = {}

    def raw(self, node: Node) -> RawInput | None:
        """The listing of a node's external input, the same for the planner's whole life."""
        if node.name not in self._raw:
            self._raw[node.name] = node.raw() if node.raw is not None else None
        return self._raw[node.name]

    def parts(self, node: Node, digests: Mapping[str, str]) -> dict[str, Json]:
        """What is fingerprinted; `digests` are those of the inputs, by name of the node."""
        by_role = {role: digests[name] for role, name in node.inputs.items()}
        return fingerprint_parts(node, self.raw(node), by_role)

    def decide(self, node: Node, digests: Mapping[str, str]) -> NodePlan:
        """Decide one node from the output digests of those inputs that are there."""
        missing = [n for n in dict.fromkeys(node.inputs.values()) if n not in digests]
        if missing:
            # Listing also says early when external input is not there at all.
            self.raw(node)
            why = f"depends on {', '.join(missing)}, yet to be made"
            return NodePlan(node.name, "undecided", None, None, why)
        parts = self.parts(node, digests)
        key = fingerprint(parts)
        path = self.store.folder(node.name, key)
        artifact = self.store.find(node.name, key)
        if artifact is not None and node.name not in self.forced:
            return NodePlan(
                node.name, "cached", key, path, "unchanged", _warnings(node, artifact), artifact
            )
        state, why = self._why(node, key, parts, artifact)
        return NodePlan(node.name, state, key, path, why, artifact=artifact)

    def plan(self, names: Collection[str] | None = None) -> list[NodePlan]:
        """All nodes, or those named and what they need, in topological order."""
        wanted = self.graph.before(self.graph.names if names is None else names)
        digests: dict[str, str] = {}
        plans = []
        for node in self.graph:
            if node.name not in wanted:
                continue
            made = self.decide(node, digests)
            plans.append(made)
            # A forced data stage has to come to the same content, or fails.
            counts = made.state == "cached" or node.stage.deterministic
            if made.artifact is not None and counts:
                digests[node.name] = made.artifact.output_digest
        return plans

    def _why(
        self, node: Node, key: str, parts: Mapping[str, Json], artifact: Artifact | None
    ) -> tuple[NodeState, str]:
        holder = live_holder(self.store.files, self.store.folder(node.name, key))
        if holder is not None:
            return "running", f"being made by {holder.text}"
        if artifact is not None:
            return "run", "forced"
        failure = self.store.failure(node.name, key)
        if failure is not None:
            return "failed", str(failure["message"]).splitlines()[0]
        done = self.store.unfinished(node.name, key)
        if done:
            return "run", f"unfinished: {done} part{'s' if done > 1 else ''} made before"
        found = nearest(self.store.artifacts(node.name), parts)
        if found is None:
            return "run", "not made yet"
        return "run", summarise(found[1])


def plan(
    nodes: Sequence[Node] | Graph,
    store: Store,
    selection: Selection | None = None,
    force: bool = False,
) -> list[NodePlan]:
    """What a run would do to the selected nodes, in topological order.

    Raises:
        UserError: a selector that names nothing; external input that is not there; a node outside
            of the selection whose result is needed and missing.
    """
    graph = nodes if isinstance(nodes, Graph) else Graph(nodes)
    scope = graph.select(selection or Selection())
    plans = Planner(graph, store, scope if force else ()).plan(scope)
    check_selection(graph, plans, scope)
    return [p for p in plans if p.node in scope]


def check_selection(graph: Graph, plans: Sequence[NodePlan], scope: Collection[str]) -> None:
    """Raise UserError when a node in `scope` needs a result that is missing and may not be made."""
    states = {p.node: p for p in plans}
    for node in graph:
        if node.name not in scope or states[node.name].state == "cached":
            continue
        for name in needs(node):
            if name in scope or states[name].state == "cached":
                continue
            # It may turn out to be there once what it depends on has run.
            if states[name].state == "undecided" and graph.before([name]) & set(scope):
                continue
            state = {"running": "is being made by another run", "failed": "failed last time"}
            said = state.get(states[name].state, "is not made with this config")
            raise UserError(
                f"{node.name} needs {name}, which {said} and is not selected: run it first "
                f"(clozeline run --until {name}), or select it too"
            )


def summarise(differences: Sequence[Difference]) -> str:
    """One line for the first differences."""
    first = "; ".join(d.text for d in differences[:2])
    more = len(differences) - 2
    return first + (f"; and {more} more" if more > 0 else "") if differences else ABSENT_TEXT


def _warnings(node: Node, artifact: Artifact) -> tuple[str, ...]:
    if not node.stage.modules or artifact.manifest["source_hash"] == source_hash(
        node.stage.modules
    ):
        return ()
    return (
        f"the code of stage {node.stage.name} changed since this was made, and its VERSION is "
        f"still {node.stage.version}: raise it if results change (run --only {node.name} --force "
        "tells)",
    )
