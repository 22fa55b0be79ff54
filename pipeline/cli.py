"""`clozeline ...`: the command line.

Everything heavy is imported by the command that needs it: `--help`, `plan`, `status`, `why`,
`graph` and `config` import neither Ray nor torch nor MLflow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arguments import parse
from pipeline.stage import Interrupted, StageError, UserError

if TYPE_CHECKING:
    from pipeline.config import Composed, RunConfig
    from pipeline.graph import Graph, Selection
    from pipeline.stage import Catalog
    from pipeline.store import Store

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 3
"""Exit codes: all done; a stage failed; wrong usage or config, nothing started; resumable."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    open_closed_streams()
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except UserError as error:
        return _say(error, USAGE)
    except StageError as error:
        return _say(error, FAILED)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone: nothing is left to say, and nothing went wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        # A store that is full or cannot be written to, a file that may not be read.
        return _say(error, FAILED)


def open_closed_streams() -> None:
    """Give a process that was started with closed standard streams (`>&-`) empty ones.

    Otherwise the next file that is opened, a database say, gets their number, and what native code
    prints goes into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one that is given.
            os.open(os.devnull, os.O_RDWR)
            if getattr(sys, name) is None:
                mode = "r" if name == "stdin" else "w"
                setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _say(error: Exception, code: int) -> int:
    sys.stdout.flush()
    print(f"clozeline: {error}", file=sys.stderr)
    return code


def _main(argv: list[str]) -> int:
    options, rest = parse(argv)
    if options.command is None:
        return USAGE
    return DISPATCH[options.command](options, rest)


def catalog() -> Catalog:
    """The stages that this project plugs into the machine."""
    import importlib

    found: Catalog = importlib.import_module("stages.catalog").CATALOG
    return found


def composed(options: argparse.Namespace, overrides: Sequence[str]) -> Composed:
    """The validated config of a command's overrides."""
    from pipeline.config import compose

    return compose(overrides, options.conf_dir, catalog().config_model)


def graph_and_store(options: argparse.Namespace, overrides: Sequence[str]) -> tuple[Graph, Store]:
    """The graph of a config, and the store that it names."""
    from pipeline.graph import Graph
    from pipeline.store import Store

    config = composed(options, overrides).config
    return Graph(catalog().nodes(config)), Store(config.store)


def selection(options: argparse.Namespace) -> Selection:
    """What --only, --from and --until say."""
    from pipeline.graph import Selection

    return Selection(options.only, options.start, options.until)


def _print(lines: Iterable[str]) -> int:
    for line in lines:
        print(line)
    return DONE


# The commands: (options, the words that are no options) -> exit code.


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    if options.dry_run:
        return _plan(options, rest)
    from pipeline.commands import running

    config = composed(options, rest).config
    return running.run_command(
        config,
        catalog(),
        rest,
        selection(options),
        options.force,
        options.verbose,
        options.conf_dir,
    )


def _plan(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import look

    graph, store = graph_and_store(options, rest)
    chosen = selection(options)
    return _print(look.plan_lines(graph, store, chosen, options.force, options.json))


def _status(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import look

    return _print(look.status_lines(*graph_and_store(options, rest), options.json))


def _why(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import look

    node, overrides = _node_and_overrides("why", rest)
    return _print(look.why_lines(*graph_and_store(options, overrides), node, options.json))


def _show(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import look

    node, overrides = _node_and_overrides("show", rest)
    return _print(look.show_lines(*graph_and_store(options, overrides), node, options.json))


def _lineage(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import lineage

    what, overrides = _node_and_overrides("lineage", rest)
    if what.startswith(lineage.MODELS):
        config = composed(options, overrides).config
        return _print(lineage.model_lines(what, config.tracking, Path.cwd(), options.json))
    found = lineage.artifact_named(what)
    if found is None:
        found = lineage.artifact_of(*graph_and_store(options, overrides), what)
    return _print(lineage.lines(found, options.json))


def _graph(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import look

    drawn = look.graph_text(*graph_and_store(options, rest), options.format, options.states)
    if options.output is None:
        print(drawn)
    else:
        try:
            options.output.write_text(f"{drawn}\n", "utf-8")
        except OSError as error:
            raise UserError(f"--output {options.output}: {error.strerror}") from None
    return DONE


def _node_and_overrides(command: str, rest: list[str]) -> tuple[str, list[str]]:
    """The one word that is no override, wherever it stands, and the others."""
    nodes = [word for word in rest if "=" not in word and not word.startswith("~")]
    if len(nodes) != 1:
        raise UserError(
            f"{command} takes one node or stage, e.g. clozeline {command} mask/128"
            + (f"; these are {len(nodes)}: {' '.join(nodes)}" if nodes else "")
        )
    return nodes[0], [word for word in rest if word != nodes[0]]


def _config(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import configuration

    what, arguments = (rest[0], rest[1:]) if rest else ("", [])
    if what == "show":
        shown = composed(options, arguments)
        return _print(configuration.show(shown, options.json, options.describe))
    if what == "diff":
        left, right = configuration.names_of(arguments)
        model = catalog().config_model
        return _print(configuration.diff(left, right, options.conf_dir, model, options.json))
    raise UserError("config takes show or diff: clozeline config show [OVERRIDES]")


def _doctor(options: argparse.Namespace, rest: list[str]) -> int:
    import json

    from pipeline import doctor

    checks = doctor.examine(composed(options, rest).config.store, options.port)
    if options.json:
        print(json.dumps([check.as_json() for check in checks], indent=2))
    else:
        _print(doctor.lines(checks))
    return FAILED if any(check.state == "bad" for check in checks) else DONE


def _ui(options: argparse.Namespace, rest: list[str]) -> int:
    config = composed(options, rest).config
    from pipeline import tracking

    return tracking.ui(config.tracking, Path.cwd(), options.port)


def _bench(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands.bench import bench

    bench(options, rest)
    return DONE


def _predict(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands.predict import predict

    def config() -> RunConfig:
        return composed(options, options.set).config

    predict(options, rest, config, lambda: graph_and_store(options, options.set))
    return DONE


DISPATCH: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "run": _run,
    "plan": _plan,
    "status": _status,
    "why": _why,
    "graph": _graph,
    "show": _show,
    "lineage": _lineage,
    "config": _config,
    "ui": _ui,
    "doctor": _doctor,
    "bench": _bench,
    "predict": _predict,
}
