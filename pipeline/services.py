"""What the runner needs from outside: capacity, Ray, the terminal, tracking.

The runner itself touches none of Ray, MLflow and the terminal; it asks a `Services`. An all-cached
run calls neither `ensure_ray` nor `tracking.start_run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from pipeline.stage import Metrics, Node, Progress, Result

if TYPE_CHECKING:
    from pipeline.store import Artifact

RunState = Literal["done", "failed", "interrupted"]
"""How a whole run ended: exit code 0, 1 or 3."""

NodeEvent = Literal["cached", "waiting", "started", "made", "failed", "interrupted", "skipped"]
"""What happened to a node. `waiting`: another run makes it; `skipped`: an input failed."""


@dataclass(frozen=True)
class Capacity:
    """What this run may use at one time."""

    cpus: float
    gpus: float
    memory_bytes: int


class NodeRun(Protocol):
    """A node's own tracking run (a child of the run)."""

    @property
    def run_id(self) -> str | None:
        """The tracking id; None when tracking is off or away."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Handed to the stage as `Context.metrics`."""
        ...


class Tracking(Protocol):
    """Where runs are recorded. Called from driver threads and the runner's own; never raises."""

    def start_run(self, nodes: Sequence[Node]) -> None:
        """Open the parent run; called once, just before the first node that has to be made."""
        ...

    def node_started(
        self,
        node: Node,
        fingerprint: str,
        inputs: Mapping[str, Artifact],
        resumed_run_id: str | None,
    ) -> NodeRun:
        """Open the node's run, or continue `resumed_run_id`, the run of an unfinished attempt."""
        ...

    def node_finished(self, run: NodeRun, artifact: Artifact, result: Result) -> None:
        """The artifact is committed; `artifact.manifest` has the figures, counts and seconds."""
        ...

    def node_ended(self, run: NodeRun, state: Literal["failed", "interrupted"], text: str) -> None:
        """The node ended without an artifact; `text` is the message or the traceback."""
        ...

    def node_cached(self, node: Node, artifact: Artifact) -> None:
        """The node was not made: link it to the run that made it (`tracking_run_id`)."""
        ...

    def close(self, state: RunState) -> None:
        """Send what is buffered and end the parent run; harmless when no run was started."""
        ...


class Services(Protocol):
    """Everything that the runner does not do itself."""

    @property
    def tracking(self) -> Tracking:
        """Where runs are recorded; lazy: nothing is imported before `start_run`."""
        ...

    def capacity(self) -> Capacity:
        """What may be used at one time. First called when a node has to be made; may change."""
        ...

    def ensure_ray(self) -> None:
        """Start or join Ray unless that is done. One call at a time, from a driver thread.

        Raises `StageError` or `UserError` with one clear line when that is not possible.
        """
        ...

    def progress(self, node: str) -> Progress:
        """The live line of a node; the same object for the same name."""
        ...

    def event(self, node: str, event: NodeEvent, text: str, artifact: Artifact | None) -> None:
        """Tell the person what became of a node.

        `text` is one line: who is waited for, the failure's message, or empty. `artifact` is
        there for `cached` and `made`; its manifest has counts, figures and seconds.
        """
        ...
