"""Nodes as a checked graph: order, neighbours, selection."""

from __future__ import annotations

import difflib
import graphlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.stage import Node, UserError


@dataclass(frozen=True)
class Selection:
    """What may run. Each is a list of selectors: a node ("mask/128") or a stage ("mask").

    Attributes:
        only: these and nothing else.
        start: these and what comes after them (`--from`).
        until: these and what they need.
    """

    only: Sequence[str] = ()
    start: Sequence[str] = ()
    until: Sequence[str] = ()

    @property
    def text(self) -> str:
        """As it was asked for on the command line."""
        words = (("--only", self.only), ("--from", self.start), ("--until", self.until))
        return " ".join(f"{option} {name}" for option, names in words for name in names)


class Graph:
    """A directed graph of nodes without cycles.

    Iterating gives the nodes in topological order; where that leaves a choice, in the order in
    which they were given. Raises ValueError when two nodes share a name, an input is no node, or
    the nodes form a cycle: a mistake in a catalogue, not of a user.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        given = {node.name: node for node in nodes}
        if len(given) != len(nodes):
            raise ValueError("two nodes share a name")
        for node in nodes:
            if both := node.inputs.keys() & node.watches.keys():
                raise ValueError(f"{node.name} has two inputs called {both.pop()}")
            for role, name in (*node.inputs.items(), *node.watches.items()):
                if name not in given:
                    raise ValueError(f"input {role} of {node.name} is {name}, which is no node")
        self._nodes = {name: given[name] for name in _order(nodes)}
        self._after: dict[str, list[str]] = {name: [] for name in self._nodes}
        for node in self:
            for name in needs(node):
                self._after[name].append(node.name)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def names(self) -> list[str]:
        """In topological order."""
        return list(self._nodes)

    def before(self, names: Iterable[str]) -> set[str]:
        """The nodes themselves and all that they need, however far back."""
        return self._reach(names, lambda name: needs(self._nodes[name]))

    def after(self, names: Iterable[str]) -> set[str]:
        """The nodes themselves and all that need them, however far on."""
        return self._reach(names, lambda name: self._after[name])

    def match(self, selector: str) -> list[str]:
        """The nodes of a selector. Raises UserError, with the nearest names, when there is none."""
        found = [n.name for n in self if selector in (n.name, n.stage.name)]
        if found:
            return found
        known = list(dict.fromkeys(x for n in self for x in (n.name, n.stage.name)))
        alike = difflib.get_close_matches(selector, known, n=2)
        hint = f" Perhaps you meant {' or '.join(alike)}." if alike else ""
        raise UserError(f"{selector!r} is no node or stage.{hint} Nodes: {', '.join(self.names)}.")

    def select(self, selection: Selection) -> list[str]:
        """The nodes that may run, in order. Raises UserError for one that selects nothing."""
        if selection.only and (selection.start or selection.until):
            raise UserError("--only cannot go together with --from or --until")
        chosen = set(self._nodes)
        if selection.only:
            chosen = {n for s in selection.only for n in self.match(s)}
        if selection.start:
            chosen &= self.after(n for s in selection.start for n in self.match(s))
        if selection.until:
            chosen &= self.before(n for s in selection.until for n in self.match(s))
        if not chosen:
            raise UserError(f"{selection.text} selects no node: the one ends before the other")
        return [name for name in self._nodes if name in chosen]

    def _reach(self, names: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(step(name))
        return found


def needs(node: Node) -> list[str]:
    """The nodes that have to be there before this one is made: inputs, then watches."""
    return list(dict.fromkeys((*node.inputs.values(), *node.watches.values())))


def _order(nodes: Sequence[Node]) -> list[str]:
    position = {node.name: i for i, node in enumerate(nodes)}
    sorter = graphlib.TopologicalSorter({n.name: needs(n) for n in nodes})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"the nodes form a cycle: {' -> '.join(error.args[1])}") from None
    ready = [(position[name], name) for name in sorter.get_ready()]
    heapq.heapify(ready)
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        sorter.done(name)
        for freed in sorter.get_ready():
            heapq.heappush(ready, (position[freed], freed))
    return order
