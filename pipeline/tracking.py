"""MLflow: a parent run for each run that makes something, a child for each node it made.

Only the driver talks to MLflow, and only through an outbox (`pipeline.outbox`): a server that is
slow or away never stops the work. Cached nodes are linked to the run that made them.
"""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipeline.commands.text import flow
from pipeline.config import TrackingConfig
from pipeline.mlflow_names import (
    TAG_FINGERPRINT,
    TAG_NODE,
    TAG_STORE,
    numeric,
    parameters,
    resolve_uri,
    run_name,
    safe_name,
)
from pipeline.mlflow_ui import ui
from pipeline.mlflow_writer import (
    TAG_DRIVER,
    TAG_HEARTBEAT,
    MlflowWriter,
    import_mlflow,
    this_driver,
)
from pipeline.model_record import model_record
from pipeline.outbox import Outbox, Record, first_line
from pipeline.report import page
from pipeline.stage import Json, LoggedModel, Metrics, Node, Result

if TYPE_CHECKING:
    from pipeline.services import NodeRun, RunState
    from pipeline.store import Artifact

__all__ = ["MlflowTracking", "NoTracking", "ui"]

HEARTBEAT_SECONDS = 60.0
RUN_ID_SECONDS = 30.0


class NoMetrics:
    """Takes figures and drops them."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Do nothing."""


class NoNodeRun:
    """A node's run while tracking is off."""

    run_id: str | None = None
    metrics: Metrics = NoMetrics()


class NoTracking:
    """`pipeline.services.Tracking` that records nothing (`tracking.enabled=false`)."""

    def start_run(self, nodes: Sequence[Node]) -> None:
        """Do nothing."""

    def node_started(
        self,
        node: Node,
        fingerprint: str,
        inputs: Mapping[str, Artifact],
        resumed_run_id: str | None,
    ) -> NodeRun:
        """A run without an id."""
        return NoNodeRun()

    def node_finished(self, run: NodeRun, artifact: Artifact, result: Result) -> None:
        """Do nothing."""

    def node_ended(self, run: NodeRun, state: Literal["failed", "interrupted"], text: str) -> None:
        """Do nothing."""

    def node_cached(self, node: Node, artifact: Artifact) -> None:
        """Do nothing."""

    def close(self, state: RunState) -> None:
        """Do nothing."""


class BufferedMetrics:
    """`pipeline.stage.Metrics` of one node. Steps of a name only go up.

    A step at or below the last one of that name is dropped: after a restart from a checkpoint
    the steps since it are run a second time.
    """

    def __init__(self, put: Callable[[list[list[Json]]], None]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}

    @property
    def last_step(self) -> int:
        """The largest step logged; 0 before the first."""
        return max(self._last.values(), default=0)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Queue `values` at `step`."""
        now = int(time.time() * 1000)
        with self._lock:
            new = [name for name in values if step > self._last.get(name, -1)]
            self._last.update(dict.fromkeys(new, step))
        if new:
            self._put([[safe_name(name), float(values[name]), now, int(step)] for name in new])


class MlflowNodeRun:
    """A node's run in MLflow."""

    def __init__(self, key: str, node: Node, outbox: Outbox) -> None:
        self.key = key
        self.node = node
        self.buffer = BufferedMetrics(lambda points: outbox.put(Record("metrics", key, points)))
        self._outbox = outbox

    @property
    def run_id(self) -> str | None:
        """The id that MLflow gave; waits for it a little. None while the server is away."""
        return self._outbox.run_id(self.key, RUN_ID_SECONDS)

    @property
    def metrics(self) -> Metrics:
        """Figures over time."""
        return self.buffer


