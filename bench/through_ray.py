"""One run through the Ray stages shard, pairs, mask: seconds of each, and peak memory.

The runner, its leases and manifests are those of `clozeline run --until mask`; the vocabulary is
given, and Ray is started before the first stage, so that neither is in a stage's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.given_vocabulary import with_given_vocabulary
from bench.machine import hold_to
from bench.serial import config_of, overrides, validation_share
from pipeline.graph import Graph, Selection
from pipeline.local_services import LocalServices
from pipeline.runner import run
from pipeline.stage import StageError
from pipeline.store import Store
from stages.catalog import CATALOG

if TYPE_CHECKING:
    from pipeline.services import NodeEvent
    from pipeline.store import Artifact

STAGES = ("shard", "pairs/128", "mask/128")


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run once.

    Args:
        job: `corpus` (a folder) with its `bytes` and `documents`, `store` (a folder that is not
            there), `vocab_file`, `cpus`, and whether to look at `memory`.

    Raises:
        StageError: a stage failed.
    """
    # Also Ray's own processes and the driver: one core is one core.
    held = hold_to(job["cpus"])
    words = overrides(
        Path(job["corpus"]),
        Path(job["store"]),
        f"cluster.num_cpus={job['cpus']}",
        "cluster.num_gpus=0",
        f"corpus.validation_share={validation_share(job['documents'], job['bytes'])}",
    )
    config = config_of(words)
    graph = Graph(with_given_vocabulary(CATALOG.nodes(config), Path(job["vocab_file"])))
    services = _Services(config, Path.cwd(), config.store, words)
    with services:
        began = time.perf_counter()
        services.ensure_ray()
        started = time.perf_counter() - began
        peaks = None
        if job["memory"]:
            from bench.peaks import Peaks

            peaks = Peaks(lambda: services.running)
            services.look = peaks.look
        began = time.perf_counter()
        chosen = Selection(until=["mask/128"])
        outcome = run(graph, Store(config.store), services, selection=chosen)
        total = time.perf_counter() - began
        largest = peaks.close() if peaks is not None else {}
    if outcome.state != "done":
        raise StageError("; ".join(n.message for n in outcome.nodes if n.message))
    made = {n.node: n.artifact for n in outcome.nodes if n.artifact is not None}
    parts = made["shard"].files().values()
    sizes = [part.figures["bytes"] for part in parts if "bytes" in part.figures]
    return {
        "cpus": job["cpus"],
        "held_to": held,
        "megabytes": job["bytes"] / 1e6,
        "documents": job["documents"],
        "shards": len(sizes),
        "largest_shard_bytes": max(sizes, default=0),
        "rows": made["mask/128"].manifest["rows"],
        "seconds": {name: made[name].manifest["seconds"] for name in STAGES},
        "total_seconds": total,
        "ray_start_seconds": started,
        "digests": {name: artifact.output_digest for name, artifact in made.items()},
        "peaks": largest,
    }


class _Services(LocalServices):
    """Knows which node runs."""

    running = "before"
    look: Callable[[], None] | None = None

    def event(self, node: str, event: NodeEvent, text: str, artifact: Artifact | None) -> None:
        """As ever, and remember the node."""
        if self.look is not None:
            self.look()
        if event == "started":
            self.running = node
        super().event(node, event, text, artifact)
