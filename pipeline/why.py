"""Why a node has to run: what differs from the nearest result that is there, back to the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.compare import Difference, differences, nearest, parts_of
from pipeline.graph import Graph
from pipeline.plan import NodePlan, Planner
from pipeline.stage import Json, Node
from pipeline.store import Artifact, Store


@dataclass(frozen=True)
class Explanation:
    """The answer to `why NODE`.

    Attributes:
        plan: the node's state.
        against: the artifact that it is compared with; None when there is none at all.
        differences: empty when the node is cached.
    """

    plan: NodePlan
    against: Artifact | None
    differences: tuple[Difference, ...]

    def lines(self) -> list[str]:
        """For a terminal."""
        found = [f"{self.plan.node}: {self.plan.state} ({self.plan.why})"]
        found += [f"  warning: {text}" for text in self.plan.warnings]
        if self.against is not None and self.differences:
            made = str(self.against.manifest.get("created", ""))[:16].replace("T", " ")
            found.append(f"  compared with {self.against.fingerprint[:12]}, made {made} UTC:")
            found += _lines(self.differences, "    ", set())
        return found

    def to_json(self) -> dict[str, Json]:
        """As `why --json` prints it."""
        return self.plan.to_json() | {
            "against": None if self.against is None else self.against.path,
            "differences": [d.to_json() for d in self.differences],
        }


def explain(nodes: Sequence[Node] | Graph, store: Store, name: str) -> Explanation:
    """Compare a node with its nearest existing artifact, and its inputs with what that one read.

    Raises UserError when the external input is not there.
    """
    graph = nodes if isinstance(nodes, Graph) else Graph(nodes)
    return _Explainer(Planner(graph, store)).explain(name)


class _Explainer:
    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._plans = {p.node: p for p in planner.plan()}

    def explain(self, name: str) -> Explanation:
        plan = self._plans[name]
        if plan.state == "cached":
            return Explanation(plan, plan.artifact, ())
        parts = self._parts(name)
        found = nearest(self._planner.store.artifacts(name), parts)
        if found is None:
            return Explanation(plan, None, ())
        return Explanation(plan, found[0], tuple(self._with_causes(name, *found)))

    def _parts(self, name: str) -> dict[str, Json]:
        """As `Planner.parts`, with None for inputs that are yet to be made."""
        node = self._planner.graph[name]
        known = {n: self._digest(n) for n in node.inputs.values()}
        parts = self._planner.parts(node, {n: d or "" for n, d in known.items()})
        return parts | {"inputs": {role: known[n] for role, n in node.inputs.items()}}

    def _digest(self, name: str) -> str | None:
        artifact = self._plans[name].artifact
        return None if artifact is None else artifact.output_digest

    def _with_causes(
        self, name: str, artifact: Artifact, found: Sequence[Difference]
    ) -> list[Difference]:
        inputs = self._planner.graph[name].inputs
        return [self._with_cause(artifact.manifest["inputs"], inputs, d) for d in found]

    def _with_cause(
        self, read: Mapping[str, Json], inputs: Mapping[str, str], difference: Difference
    ) -> Difference:
        role = difference.path.removeprefix("input ")
        if not difference.path.startswith("input ") or role not in inputs:
            return difference
        upstream = inputs[role]
        named = replace(difference, path=f"input {role} ({upstream})")
        if difference.new is None:
            named = replace(named, new="yet to be made")
        if role not in read:
            return named
        before = self._planner.store.find(upstream, read[role]["fingerprint"])
        if before is None:
            return named
        found = differences(parts_of(before), self._parts(upstream))
        return replace(named, because=tuple(self._with_causes(upstream, before, found)))


def _lines(found: Sequence[Difference], indent: str, told: set[str]) -> list[str]:
    """An input that is reached by several ways is explained once; `told` are those that were."""
    lines = []
    for difference in found:
        text = replace(difference, because=()).text
        if difference.because and text in told:
            lines.append(f"{indent}{text}, as said above")
        elif difference.because:
            told.add(text)
            lines.append(f"{indent}{text}, because")
            lines += _lines(difference.because, indent + "  ", told)
        else:
            lines.append(indent + text)
    return lines
