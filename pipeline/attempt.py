"""One attempt at making one node, in a driver thread: prepare, call the stage, commit."""

from __future__ import annotations

import errno
import importlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pipeline.fingerprint import source_hash, versions
from pipeline.lease import Lease
from pipeline.results import check_counts, result_to_json
from pipeline.services import NodeRun, Services
from pipeline.stage import (
    Context,
    Granted,
    Interrupted,
    Json,
    Node,
    RawInput,
    Result,
    StageError,
    Stop,
    UserError,
)
from pipeline.store import Artifact, Store
from pipeline.writer import ArtifactWriter, NotDeterministicError, SupersededError

OutcomeState = Literal["cached", "made", "failed", "interrupted", "not_run"]


@dataclass(frozen=True)
class NodeOutcome:
    """What became of a node. `artifact` is there when it was cached or made."""

    node: str
    state: OutcomeState
    fingerprint: str | None = None
    artifact: Artifact | None = None
    seconds: float = 0.0
    message: str = ""


class Ledger:
    """Tracking and Ray, started only once a node has to be made. Thread-safe."""

    def __init__(self, services: Services, nodes: Sequence[Node]) -> None:
        self._services = services
        self._nodes = nodes
        self._lock = threading.Lock()
        self._ray_lock = threading.Lock()
        self._open = False
        self._cached: list[tuple[Node, Artifact]] = []

    def cached(self, node: Node, artifact: Artifact) -> None:
        """Link a cached node, once there is a run to link it to."""
        with self._lock:
            if self._open:
                self._services.tracking.node_cached(node, artifact)
            else:
                self._cached.append((node, artifact))

    def open(self) -> None:
        """Open the parent run unless it is open."""
        with self._lock:
            if not self._open:
                self._services.tracking.start_run(self._nodes)
                self._open = True
                for node, artifact in self._cached:
                    self._services.tracking.node_cached(node, artifact)

    def ensure_ray(self) -> None:
        """Start Ray unless it runs."""
        with self._ray_lock:
            self._services.ensure_ray()


# Ray, MLflow and torch import half of each other: two threads that do it at once can see a module
# that is not whole.
_HEAVY_IMPORTS = threading.Lock()


