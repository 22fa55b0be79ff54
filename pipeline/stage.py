"""The contract between the machine and what it runs: Stage, Node, Artifact, Context, Result.

A *stage* is a kind of work ("mask"); a *node* is one piece of it in the graph of a config
("mask/128"); an *artifact* is what a node leaves in the store. The machine knows nothing of
text or BERT: it builds nodes with a catalogue (`Catalog`), decides by fingerprints which of
them have to run, and hands a `Context` to each stage's `run` function.

This module imports nothing heavy: `plan`, `status`, `why` and `graph` go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pipeline.config import RunConfig
    from pipeline.store import Artifact, ArtifactWriter

Json = Any
"""A value that `json.dumps` takes: dict, list, str, int, float, bool or None."""


class UserError(Exception):
    """Wrong usage or configuration: nothing was started. The CLI prints it and exits with 2."""


class StageError(Exception):
    """A stage cannot go on, for a reason a person can act on. Printed without traceback, exit 1."""


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """The run was asked to stop (SIGINT, SIGTERM); what is finished is kept. Exit 3."""


@dataclass(frozen=True)
class Resources:
    """What a node needs before the runner starts it: the least it can work with.

    Infinity means all that there is (for GPUs: none, where there is none). A node whose result
    depends on how much it gets, in its last bits, asks for all, so that it never depends on what
    runs beside it.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Stage:
    """A kind of work.

    Attributes:
        name: as in node names: "mask" in "mask/128".
        version: bumped by hand when the same config and input give another result.
        run: "module:function" of the code, imported only when a node runs;
            called as `function(context) -> Result`.
        modules: dotted names of the modules that make the result. Their source hash is recorded
            in the manifest, and `plan` warns when it changed and `version` did not.
        libraries: distributions whose version changes the output (fingerprinted).
        recorded: distributions whose version is only recorded in the manifest.
        deterministic: a data stage: a forced rerun with other content is an error (exit 1).
        needs_ray: whether the runner starts Ray before `run`.
    """

    name: str
    version: int
    run: str
    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    deterministic: bool = True
    needs_ray: bool = True


@dataclass(frozen=True)
class RawInput:
    """A listing of external input, taken without reading it.

    `entries` is a JSON list, one item per file or distribution (path relative to the corpus root,
    size in bytes, mtime or etag; or name, version and RECORD hash). It is fingerprinted.
    """

    entries: Sequence[Json]
    description: str


@dataclass(frozen=True)
class Node:
    """One piece of work in the graph.

    Attributes:
        name: "shard", "mask/128", "finetune/sst2". Also its folder in the store.
        config: the slice of the config that the result depends on, nested by config path
            (`{"mask": {"probability": 0.15}, "seeds": {"mask": 7}}`). JSON; fingerprinted.
        settings: what the stage also needs but what cannot change its result (speed, thresholds
            that only accept or refuse, tracking). Nested the same way. JSON; not fingerprinted.
        inputs: role -> name of the node whose artifact is read under that role. Their output
            digests are fingerprinted.
        watches: role -> node whose artifact is read too, but cannot change the result (held-out
            rows for the curves of a training run). Not fingerprinted; made before the node runs.
        raw: lists external input; called by `plan`, so it must be fast. It raises `UserError`
            when the input is not there. None for nodes that read only artifacts.
        check: called before a run starts anything, when it may have to make the node: raises
            `UserError` when this machine lacks something that only the node needs.
    """

    name: str
    stage: Stage
    config: Mapping[str, Json]
    settings: Mapping[str, Json] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    watches: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    raw: Callable[[], RawInput] | None = None
    check: Callable[[], None] | None = None


class Catalog(Protocol):
    """What a project plugs into the machine; `stages.catalog` holds ours."""

    config_model: type[RunConfig]

    def nodes(self, config: RunConfig) -> list[Node]:
        """The nodes of a validated config, in any order. Pure; imports nothing heavy."""
        ...

    def summary(self, figures: Mapping[str, Mapping[str, Json]]) -> list[str]:
        """Lines printed after a run, from the figures of each node's manifest, by node name.

        Beside them stands `path`: the folder of the node's files.
        """
        ...


