"""A small catalogue of real stages on real files, for the tests of the machine.

    split -> count/long, count/short -> total -> model (not deterministic)

As a program it runs the graph in a process of its own, so that tests can kill it:
`python toy_graph.py STORE CORPUS CONFIG_JSON`; it prints the outcome as JSON.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.graph import Selection
from pipeline.runner import RunOutcome, StopSignal, run
from pipeline.services import Capacity
from pipeline.stage import Context, Node, RawInput, Resources, Result, Stage, StageError, UserError
from pipeline.store import Artifact, Store

POEMS = {
    "lamb.txt": "Little Lamb who made thee\nDost thou know who made thee\n",
    "tyger.txt": "Tyger Tyger, burning bright,\nIn the forests of the night;\n",
    "hope.txt": "Hope is the thing with feathers\nThat perches in the soul\n",
    "nobody.txt": "I'm Nobody! Who are you?\nAre you Nobody too?\n",
}


def split(context: Context) -> Result:
    """A part a document; `lower` is its only setting."""
    assert context.raw is not None
    folder = Path(context.node.settings["corpus"])
    config = context.node.config["split"]
    names = [entry["path"] for entry in context.raw.entries]
    for name in names:
        if name not in context.output.finished():
            text = (folder / name).read_text()
            write(context, name, text.lower() if config["lower"] else text)
    return Result({"documents": len(names)}, {"in": len(names), "out": len(names)})


def count(context: Context) -> Result:
    """Counts the words of at least `min` letters of each document."""
    least = context.node.config["count"]["min"]
    source = context.inputs["documents"]
    done = context.output.finished()
    for name in source.files():
        if name in done:
            continue
        context.stop.check()
        words = [w for w in source.read_bytes(name).decode().split() if len(w) >= least]
        write(context, name, json.dumps(Counter(words), sort_keys=True))
    return Result({"parts_before": len(done)}, context.node.settings.get("counts", {}))


def total(context: Context) -> Result:
    """Adds the counts of both inputs."""
    sums: Counter[str] = Counter()
    for artifact in context.inputs.values():
        for name in artifact.files():
            sums.update(json.loads(artifact.read_bytes(name)))
    write(context, "total.json", json.dumps(sums, sort_keys=True))
    return Result({"words": sum(sums.values())})


def model(context: Context) -> Result:
    """Writes something else each time, as training on a GPU may; keeps a checkpoint."""
    work = Path(context.output.work)
    steps = int((work / "step").read_text()) if (work / "step").exists() else 0
    work.mkdir(parents=True, exist_ok=True)
    (work / "step").write_text("7")
    behave(context, "weights")
    write(context, "weights", secrets.token_hex(8))
    return Result({"resumed_at": steps})


def write(context: Context, name: str, text: str) -> None:
    with context.output.part(name) as part:
        part.stream.write(text[: len(text) // 2].encode())
        behave(context, name)
        part.stream.write(text[len(text) // 2 :].encode())
        part.finish(rows=text.count("\n"))
    context.progress.advance(1)
    made = context.node.settings.get("made")
    if made:
        with Path(made).open("a") as log:
            log.write(f"{context.node.name} {name}\n")


def behave(context: Context, part: str) -> None:
    """What the settings of the node say should go wrong in the middle of a part."""
    for entry in context.node.settings.get("behave", ()):
        node, where, what = entry.split(":")
        if (node, where) != (context.node.name, part):
            continue
        if what == "fail":
            raise StageError(f"{part} is broken")
        if what == "crash":
            raise ZeroDivisionError("first line\nlast line")
        if what == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), part)
        if what == "other":
            write(context, f"{part}-{secrets.token_hex(4)}", "something else")
        if what == "hang":
            Path(context.node.settings["marker"]).touch()
            while True:
                time.sleep(0.05)
                context.stop.check()
        if what == "deaf":
            time.sleep(60)
        if what == "slow":
            time.sleep(0.3)


def stage(name: str, version: int = 1, **options: Any) -> Stage:
    options = {"modules": ("toy_graph",), "libraries": ("pyarrow",), "needs_ray": False} | options
    return Stage(name, version, f"toy_graph:{name}", **options)


def nodes(corpus: Path, config: Mapping[str, Any]) -> list[Node]:
    """`config` holds "lower", "min" (of count/long), "versions", "cpus" and settings."""

    def listing() -> RawInput:
        if not corpus.is_dir():
            raise UserError(f"{corpus} is not there")
        paths = sorted(corpus.iterdir())
        rows = [{"path": p.name, "size": p.stat().st_size} for p in paths]
        return RawInput(rows, str(corpus))

    settings = {"corpus": str(corpus), **config.get("settings", {})}
    need = Resources(cpus=config.get("cpus", 1))
    version = config.get("versions", {})
    kinds = {
        name: stage(name, version.get(name, 1), **config.get("stage", {}))
        for name in ("split", "count", "total")
    }
    kinds["model"] = stage("model", deterministic=False, needs_ray=True)
    long, short = ({"count": {"min": m}} for m in (config.get("min", 4), 1))
    both = {"a": "count/long", "b": "count/short"}
    split = {"split": {"lower": config.get("lower", True)}}
    # In an order of their own, to see that they are put into the graph's.
    given = [
        Node("total", kinds["total"], {}, settings, both),
        Node("count/long", kinds["count"], long, settings, {"documents": "split"}),
        Node("count/short", kinds["count"], short, settings, {"documents": "split"}),
        Node("model", kinds["model"], {}, settings, {"counts": "total"}),
        Node("split", kinds["split"], split, settings, raw=listing),
    ]
    return [replace(node, resources=need) for node in given]


@dataclass
class ToyServices:
    """Everything outside of the runner, written down."""

    cpus: float = 2
    events: list[tuple[str, str, str]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    run_id: str | None = None
    metrics: Any = None
    resumed: dict[str, str | None] = field(default_factory=dict)

    @property
    def tracking(self) -> ToyServices:
        return self

    def capacity(self) -> Capacity:
        return Capacity(self.cpus, 0, 1 << 30)

    def ensure_ray(self) -> None:
        self.calls.append("ray")

    def progress(self, node: str) -> ToyServices:
        return self

    def advance(self, amount: float = 1, **figures: float | int | str) -> None:
        pass

    def event(self, node: str, event: str, text: str, artifact: Artifact | None) -> None:
        self.events.append((node, event, text))

    def start_run(self, nodes: Sequence[Node]) -> None:
        self.calls.append("start_run")

    def node_started(
        self, node: Node, fingerprint: str, inputs: Mapping[str, Artifact], resumed: str | None
    ) -> ToyRun:
        self.calls.append(f"node_started {node.name}")
        self.resumed[node.name] = resumed
        return ToyRun(resumed or f"run of {node.name}")

    def node_finished(self, run: ToyRun, artifact: Artifact, result: Result) -> None:
        self.calls.append(f"node_finished {artifact.node}")

    def node_ended(self, run: ToyRun, state: str, text: str) -> None:
        self.calls.append(f"node_ended {run.run_id.removeprefix('run of ')} {state}")

    def node_cached(self, node: Node, artifact: Artifact) -> None:
        self.calls.append(f"node_cached {node.name} {artifact.manifest['tracking_run_id']}")

    def close(self, state: str) -> None:
        self.calls.append(f"close {state}")


@dataclass
class ToyRun:
    run_id: str
    metrics: Any = None


@dataclass
class Ran:
    """A run of the toy graph that is over."""

    outcome: RunOutcome
    services: ToyServices
    store: Store

    @property
    def states(self) -> dict[str, str]:
        return {n.node: n.state for n in self.outcome.nodes}

    @property
    def made(self) -> list[str]:
        return [n.node for n in self.outcome.nodes if n.state == "made"]

    def artifact(self, node: str) -> Artifact:
        found = {n.node: n.artifact for n in self.outcome.nodes}[node]
        assert found is not None
        return found

    def message(self, node: str) -> str:
        return {n.node: n.message for n in self.outcome.nodes}[node]


def run_toy(
    store: Any,
    corpus: Path,
    config: Mapping[str, Any],
    until: str | None = "total",
    only: Sequence[str] = (),
    start: Sequence[str] = (),
    cpus: float = 2,
    stop: StopSignal | None = None,
    **options: Any,
) -> Ran:
    """Without `until=None` the model is left out."""
    services = ToyServices(cpus)
    where = store if isinstance(store, Store) else Store(str(store))
    ends = (until,) if until and not only else ()
    chosen = Selection(only, start, ends)
    outcome = run(
        nodes(corpus, config),
        where,
        services,  # type: ignore[arg-type]
        selection=chosen,
        stop=stop or StopSignal(),
        **options,
    )
    return Ran(outcome, services, where)


def main() -> None:
    stop = StopSignal()
    with stop.on_signals():
        config = json.loads(sys.argv[3])
        cpus = config.pop("driver_cpus")
        ran = run_toy(Path(sys.argv[1]), Path(sys.argv[2]), config, cpus=cpus, stop=stop)
    figures = ran.outcome.figures
    row = {"states": ran.states, "events": ran.services.events, "figures": figures}
    print(json.dumps(row), flush=True)
    assert threading.active_count() < 50
    os._exit(ran.outcome.exit_code)


if __name__ == "__main__":
    main()