@dataclass
class Attempt:
    """A node that is being made; `lease` is held by the caller until `make` returns.

    Attributes:
        old: the artifact that a forced node has already.
        inputs: role -> artifact, watches included.
    """

    name: str
    node: Node
    fingerprint: str
    why: str
    inputs: Mapping[str, Artifact]
    raw: RawInput | None
    granted: Granted
    lease: Lease
    forced: bool
    old: Artifact | None
    store: Store
    services: Services
    ledger: Ledger
    stop: Stop
    _run: NodeRun | None = None
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def make(self) -> NodeOutcome:
        """Never raises. A failure leaves its record in the store."""
        began = time.monotonic()
        try:
            artifact = self._make(began)
            return self._outcome("made", began, artifact=artifact)
        except BaseException as error:
            # Ray and MLflow raise many things when they are shut down under a stage.
            if isinstance(error, Interrupted) or self.stop.is_set():
                self.close("interrupted", _headline(error))
                return self._outcome("interrupted", began, message="interrupted; it can be resumed")
            message = self._failed(error)
            return self._outcome("failed", began, message=message)

    def close(self, state: Literal["failed", "interrupted"], text: str) -> None:
        """End the tracking run of an attempt without an artifact, once."""
        with self._lock:
            run, first, self._closed = self._run, not self._closed, True
        if first and run is not None:
            self.services.tracking.node_ended(run, state, text)

    def _make(self, began: float) -> Artifact:
        node, stage = self.node, self.node.stage
        source = source_hash(stage.modules)
        writer = self.store.begin(
            node.name,
            self.fingerprint,
            self.name,
            source_hash=source,
            same_source=stage.deterministic,
            force=self.forced,
        )
        self.services.event(node.name, "started", self.why, None)
        self.ledger.open()
        with _HEAVY_IMPORTS:
            function = _load(stage.run)
            if stage.needs_ray:
                self.ledger.ensure_ray()
        self.stop.check()
        run = self.services.tracking.node_started(
            node, self.fingerprint, self.inputs, writer.resumed_run_id
        )
        self._run = run
        writer.note_run(run.run_id)
        result = function(self._context(writer, run))
        check_counts(node.name, result.counts)
        artifact = self._commit(writer, result, source, run.run_id, began)
        with self._lock:
            self._closed = True
        self.services.tracking.node_finished(run, artifact, result)
        return artifact

    def _context(self, writer: ArtifactWriter, run: NodeRun) -> Context:
        return Context(
            node=self.node,
            inputs=self.inputs,
            output=writer,
            fingerprint=self.fingerprint,
            attempt=self.name,
            granted=self.granted,
            progress=self.services.progress(self.node.name),
            metrics=run.metrics,
            stop=self.stop,
            raw=self.raw,
        )

    def _commit(
        self, writer: ArtifactWriter, result: Result, source: str, run_id: str | None, began: float
    ) -> Artifact:
        node, stage = self.node, self.node.stage
        if self.lease.lost:
            raise SupersededError(f"{node.name}: another run took over; this one leaves it alone")
        read = {
            role: {"node": a.node, "fingerprint": a.fingerprint, "output_digest": a.output_digest}
            for role, a in self.inputs.items()
        }
        body: dict[str, Json] = {
            "stage": stage.name,
            "stage_version": stage.version,
            "config": node.config,
            "settings": node.settings,
            "inputs": {role: row for role, row in read.items() if role in node.inputs},
            "watches": {role: row for role, row in read.items() if role in node.watches},
            "versions": {
                "fingerprinted": versions(stage.libraries),
                "recorded": versions(stage.recorded),
            },
            "source_hash": source,
            "figures": dict(result.figures),
            "counts": dict(result.counts),
            "unit": result.unit,
            "flow": result.flow,
            "tracking_run_id": run_id,
            "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - began, 3),
        }
        old = self.old if stage.deterministic else None
        try:
            return writer.commit(
                body,
                raw=None if self.raw is None else list(self.raw.entries),
                report=result_to_json(result),
                expect=None if old is None else old.output_digest,
            )
        except NotDeterministicError as error:
            if old is None or old.manifest["source_hash"] == source:
                raise
            raise StageError(
                f"{error}. Its code changed since the old result was made: if that is why, raise "
                f"VERSION of stage {stage.name} (it is {stage.version})"
            ) from None

    def _failed(self, error: BaseException) -> str:
        spoken = isinstance(error, StageError | UserError)
        message = str(error) if spoken else _headline(error)
        trace = "" if spoken else "".join(traceback.format_exception(error))
        message += self._cause(f"{message}\n{trace}")
        self.close("failed", trace or message)
        if isinstance(error, SupersededError):
            return message
        record: dict[str, Json] = {"message": message, "traceback": trace, "attempt": self.name}
        try:
            path = self.store.record_failure(self.node.name, self.fingerprint, record)
        except OSError as problem:
            return f"{message} (and no record of it could be kept: {problem})"
        return message if spoken else f"{message} (traceback in {path})"

    def _cause(self, said: str) -> str:
        """What may lie behind a failure and is outside of the stage: a full disk, damaged input."""
        if os.strerror(errno.ENOSPC) in said:
            return (
                f"; the disk of the store {self.store.location} or of the temporary folder is "
                "full: make room and run again, what was made stays"
            )
        for artifact in self.inputs.values():
            try:
                wrong = artifact.damage(lambda name: name in said)
            except OSError as problem:
                wrong = {"files": str(problem)}
            if wrong:
                files = ", ".join(f"{name} ({what})" for name, what in sorted(wrong.items())[:3])
                return (
                    f"; its input {artifact.node} is damaged: {files} in "
                    f"{artifact.data}. To make it anew: clozeline run --only {artifact.node} "
                    "--force, with the same overrides"
                )
        return ""

    def _outcome(
        self,
        state: OutcomeState,
        began: float,
        artifact: Artifact | None = None,
        message: str = "",
    ) -> NodeOutcome:
        seconds = time.monotonic() - began
        return NodeOutcome(self.node.name, state, self.fingerprint, artifact, seconds, message)


def _load(reference: str) -> Callable[[Context], Result]:
    module, _, function = reference.partition(":")
    loaded: Callable[[Context], Result] = getattr(importlib.import_module(module), function)
    return loaded


def _headline(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Exceptions of Ray tasks end with the one that a person looks for.
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
