"""Stage shard without Ray: its own code and workers, one job after another in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pipeline.stage import Context, Granted, Interrupted, Result
from pipeline.stop import StopSignal
from pipeline.store import ArtifactWriter, Store
from pipeline.tracking import NoMetrics
from stages import near_duplicates, shard, shuffle
from stages.catalog import CATALOG
from stages.config import Config
from stages.parallel import Record


class Quiet:
    """Progress that nobody looks at."""

    def start(self, total: float | None, unit: str, done: float = 0) -> None: ...

    def advance(self, amount: float = 1, **figures: float | int | str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass
class Jobs:
    """Runs jobs in this process, in a shuffled order.

    Attributes:
        seed: of the order.
        fresh: a worker a job, as Ray's tasks have it; else one for all, as its actors.
        kill_after: ends the run when so many jobs are done, as a kill would.
        meanwhile: what somebody else does before the first job.
    """

    seed: int = 0
    fresh: bool = False
    kill_after: int | None = None
    meanwhile: Callable[[], object] | None = None
    done: list[Record] = field(default_factory=list)

    def __call__(
        self, context: Context, worker: str, arguments: Mapping[str, Any], jobs: Sequence[Record]
    ) -> Iterator[Record]:
        module, _, name = worker.partition(":")
        make = getattr(import_module(module), name)
        one = make(**arguments)
        order = list(jobs)
        random.Random(self.seed).shuffle(order)
        if self.meanwhile is not None and not self.done:
            self.meanwhile()
        for job in order:
            if self.kill_after is not None and len(self.done) >= self.kill_after:
                raise Interrupted
            self.done.append(job)
            call = make(**arguments) if self.fresh else one
            yield json.loads(json.dumps(call(json.loads(json.dumps(job)))))


def run_shard(
    monkeypatch: pytest.MonkeyPatch,
    store: Path,
    corpus: Mapping[str, Any],
    jobs: Jobs | None = None,
    batch_mb: float = 4.0,
) -> tuple[Result, ArtifactWriter]:
    """Run the stage on a corpus; a store that holds a killed attempt goes on with it."""
    jobs = jobs or Jobs()
    monkeypatch.setattr(shard, "run_jobs", jobs)
    monkeypatch.setattr(shuffle, "run_jobs", jobs)
    monkeypatch.setattr(near_duplicates, "run_jobs", jobs)
    config = Config.model_validate({"corpus": corpus, "speed": {"batch_mb": batch_mb}, "seed": 7})
    node = next(n for n in CATALOG.nodes(config) if n.name == "shard")
    assert node.raw is not None
    output = Store(str(store)).begin("shard", "0" * 64, "attempt")
    context = Context(
        node=node,
        inputs={},
        output=output,
        fingerprint="0" * 64,
        attempt="attempt",
        granted=Granted(1, 0),
        progress=Quiet(),
        metrics=NoMetrics(),
        stop=StopSignal(),
        raw=node.raw(),
    )
    return shard.run(context), output


def digests(output: ArtifactWriter) -> dict[str, str]:
    """Of all shards."""
    return {name: p.digest for name, p in output.finished().items() if p.digest is not None}
