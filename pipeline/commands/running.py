"""`clozeline run`: the runner with a terminal, a tracker, a cluster and signals around it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pipeline.commands.look import write_report
from pipeline.commands.text import duration, flow, table, terminal_width
from pipeline.drawing import draw
from pipeline.graph import Graph, Selection
from pipeline.local_services import LocalServices
from pipeline.quiet import native_stderr_aside, said_aside
from pipeline.runner import NodeOutcome, RunOutcome, StopSignal, run
from pipeline.stage import Catalog, UserError
from pipeline.store import Store

if TYPE_CHECKING:
    from pipeline.config import RunConfig
    from pipeline.services import Capacity, NodeEvent
    from pipeline.store import Artifact

INTERRUPTED = 3


ALIGNED = 80
"""A longer command is no measure for the others."""


def run_command(
    config: RunConfig,
    catalog: Catalog,
    overrides: Sequence[str],
    selection: Selection,
    force: bool,
    verbose: bool,
    conf_dir: Path | None = None,
) -> int:
    """Make what is missing, print what came of it, and return the exit code.

    `conf_dir` is of the config, for what is printed alone.

    Raises:
        UserError: wrong selection, missing input: nothing was started or written.
    """
    graph, store = Graph(catalog.nodes(config)), Store(config.store)
    texts = {"graph.svg": draw(graph, "svg"), "graph.mmd": draw(graph, "mermaid")}
    _check_writable(store)
    stop = Stopping()
    with native_stderr_aside() as aside, stop.on_signals():
        services = RunServices(config, Path.cwd(), config.store, overrides, texts, stop)
        services.verbose_store = store if verbose else None
        try:
            outcome = run(graph, store, services, selection=selection, force=force, stop=stop)
        finally:
            services.close()
        words = [*overrides, *([] if conf_dir is None else ["--conf-dir", str(conf_dir)])]
        _print_outcome(outcome, catalog, words, config.tracking.enabled)
        if verbose and outcome.state == "failed":
            print(said_aside(aside), file=sys.stderr)
        if outcome.state == "interrupted":
            # Nodes that did not end in time still have threads: they must not hold the process up.
            end_now(outcome.exit_code)
    return outcome.exit_code


def _check_writable(store: Store) -> None:
    """Raise UserError when a local store can never be written to."""
    if not store.files.local:
        return
    place = Path(store.root)
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UserError(f"store={store.location}: {place} is a file; choose a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(
            f"store={store.location}: {place} cannot be written to; choose another: store=FOLDER"
        )


class RunServices(LocalServices):
    """Writes a node's report page once it is made, and says more when asked to."""

    verbose_store: Store | None = None

    def __init__(
        self,
        config: RunConfig,
        cwd: Path,
        store: str,
        overrides: Sequence[str] = (),
        texts: Mapping[str, str] | None = None,
        stop: Stopping | None = None,
    ) -> None:
        super().__init__(config, cwd, store, overrides, texts)
        self._stop = stop
        # Ray asks the kernel to end its processes with their parent, and to the kernel that is
        # the thread that started them: not a node's own, which ends with the node. Nor the main
        # one, where Ray would put its own handler of SIGTERM.
        self._ray_thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    def capacity(self) -> Capacity:
        """CPUs, GPUs and memory that this run may use."""
        return self._ray_thread.submit(super().capacity).result()

    def ensure_ray(self) -> None:
        """Start or join Ray."""
        self._ray_thread.submit(super().ensure_ray).result()
        if self._stop is not None:
            self._stop.handle_again()

    def close(self) -> None:
        """Stop drawing, stop Ray."""
        super().close()
        self._ray_thread.shutdown(wait=False)

    def event(self, node: str, event: NodeEvent, text: str, artifact: Artifact | None) -> None:
        """Print what became of a node, at once; what is cached stands in the table at the end."""
        if event == "made" and artifact is not None:
            write_report(artifact, self._board.print)
        if event != "cached":
            super().event(node, event, "" if event == "interrupted" else text, artifact)
        if self.verbose_store is None:
            return
        if event == "started":
            self._board.print(f"{node}: started, {text}")
        if event == "failed":
            for trace in _tracebacks(self.verbose_store, node):
                self._board.print(trace)