class Progress(Protocol):
    """A node's live line. Safe to call from any driver thread; cheap enough to call per item."""

    def start(self, total: float | None, unit: str, done: float = 0) -> None:
        """Begin (or begin again) counting up to `total` `unit`s; `done` were there before."""
        ...

    def advance(self, amount: float = 1, **figures: float | int | str) -> None:
        """Count `amount` more; `figures` are shown behind the bar (loss, tokens/s...)."""
        ...

    def note(self, text: str) -> None:
        """Print one permanent line under the node's name: a warning, a decision taken."""
        ...


class Metrics(Protocol):
    """Where a node's figures go over time. Buffered; never raises, never blocks for long."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log `values` (names with `/`) at `step` (the optimiser step in training)."""
        ...


class Stop(Protocol):
    """Whether the run was asked to stop. Stages look at it between items."""

    def is_set(self) -> bool:
        """True once the run has to end."""
        ...

    def check(self) -> None:
        """Raise `Interrupted` once the run has to end."""
        ...


@dataclass(frozen=True)
class Granted:
    """What the runner gave the node: never less than `Node.resources`, usually all that is free."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Context:
    """All that a stage's `run` may use. It reads no config beside this.

    Attributes:
        node: the node being made; `node.config` and `node.settings` are its configuration.
        inputs: role -> finished artifact, those of `Node.watches` included.
        output: writes the node's files. Parts that an earlier, killed attempt finished are in
            `output.finished()` and must not be made again.
        fingerprint: hex; names the run in Ray Train and stands in checkpoints.
        attempt: unique for this try; temporary names carry it.
        raw: the listing that was fingerprinted, when the node has external input.
    """

    node: Node
    inputs: Mapping[str, Artifact]
    output: ArtifactWriter
    fingerprint: str
    attempt: str
    granted: Granted
    progress: Progress
    metrics: Metrics
    stop: Stop
    raw: RawInput | None = None


@dataclass(frozen=True)
class Table:
    """A table of a report: header and rows of plain values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Json]]


@dataclass(frozen=True)
class Histogram:
    """A figure of a report: `counts[i]` items lie in [edges[i], edges[i + 1])."""

    title: str
    edges: Sequence[float]
    counts: Sequence[float]
    unit: str = ""


@dataclass(frozen=True)
class Column:
    """A column of the rows that a served model takes or gives.

    Attributes:
        type: "string", "double", "long", "boolean" or "any" (what JSON has).
        required: whether a request must have it.
    """

    name: str
    type: str
    required: bool = True


@dataclass(frozen=True)
class LoggedModel:
    """A model among an artifact's parts, to be logged in MLflow, registered and served.

    Attributes:
        name: under which it is registered; what is logged again becomes its next version.
        entry: dotted name of the module that MLflow runs to serve it: it calls
            `mlflow.models.set_model`, and finds the parts in `context.artifacts["model"]`.
        packages: top-level packages of ours. Of these, the modules that `entry` imports go along.
        distributions: what the served model needs installed, in the versions that are installed.
        takes, gives: the columns of its rows, and of its answers.
        example: rows that it answers.
        options: name -> default, of what a request may set beside its rows.
        leave_out: parts that it does not need.
        tags: of its version; fingerprint, digests and lineage are added to them.
        about: one line or a few, in Markdown.
    """

    name: str
    entry: str
    packages: Sequence[str]
    distributions: Sequence[str]
    takes: Sequence[Column]
    gives: Sequence[Column]
    example: Sequence[Mapping[str, Json]]
    options: Mapping[str, str | int] = field(default_factory=dict)
    leave_out: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True)
class Result:
    """What a stage's `run` returns once its files are written.

    Attributes:
        figures: flat name -> value; kept in the manifest, logged as MLflow metrics where they are
            numbers, printed at the end. Names with `/`, units in them ("bytes_in", "seconds").
        counts: what came in, what went out and why not all: {"in": n, "out": n, reason: n...}.
            The runner checks in = out + reasons when it is given.
        unit: what `counts` counts ("documents").
        flow: what went in and came out, in words, for a stage that has no `counts`.
        report: tables and histograms for the HTML page, in order.
        samples: decoded rows for a person to look at (HTML page and MLflow artifact).
        model: of the artifact, for MLflow.
    """

    figures: Mapping[str, Json] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    unit: str = ""
    flow: str = ""
    report: Sequence[Table | Histogram] = ()
    samples: Sequence[str] = ()
    model: LoggedModel | None = None


def flatten(tree: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield ("a.b.c", value) for each leaf of a nested config; empty mappings are leaves."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value