class MlflowTracking:
    """`pipeline.services.Tracking` on MLflow. Nothing is imported before `start_run`.

    Args:
        config: the `tracking` group.
        cwd: the folder that relative places are taken from.
        store: URI of the artifact store (a tag, for people).
        resolved: the whole resolved configuration.
        overrides: as typed; they name the run.
        texts: further artifacts of the parent run: path -> text (the graph as SVG and Mermaid).
        notice: prints one line for the user.

    Raises:
        UserError: the tracking URI makes no sense.
    """

    def __init__(
        self,
        config: TrackingConfig,
        cwd: Path,
        store: str,
        resolved: Mapping[str, Json],
        overrides: Sequence[str],
        texts: Mapping[str, str],
        notice: Callable[[str], None],
    ) -> None:
        self._config = config
        self._uri, self._artifact_location = resolve_uri(config, cwd)
        self._folder = (cwd / "runs" / "tracking-outbox").resolve()
        self._store = store
        self._resolved = resolved
        self._overrides = tuple(overrides)
        self._texts = dict(texts)
        self._notice = notice
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        self._parent = uuid.uuid4().hex
        self._links: list[list[str | None]] = []
        self._ends: frozenset[str] = frozenset()
        self._next_beat = 0.0

    def start_run(self, nodes: Sequence[Node]) -> None:
        """Open the parent run: parameters, the whole configuration, the graph."""
        read = {name for node in nodes for name in (*node.inputs.values(), *node.watches.values())}
        with self._lock:
            if self._outbox is not None:
                return
            self._ends = frozenset(node.name for node in nodes) - read
            # Here, and not in the outbox's thread: two threads that import overlapping packages
            # at once can see half-made modules.
            try:
                import_mlflow()
            except Exception as error:
                self._notice(f"tracking: MLflow cannot be loaded, nothing is recorded: {error}")
                return
            writer = MlflowWriter(
                self._uri, self._config.experiment, self._artifact_location, self._notice
            )
            target = f"{self._uri} {self._config.experiment}"
            self._next_beat = time.monotonic() + HEARTBEAT_SECONDS
            self._outbox = Outbox(writer, self._folder, target, self._notice, self._beat)
        command = "clozeline run " + " ".join(self._overrides)
        tags = {
            **self._common_tags(),
            "mlflow.source.name": command.strip(),
            "mlflow.source.type": "LOCAL",
            "clozeline.nodes": ", ".join(node.name for node in nodes),
            **_commit(),
        }
        self._open(self._parent, run_name(self._config, self._overrides), tags, None, None)
        self._put("params", self._parent, parameters(self._resolved))
        self._text(self._parent, "config.json", json.dumps(self._resolved, indent=2))
        for path, text in self._texts.items():
            self._text(self._parent, path, text)
        if self._links:
            self._put("links", self._parent, list(self._links))

    def node_started(
        self,
        node: Node,
        fingerprint: str,
        inputs: Mapping[str, Artifact],
        resumed_run_id: str | None,
    ) -> NodeRun:
        """Open the node's run below the parent, or continue the run of an unfinished attempt."""
        if self._outbox is None:
            self.start_run([node])
        if self._outbox is None:
            return NoNodeRun()
        run = MlflowNodeRun(uuid.uuid4().hex, node, self._outbox)
        tags = {
            **self._common_tags(),
            TAG_NODE: node.name,
            TAG_FINGERPRINT: fingerprint,
            "mlflow.source.name": node.stage.run,
            "mlflow.source.type": "LOCAL",
        }
        datasets: list[dict[str, str]] = []
        reads: list[list[str | None]] = []
        for role, artifact in inputs.items():
            manifest = artifact.manifest
            name = str(manifest.get("node", role))
            datasets.append(
                {
                    "name": name,
                    "digest": str(manifest.get("output_digest", "")),
                    "source": artifact.path,
                    "role": role,
                }
            )
            made_by = manifest.get("tracking_run_id")
            reads.append([name, made_by])
            if made_by:
                tags[f"input.{role}"] = str(made_by)
        self._open(run.key, node.name, tags, self._parent, resumed_run_id)
        self._put("params", run.key, parameters({**node.config, **node.settings}))
        if datasets:
            self._put("inputs", run.key, datasets)
            self._put("reads", run.key, reads)
        return run

    def node_finished(self, run: NodeRun, artifact: Artifact, result: Result) -> None:
        """Send figures, manifest, report and samples, and end the node's run."""
        if not isinstance(run, MlflowNodeRun):
            return
        manifest = artifact.manifest
        counts = {f"counts/{name}": count for name, count in result.counts.items()}
        now = int(time.time() * 1000)
        figures = numeric({**counts, **result.figures})
        if isinstance(manifest.get("seconds"), int | float):
            figures.setdefault("seconds", float(manifest["seconds"]))
        last = run.buffer.last_step
        # A figure may have the name of a curve: it becomes the curve's last point.
        points = [[safe_name(name), value, now, last] for name, value in figures.items()]
        if points:
            self._put("metrics", run.key, points)
        words = {k: str(v) for k, v in result.figures.items() if isinstance(v, str) and v}
        if words:
            self._put("tags", run.key, {safe_name(f"figure.{k}"): v for k, v in words.items()})
        whole = json.dumps(dict(manifest), indent=2, ensure_ascii=False)
        self._text(run.key, "manifest.json", whole)
        try:
            self._text(run.key, "report.html", page(run.node, manifest, result))
        except Exception as error:
            # The artifact is finished; a fault in its report must not undo that.
            self._notice(f"{run.node.name}: no report: {first_line(error)}")
        if result.samples:
            self._text(run.key, "samples.txt", "\n\n".join(result.samples) + "\n")
        self._end(run.key, "FINISHED")
        self._link(run.node.name, "made", run.key, flow(manifest))
        self._result(run.node.name, result.figures)
        if result.model is not None:
            self._model(run, artifact, result.model)

    def node_ended(self, run: NodeRun, state: Literal["failed", "interrupted"], text: str) -> None:
        """End the node's run as FAILED or KILLED, with the message or traceback as an artifact."""
        if not isinstance(run, MlflowNodeRun):
            return
        if text:
            self._text(run.key, "error.txt", text)
        self._end(run.key, "FAILED" if state == "failed" else "KILLED")
        self._link(run.node.name, state, run.key)

    def node_cached(self, node: Node, artifact: Artifact) -> None:
        """Remember which run made the node; the parent run gets the link."""
        made_by = artifact.manifest.get("tracking_run_id")
        link = str(made_by) if made_by else None
        self._link(node.name, "cached", link, flow(artifact.manifest))
        self._result(node.name, artifact.manifest.get("figures") or {})

    def close(self, state: RunState) -> None:
        """End the parent run and send what is left."""
        with self._lock:
            outbox, self._outbox = self._outbox, None
        if outbox is None:
            return
        status = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}[state]
        end = {"status": status, "end_ms": int(time.time() * 1000)}
        outbox.put(Record("close", self._parent, end))
        outbox.close()

    def _common_tags(self) -> dict[str, str]:
        return {
            TAG_DRIVER: this_driver(),
            TAG_HEARTBEAT: f"{time.time():.0f}",
            TAG_STORE: self._store,
            "clozeline.host": socket.gethostname(),
            "mlflow.user": _user(),
        }

    def _model(self, run: MlflowNodeRun, artifact: Artifact, model: LoggedModel) -> None:
        """Have a model logged and registered; after all else, as it uploads the weights."""
        try:
            record = model_record(model, artifact, self._store, self._resolved)
        except Exception as error:
            # The artifact is finished, as with the report.
            self._notice(f"{artifact.node}: its model is not logged: {first_line(error)}")
            return
        self._put("model", run.key, record)

    def _open(
        self,
        key: str,
        name: str | None,
        tags: dict[str, str],
        parent: str | None,
        resume: str | None,
    ) -> None:
        payload = {
            "name": name,
            "tags": tags,
            "start_ms": int(time.time() * 1000),
            "parent": parent,
            "resume": resume,
        }
        self._put("open", key, payload, urgent=True)

    def _result(self, node: str, figures: Mapping[str, Json]) -> None:
        """Give the parent the figures of a node that nothing reads: what runs are compared by."""
        if node not in self._ends:
            return
        now = int(time.time() * 1000)
        found = numeric(figures).items()
        points = [[safe_name(f"{node}/{name}"), value, now, 0] for name, value in found]
        if points:
            self._put("metrics", self._parent, points)

    def _link(self, node: str, state: str, run: str | None, text: str = "") -> None:
        with self._lock:
            self._links.append([node, state, run, text])
            links = list(self._links)
        # All of them each time: a driver that is killed leaves what was known by then.
        self._put("links", self._parent, links)

    def _end(self, key: str, status: str) -> None:
        self._put("close", key, {"status": status, "end_ms": int(time.time() * 1000)})

    def _text(self, key: str, path: str, text: str) -> None:
        self._put("text", key, {"path": path, "text": text})

    def _put(self, kind: str, key: str, payload: Json, urgent: bool = False) -> None:
        outbox = self._outbox
        if outbox is not None:
            outbox.put(Record(kind, key, payload), urgent)

    def _beat(self) -> None:
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + HEARTBEAT_SECONDS
            self._put("tags", self._parent, {TAG_HEARTBEAT: f"{time.time():.0f}"})


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _commit() -> dict[str, str]:
    """The git commit of the code that runs, when it is a checkout."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return {}
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"mlflow.source.git.commit": found.stdout.strip()}