def _tracebacks(store: Store, node: str) -> Iterator[str]:
    for fingerprint in store.files.folders(f"{store.root}/{node}"):
        failure = store.failure(node, fingerprint)
        if failure is not None and failure.get("traceback"):
            yield str(failure["traceback"])


class Stopping(StopSignal):
    """Stops in good order at the first signal, at once at the second."""

    def __init__(self) -> None:
        super().__init__()
        self._handled: tuple[int, ...] = ()
        self._again = False

    def is_set(self) -> bool:
        """Whether it was asked for."""
        if self._again and threading.current_thread() is threading.main_thread():
            self._again = False
            for number in self._handled:
                signal.signal(number, self._ask)
        return super().is_set()

    def handle_again(self) -> None:
        """Take the signals back: Ray's handler of SIGTERM prints a stack before it calls ours.

        From any thread; done when the main thread next asks `is_set`.
        """
        self._again = True

    @contextmanager
    def on_signals(self) -> Iterator[StopSignal]:
        """Handle SIGINT, SIGTERM and a terminal that is closed; only in the main thread."""
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            wanted.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._ask) for number in wanted}
        self._handled = tuple(before)
        try:
            yield self
        finally:
            self._handled = ()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if super().is_set():
            end_now(INTERRUPTED)
        self.set()
        name = signal.Signals(number).name
        # Not print: a handler runs in the middle of anything, the printing of a line too.
        said = f"\n{name}: ending in good order; once more: at once\n"
        os.write(sys.stderr.fileno(), said.encode())


def end_now(code: int) -> None:
    """End this process and every process below it, whatever their threads do."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    for stream in (sys.stdout, sys.stderr):
        if threading.current_thread() is threading.main_thread() and not stream.closed:
            try:
                stream.flush()
            except (OSError, RuntimeError):
                continue
    os._exit(code)


def _print_outcome(
    outcome: RunOutcome, catalog: Catalog, overrides: Sequence[str], tracked: bool
) -> None:
    """The table, the summary, what failed and what to do next."""
    rows = [_row(node) for node in outcome.nodes]
    print("\n".join(table(("node", "state", "time", "in -> out"), rows, terminal_width())))
    summary = catalog.summary(outcome.figures)
    if summary:
        print("\n" + "\n".join(summary))
    made = [node.node for node in outcome.nodes if node.state == "made"]
    sys.stdout.flush()
    for node in outcome.nodes:
        if node.state == "failed":
            print(f"clozeline: {node.node} failed: {node.message}", file=sys.stderr)
    if outcome.state == "interrupted":
        print("clozeline: interrupted; the same command goes on from here", file=sys.stderr)
    elif made:
        print("\n" + "\n".join(_next(made[-1], overrides, tracked)))
    elif outcome.state == "done":
        print("\nnothing to make: all of it was there")


def _next(node: str, overrides: Sequence[str], tracked: bool) -> Iterator[str]:
    """What to look at now."""
    tracking = [word for word in overrides if word.startswith("tracking")]
    if "--conf-dir" in overrides:
        tracking += overrides[overrides.index("--conf-dir") :]
    commands = {
        shlex.join(["clozeline", "show", node, *overrides]): "figures and report of one node",
    }
    if tracked:
        ui = shlex.join(["clozeline", "ui", *tracking])
        commands[ui] = "all runs, curves and reports in a browser"
    width = max((len(command) for command in commands if len(command) <= ALIGNED), default=0)
    for command, what in commands.items():
        yield f"{command:<{width}}  {what}"


def _row(outcome: NodeOutcome) -> tuple[str, str, str, str]:
    ran = outcome.state in ("made", "failed", "interrupted")
    took = duration(outcome.seconds) if ran else "-"
    went = "" if outcome.artifact is None else flow(outcome.artifact.manifest)
    return (outcome.node, outcome.state.replace("_", " "), took, went)
