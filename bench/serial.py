"""The data stages in this process: their own code, with a loop in the place of Ray Data.

Everything that a run does between stages is done here too: scratch files, the store's parts with
their digests and records, manifests. Only Ray, tracking, leases and planning are missing.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.given_vocabulary import with_given_vocabulary
from bench.processes import NOTE
from pipeline.config import compose
from pipeline.stage import Context, Granted, Node, Stage, StageError
from pipeline.stop import StopSignal
from pipeline.store import Artifact, Store
from stages import parallel
from stages.catalog import CATALOG
from stages.config import Config
from stages.stage_list import MASK, PAIRS, SHARD


def steps_of(length: int) -> tuple[str, ...]:
    """The nodes that make rows of at most `length` tokens."""
    return ("shard", f"pairs/{length}", f"mask/{length}", f"mask/{length}-heldout")


STEPS = steps_of(128)
FINGERPRINT = "0" * 64


def overrides(corpus: Path, store: Path, *more: str) -> list[str]:
    """What every run of the measurement says: a JSON-lines corpus, no tracking."""
    return [
        "corpus=jsonl",
        f"corpus.paths=['{corpus}']",
        f"store='{store}'",
        "tracking.enabled=false",
        *more,
    ]


def validation_share(documents: int, size: float) -> float:
    """The default of `corpus`, and more where it would be too few documents or bytes."""
    return min(0.4, max(0.02, 10 / documents, 100_000 / size))


def config_of(words: Sequence[str]) -> Config:
    """The validated config of overrides."""
    config = compose(words, None, CATALOG.config_model).config
    assert isinstance(config, Config)
    return config


def jobs_in_process(
    context: Context,
    worker: str,
    arguments: Mapping[str, Any],
    jobs: Sequence[parallel.Record],
) -> Iterator[parallel.Record]:
    """`stages.parallel.run_jobs` without Ray: one worker, made anew for each stage."""
    if not jobs:
        return
    module, _, name = worker.partition(":")
    made: parallel.Worker = getattr(importlib.import_module(module), name)(**arguments)
    for job in jobs:
        try:
            yield json.loads(json.dumps(made(json.loads(json.dumps(job)))))
        except parallel.JobFailed as error:
            raise StageError(str(error)) from None


@contextmanager
def without_ray() -> Iterator[None]:
    """Inside the block, stages do their jobs in this process."""
    for stage in (SHARD, PAIRS, MASK):
        _function(stage)
    original = parallel.run_jobs
    # Each module holds the function under its own name.
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("stages.") and getattr(module, "run_jobs", None) is original
    ]
    for module in holders:
        setattr(module, "run_jobs", jobs_in_process)  # noqa: B010 - mypy knows no such attribute
    try:
        yield
    finally:
        for module in holders:
            setattr(module, "run_jobs", original)  # noqa: B010


@dataclass(frozen=True)
class Prepared:
    """Seconds of each step, tokens of all rows, and the digests of what came out."""

    seconds: dict[str, float]
    tokens: int
    digests: dict[str, str]


class Chain:
    """Raw files to masked rows in one process. The vocabulary is there once this is made.

    Args:
        corpus: JSON lines, or a folder of them.
        folder: an empty one, for the store.
        vocab_file: a vocab.txt.
        more: further overrides.
        length: of rows; as `more` say, where they say it.
    """

    def __init__(
        self, corpus: Path, folder: Path, vocab_file: Path, *more: str, length: int = 128
    ) -> None:
        self._steps = steps_of(length)
        config = config_of(overrides(corpus, folder, *more))
        self._store = Store(str(folder))
        nodes = with_given_vocabulary(CATALOG.nodes(config), vocab_file)
        self._nodes = {node.name: node for node in nodes}
        given = dataclasses.replace(self._nodes["vocab"], inputs={})
        self._vocab = _make(given, self._store, {})

    def __call__(self) -> Prepared:
        """Do all of it; each worker loads the vocabulary for itself, as in a run."""
        made = {"vocab": self._vocab}
        seconds: dict[str, float] = {}
        with without_ray():
            for name in self._steps:
                began = time.perf_counter()
                made[name] = _make(self._nodes[name], self._store, made)
                seconds[name] = time.perf_counter() - began
        tokens = sum(
            made[name].figures["tokens"] for name in self._steps if name.startswith("mask")
        )
        digests = {name: artifact.output_digest for name, artifact in made.items()}
        return Prepared(seconds, tokens, digests)


def _make(node: Node, store: Store, made: Mapping[str, Artifact]) -> Artifact:
    writer = store.begin(node.name, FINGERPRINT, "bench")
    raw = None if node.raw is None else node.raw()
    context = Context(
        node=node,
        inputs={role: made[name] for role, name in node.inputs.items()},
        output=writer,
        fingerprint=FINGERPRINT,
        attempt="bench",
        granted=Granted(1, 0),
        progress=_Silence(),
        metrics=_Silence(),
        stop=StopSignal(),
        raw=raw,
    )
    result = _function(node.stage)(context)
    body = {"config": dict(node.config), "figures": dict(result.figures)}
    return writer.commit(body, raw=None if raw is None else list(raw.entries))


def _function(stage: Stage) -> Any:
    module, _, name = stage.run.partition(":")
    return getattr(importlib.import_module(module), name)


class _Silence:
    """Progress and metrics that nobody reads."""

    def start(self, total: float | None, unit: str, done: float = 0) -> None:
        """Nothing."""

    def advance(self, amount: float = 1, **figures: float | int | str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Say it: a fall-back to a slower engine, say, would explain a figure."""
        print(f"{NOTE}{text}", file=sys.stderr)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Nothing."""
