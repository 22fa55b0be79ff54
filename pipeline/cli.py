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
from typing import TYPE_CHECKING, NoReturn

from pipeline.stage import Interrupted, StageError, UserError

if TYPE_CHECKING:
    from pipeline.config import Composed
    from pipeline.graph import Graph, Selection
    from pipeline.stage import Catalog
    from pipeline.store import Store

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 3
"""Exit codes: all done; a stage failed; wrong usage or config, nothing started; resumable."""

ABOUT = """\
Pretrain BERT from your own raw text. A run is a graph of nodes (shard, vocab, pairs/128,
mask/128, pretrain/128, evaluate, export); what is made already is not made again.
"""
EXAMPLES = """\
examples:
  clozeline run                                       the demo: a small BERT of Python's docs
  clozeline run corpus=text 'corpus.paths=[/data/books]' model=mini
  clozeline plan mask.probability=0.2                 what would run, and why
  clozeline run --until mask cluster.num_cpus=8       prepare data, do not train
  clozeline run --only vocab --force                  make one node anew
  clozeline why pretrain/128 train.learning_rate=3e-4
  clozeline config show experiment=two_phases         all values, and where each comes from
  clozeline ui                                        MLflow's pages on this machine

OVERRIDES are key=value (mask.probability=0.2) or group=option (model=base, experiment=smoke), in
any place on the line. A selector is a node (mask/128) or a stage (mask: all of its nodes).
exit codes: 0 done, 1 a stage failed, 2 wrong usage or config (nothing was started), 3 interrupted:
the same command goes on from there.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
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


def _say(error: Exception, code: int) -> int:
    sys.stdout.flush()
    print(f"clozeline: {error}", file=sys.stderr)
    return code


def _main(argv: list[str]) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        raise UserError(
            f"{' '.join(unknown)}: no such option; see clozeline {options.command or ''} --help"
        )
    if options.command is None:
        if rest:
            raise UserError(_no_command(rest[0]))
        parser.print_help()
        return USAGE
    run: Callable[[argparse.Namespace, list[str]], int] = options.function
    return run(options, rest)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        choice = "invalid choice: "
        if choice in message:
            message = _no_command(message.split(choice)[1].split("'")[1])
        raise UserError(f"{message}\nsee {self.prog} --help")


def _no_command(word: str) -> str:
    from difflib import get_close_matches

    alike = get_close_matches(word, COMMANDS, n=1)
    said = f"{word!r} is not a command."
    if alike:
        said += f" Perhaps you meant {alike[0]}."
    elif "=" in word:
        said += f" Perhaps you meant: clozeline run {word}"
    return f"{said}\nCommands: {', '.join(COMMANDS)}."


def _parser() -> _Parser:
    shape = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "clozeline",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=shape,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (function, about, arguments, build) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=about,
            description=about,
            usage=f"clozeline {name} {arguments}",
            formatter_class=shape,
            allow_abbrev=False,
        )
        sub.set_defaults(function=function)
        sub.add_argument(
            "--conf-dir",
            type=Path,
            metavar="DIR",
            help="a folder of your own groups (DIR/model/mine.yaml); its files win over ours",
        )
        build(sub)
    return parser


class _Version(argparse.Action):
    def __call__(self, *_: object) -> None:
        from importlib import metadata

        try:
            print(f"clozeline {metadata.version('clozeline')}")
        except metadata.PackageNotFoundError:
            print("clozeline (not installed: runs from a checkout)")
        raise SystemExit(DONE)


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


# --- the commands, each (options, the words that are no options) -> exit code ---------------------


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


def _graph(options: argparse.Namespace, rest: list[str]) -> int:
    from pipeline.commands import look

    drawn = look.graph_text(graph_and_store(options, rest)[0], options.format)
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


# --- options of each command ----------------------------------------------------------------------


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for a script")


def _selection_options(parser: argparse.ArgumentParser) -> None:
    for option, name, about in (
        ("--only", "only", "only this; what it needs must be there"),
        ("--from", "start", "this and what comes after it"),
        ("--until", "until", "this and what it needs"),
    ):
        parser.add_argument(
            option, dest=name, action="append", default=[], metavar="NODE", help=about
        )
    parser.add_argument("--force", action="store_true", help="make the selected nodes anew")


def _plan_options(parser: argparse.ArgumentParser) -> None:
    _selection_options(parser)
    _json_option(parser)


def _graph_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "mermaid", "svg"), default="text", help="text by default"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write it there")


def _config_options(parser: argparse.ArgumentParser) -> None:
    _json_option(parser)
    parser.add_argument("--describe", action="store_true", help="say what each key means (show)")
    parser.epilog = (
        "show prints the resolved config and where each value comes from; diff compares two.\n"
        "A and B are lists of overrides in quotes ('' is the default), or paths: of a resolved\n"
        "config, of a manifest.json, or of an artifact's folder."
    )


def _doctor_options(parser: argparse.ArgumentParser) -> None:
    _json_option(parser)
    _port_option(parser)


def _port_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=5000, help="of MLflow's pages (5000)")


_Command = tuple[
    Callable[[argparse.Namespace, list[str]], int],
    str,
    str,
    Callable[[argparse.ArgumentParser], None],
]
COMMANDS: dict[str, _Command] = {
    "plan": (
        _plan,
        "say what run would make, and why",
        "[OVERRIDES] [--only NODE] [--from NODE] [--until NODE] [--force] [--json]",
        _plan_options,
    ),
    "status": (
        _status,
        "say what is there, what is being made, what failed",
        "[OVERRIDES] [--json]",
        _json_option,
    ),
    "why": (
        _why,
        "say which values make a node run again",
        "NODE [OVERRIDES] [--json]",
        _json_option,
    ),
    "graph": (
        _graph,
        "draw the graph of a config",
        "[OVERRIDES] [--format text|mermaid|svg] [--output FILE]",
        _graph_options,
    ),
    "show": (
        _show,
        "print a node's figures, and where its report is",
        "NODE [OVERRIDES] [--json]",
        _json_option,
    ),
    "config": (
        _config,
        "show a run's configuration, or compare two",
        "show [OVERRIDES] [--describe] | diff A B [--json]",
        _config_options,
    ),
    "ui": (_ui, "open MLflow's pages on this machine", "[--port PORT]", _port_option),
    "doctor": (
        _doctor,
        "check this machine, and say what to do",
        "[--json]",
        _doctor_options,
    ),
}
