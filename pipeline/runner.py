"""Runs a plan: which node when, with how much, and what becomes of the others when one fails.

Nodes are decided one by one, after their inputs are there, so that a rerun that came to the same
content stops there. Each node that has to be made runs in a driver thread of its own, once what
it declares is free and its lease is got; when another run holds the lease, it is waited for.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.attempt import Attempt, Ledger, NodeOutcome
from pipeline.graph import Graph, Selection
from pipeline.lease import Lease
from pipeline.plan import NodePlan, Planner, check_selection
from pipeline.resources import free, missing, resolved, shares, that_fit
from pipeline.services import NodeEvent, RunState, Services
from pipeline.stage import Granted, Json, Node
from pipeline.stop import StopSignal
from pipeline.store import Store

__all__ = ["NodeOutcome", "RunOutcome", "StopSignal", "run"]

GRACE_SECONDS = 30.0
"""What running nodes have to end in once the run is asked to stop: training writes a checkpoint."""

TICK_SECONDS = 0.2
REMOTE_TICK_SECONDS = 2.0
"""Between two looks at a lease that another run holds, on object stores."""

EXIT_CODES: dict[RunState, int] = {"done": 0, "failed": 1, "interrupted": 3}


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended; `nodes` are those of the selection, in topological order."""

    state: RunState
    nodes: tuple[NodeOutcome, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return EXIT_CODES[self.state]

    @property
    def figures(self) -> dict[str, dict[str, Json]]:
        """By node name, for `Catalog.summary`; `path`: where the node's files lie now."""
        found = ((n.node, n.artifact) for n in self.nodes if n.artifact is not None)
        return {
            node: {**artifact.figures, "path": artifact.files_at.shown(artifact.data)}
            for node, artifact in found
        }


def run(
    nodes: Sequence[Node] | Graph,
    store: Store,
    services: Services,
    *,
    selection: Selection | None = None,
    force: bool = False,
    stop: StopSignal | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> RunOutcome:
    """Make what is missing.

    Raises:
        UserError: as `plan`, or of `Node.check`; nothing was started or written then.
    """
    graph = nodes if isinstance(nodes, Graph) else Graph(nodes)
    scope = graph.select(selection or Selection())
    planner = Planner(graph, store, scope if force else ())
    plans = planner.plan(scope)
    check_selection(graph, plans, scope)
    to_make = {p.node for p in plans if p.state != "cached"} & set(scope)
    for node in graph:
        if node.check is not None and node.name in to_make:
            node.check()
    return _Run(planner, services, scope, stop or StopSignal(), grace_seconds).execute()


class _Run:
    def __init__(
        self,
        planner: Planner,
        services: Services,
        scope: Sequence[str],
        stop: StopSignal,
        grace_seconds: float,
    ) -> None:
        self._planner = planner
        self._store = planner.store
        self._services = services
        self._scope = scope
        self._stop = stop
        self._grace = grace_seconds
        wanted = planner.graph.before(scope)
        self._nodes = {n.name: n for n in planner.graph if n.name in wanted}
        self._settled: dict[str, NodeOutcome] = {}
        self._running: dict[str, Attempt] = {}
        self._plans: dict[str, NodePlan] = {}
        self._leases: dict[str, tuple[Lease, str]] = {}
        self._next_look: dict[str, float] = {}
        self._ended: queue.SimpleQueue[NodeOutcome] = queue.SimpleQueue()
        self._ledger = Ledger(services, [self._nodes[name] for name in scope])

    def execute(self) -> RunOutcome:
        state: RunState = "failed"
        try:
            self._loop()
            state = self._state()
        finally:
            for name, (lease, _) in self._leases.items():
                if name not in self._running:
                    lease.release()
            self._services.tracking.close(state)
        nodes = (self._settled.get(n) or NodeOutcome(n, "not_run") for n in self._scope)
        return RunOutcome(state, tuple(nodes))

    def _loop(self) -> None:
        asked_at: float | None = None
        while True:
            if not self._stop.is_set():
                self._advance()
            elif asked_at is None:
                asked_at = time.monotonic()
            if not self._running and (asked_at is not None or self._is_complete()):
                return
            if asked_at is not None and (
                self._stop.is_urgent() or time.monotonic() - asked_at > self._grace
            ):
                self._abandon()
                return
            self._collect()

    def _state(self) -> RunState:
        states = {self._settled[n].state if n in self._settled else "not_run" for n in self._scope}
        if "failed" in states:
            return "failed"
        return "done" if states <= {"cached", "made"} else "interrupted"

    def _is_complete(self) -> bool:
        return len(self._settled) == len(self._nodes)

    def _collect(self) -> None:
        """Wait a moment for running nodes to end."""
        timeout = TICK_SECONDS
        while True:
            try:
                outcome = self._ended.get(timeout=timeout)
            except queue.Empty:
                return
            self._running.pop(outcome.node).lease.release()
            state = outcome.state
            assert state in ("made", "failed", "interrupted")
            self._settle(outcome, state)
            timeout = 0.0

    def _settle(self, outcome: NodeOutcome, event: NodeEvent) -> None:
        self._settled[outcome.node] = outcome
        if outcome.node in self._scope:
            text = outcome.message
            self._services.event(outcome.node, event, text, outcome.artifact)
            if outcome.state == "cached" and outcome.artifact is not None:
                self._ledger.cached(self._nodes[outcome.node], outcome.artifact)

    def _advance(self) -> None:
        """Settle what can be settled, start what can be started."""
        ready = [node for node in self._nodes.values() if self._is_ready(node)]
        ready = [node for node in ready if time.monotonic() >= self._next_look.get(node.name, 0)]
        if not ready:
            return
        whole = self._services.capacity()
        startable = []
        for node in ready:
            lack = missing(resolved(node.resources, whole), whole)
            if lack is None:
                startable.append(node)
            else:
                message = f"{node.name} {lack}: lower what it asks for, or give the run more"
                self._settle(NodeOutcome(node.name, "failed", message=message), "failed")
        taken = [(a.granted, a.node.resources.memory_bytes) for a in self._running.values()]
        left = free(whole, taken)
        needs = {n.name: resolved(n.resources, whole) for n in startable}
        fitting = [startable[i] for i in that_fit([needs[n.name] for n in startable], left)]
        chosen = [node for node in fitting if self._has_lease(node)]
        granted = shares([needs[n.name] for n in chosen], left)
        for node, grant in zip(chosen, granted, strict=True):
            self._start(node, grant)

    def _is_ready(self, node: Node) -> bool:
        """Whether a node has to be made now; settles those that need not or cannot be."""
        name = node.name
        if name in self._settled or name in self._running:
            return False
        if any(n not in self._settled for n in node.inputs.values()):
            return False
        if self._has_lost(node, node.inputs.values()):
            return False
        if name not in self._plans:
            self._plans[name] = self._planner.decide(node, self._digests())
        plan = self._plans[name]
        if plan.state == "cached":
            text = "; ".join(plan.warnings)
            outcome = NodeOutcome(name, "cached", plan.fingerprint, plan.artifact, message=text)
            self._settle(outcome, "cached")
            return False
        if name not in self._scope:
            self._settle(NodeOutcome(name, "not_run"), "skipped")
            return False
        if any(n not in self._settled for n in node.watches.values()):
            return False
        return not self._has_lost(node, node.watches.values())

    def _has_lost(self, node: Node, needed: Iterable[str]) -> bool:
        """Whether a node cannot be made, since one that it needs is not there; settles it then."""
        lost = [self._settled[n] for n in needed if self._settled[n].artifact is None]
        if not lost:
            return False
        cause = lost[0]
        if node.name in self._scope and cause.node not in self._scope:
            message = f"{node.name} needs {cause.node}, which has to be made, but is not selected"
            self._settle(NodeOutcome(node.name, "failed", message=message), "failed")
        else:
            how = "failed" if cause.state == "failed" else "is not there"
            message = f"not run: {cause.node} {how}"
            self._settle(NodeOutcome(node.name, "not_run", message=message), "skipped")
        return True

    def _digests(self) -> dict[str, str]:
        found = ((name, outcome.artifact) for name, outcome in self._settled.items())
        return {name: artifact.output_digest for name, artifact in found if artifact is not None}

    def _has_lease(self, node: Node) -> bool:
        """Get the lease, and settle the node when another run has made it meanwhile."""
        name, plan = node.name, self._plans[node.name]
        assert plan.fingerprint is not None and plan.path is not None
        first = name not in self._leases
        if first:
            attempt = secrets.token_hex(6)
            self._leases[name] = (Lease(self._store.files, plan.path, attempt), attempt)
        lease = self._leases[name][0]
        holder = lease.try_acquire()
        if holder is not None:
            if first:
                self._services.event(name, "waiting", f"{holder.text} makes it", None)
            tick = TICK_SECONDS if self._store.files.local else REMOTE_TICK_SECONDS
            self._next_look[name] = time.monotonic() + tick
            return False
        artifact = self._store.find(name, plan.fingerprint)
        if artifact is not None and name not in self._planner.forced:
            lease.release()
            self._settle(NodeOutcome(name, "cached", plan.fingerprint, artifact), "cached")
            return False
        return True

    def _start(self, node: Node, granted: Granted) -> None:
        plan = self._plans[node.name]
        lease, name = self._leases[node.name]
        assert plan.fingerprint is not None
        inputs = {}
        for role, upstream in (*node.inputs.items(), *node.watches.items()):
            artifact = self._settled[upstream].artifact
            assert artifact is not None
            inputs[role] = artifact
        attempt = Attempt(
            name=name,
            node=node,
            fingerprint=plan.fingerprint,
            why=plan.why,
            inputs=inputs,
            raw=self._planner.raw(node),
            granted=granted,
            lease=lease,
            forced=node.name in self._planner.forced,
            old=self._store.find(node.name, plan.fingerprint),
            store=self._store,
            services=self._services,
            ledger=self._ledger,
            stop=self._stop,
        )
        self._running[node.name] = attempt
        # A daemon: a node that does not end in time must not keep the process from ending.
        threading.Thread(
            target=lambda: self._ended.put(attempt.make()), name=node.name, daemon=True
        ).start()

    def _abandon(self) -> None:
        """Leave nodes behind that did not end in time; their leases die with the process."""
        for name, attempt in self._running.items():
            attempt.close("interrupted", "did not end in time")
            message = "did not end in time; it can be resumed"
            outcome = NodeOutcome(name, "interrupted", attempt.fingerprint, message=message)
            self._settle(outcome, "interrupted")
