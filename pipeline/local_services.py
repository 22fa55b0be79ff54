"""`pipeline.services.Services` as it is in real runs: Ray, the terminal and MLflow."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pipeline.cluster import Cluster
from pipeline.commands.text import counts_text, duration
from pipeline.config import RunConfig
from pipeline.progress import Board
from pipeline.services import Capacity, NodeEvent, Tracking
from pipeline.stage import Json, Progress
from pipeline.tracking import MlflowTracking, NoTracking

if TYPE_CHECKING:
    from pipeline.store import Artifact


class LocalServices:
    """What the runner needs from outside, tied together for one run.

    Args:
        config: the validated configuration.
        cwd: the folder that relative places are taken from.
        store: URI of the artifact store.
        overrides: as typed on the command line; they name the run.
        texts: artifacts of the parent run besides the configuration (graph.svg, graph.mmd).
        board: where progress is shown; standard error by default.

    Use as a context manager, or call `close` at the end, whatever happened.

    Raises:
        UserError: the tracking URI makes no sense.
    """

    def __init__(
        self,
        config: RunConfig,
        cwd: Path,
        store: str,
        overrides: Sequence[str] = (),
        texts: Mapping[str, str] | None = None,
        board: Board | None = None,
    ) -> None:
        self._board = board if board is not None else Board()
        self._cluster = Cluster(config.cluster)
        self._heavy = threading.Lock()
        self._tracking: Tracking = NoTracking()
        if config.tracking.enabled:
            resolved: dict[str, Json] = config.model_dump(mode="json")
            self._tracking = MlflowTracking(
                config.tracking,
                cwd,
                store,
                resolved,
                overrides,
                texts or {},
                self._board.print,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tracking(self) -> Tracking:
        """Where runs are recorded."""
        return self._tracking

    def capacity(self) -> Capacity:
        """What may be used at one time; joins Ray first when it is somebody else's cluster."""
        return self._cluster.capacity()

    def ensure_ray(self) -> None:
        """Start or join Ray unless that is done."""
        self._cluster.start()

    def progress(self, node: str) -> Progress:
        """The live line of a node."""
        return self._board.line(node)

    def event(self, node: str, event: NodeEvent, text: str, artifact: Artifact | None) -> None:
        """Print what became of a node, and take its live line away when it ended."""
        if event not in ("started", "waiting"):
            self._board.finish(node)
        if event == "started":
            # Until the stage counts for itself: Ray and MLflow take seconds to start.
            self._board.line(node).start(None, "")
        else:
            self._board.print(event_line(node, event, text, artifact))

    def close(self) -> None:
        """Stop drawing and stop Ray. Tracking is closed by the runner."""
        self._board.close()
        self._cluster.stop()


def event_line(node: str, event: NodeEvent, text: str, artifact: Artifact | None) -> str:
    """One line: "mask/128: made in 12 s, 80,000 -> 79,990 rows (10 too short)"."""
    parts: list[str] = [event]
    if event == "made" and artifact is not None:
        manifest = artifact.manifest
        if isinstance(manifest.get("seconds"), int | float):
            parts[0] += f" in {duration(manifest['seconds'])}"
        counts: Mapping[str, int] = manifest.get("counts") or {}
        if counts:
            parts.append(counts_text(counts, str(manifest.get("unit") or "")))
        if manifest.get("flow"):
            parts.append(manifest["flow"])
    if text:
        parts.append(text)
    return f"{node}: {', '.join(parts)}"
