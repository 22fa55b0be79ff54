"""The commands of `clozeline` and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pipeline.stage import UserError

ABOUT = """\
Pretrain BERT from your own raw text. A run is a graph of nodes (shard, vocab, pairs/128,
mask/128, pretrain/128, evaluate, export, and task/sst2, finetune/sst2 with task=sst2); what is made
already is not made again.
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
  clozeline run task=sst2 finetune.data=/data/glue    fine-tune it
  clozeline predict classify finetune/sst2 'a good film'
  clozeline ui                                        MLflow's pages on this machine

OVERRIDES are key=value (mask.probability=0.2) or group=option (model=base, experiment=smoke), in
any place on the line. A selector is a node (mask/128) or a stage (mask: all of its nodes).
exit codes: 0 done, 1 a stage failed, 2 wrong usage or config (nothing was started), 3 interrupted:
the same command goes on from there.
"""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of one command, and the words that are none: overrides, nodes, in their order.

    `options.command` is None when there is none. `--help` and `--version` end the process.

    Raises:
        UserError: an option or a command that there is not.
    """
    parser = _parser()
    # Behind "--" stand words, whatever they look like: texts to predict from.
    end = argv.index("--") if "--" in argv else len(argv)
    options, rest = parser.parse_known_args(argv[:end])
    unknown = [word for word in rest if word.startswith("-") and word != "-"]
    if unknown:
        command = f"{options.command} " if options.command else ""
        raise UserError(f"{' '.join(unknown)}: no such option; see clozeline {command}--help")
    if options.command is None:
        parser.print_help()
    return options, [*rest, *argv[end + 1 :]]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        start, choice, rest = message.partition("argument COMMAND: invalid choice: ")
        if choice and not start:
            message = _no_command(rest.split("'")[1])
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


class _Version(argparse.Action):
    def __call__(self, *_: object) -> None:
        from importlib import metadata

        try:
            print(f"clozeline {metadata.version('clozeline')}")
        except metadata.PackageNotFoundError:
            print("clozeline (not installed: runs from a checkout)")
        raise SystemExit(0)


def _parser() -> _Parser:
    shape = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "clozeline", description=ABOUT, epilog=EXAMPLES, formatter_class=shape, allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.about,
            description=command.about,
            usage=f"clozeline {name} {command.words}",
            epilog=command.more,
            formatter_class=shape,
            allow_abbrev=False,
        )
        for add in command.options:
            add(sub)
        sub.add_argument(
            "--conf-dir",
            type=Path,
            metavar="DIR",
            help="a folder of your own groups (DIR/model/mine.yaml); its files win over ours",
        )
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for a script")


def _selection(parser: argparse.ArgumentParser) -> None:
    for option, name, about in (
        ("--only", "only", "only this; what it needs must be there"),
        ("--from", "start", "this and what comes after it"),
        ("--until", "until", "this and what it needs"),
    ):
        parser.add_argument(
            option, dest=name, action="append", default=[], metavar="NODE", help=about
        )
    parser.add_argument("--force", action="store_true", help="make the selected nodes anew")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would be made, and why")
    parser.add_argument("--verbose", action="store_true", help="reasons and tracebacks too")
    parser.set_defaults(json=False)


def _graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "mermaid", "svg"), default="text", help="text by default"
    )
    parser.add_argument("--states", action="store_true", help="what is cached, what would run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write it there")


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--describe", action="store_true", help="show: say what each key means")


def _port(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=5000, help="of MLflow's pages (5000)")


def _bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--corpus", action="append", default=[], metavar="PATH", help="text; may stand repeatedly")
    add("--text-field", default="text", metavar="NAME", help="key or column of the text")
    add("--vocab", metavar="FILE", help="a vocab.txt; otherwise one is trained first")
    add("--base-megabytes", type=float, default=14.0, metavar="MB", help="text of one core (14)")
    add("--megabytes", type=float, default=500.0, metavar="MB", help="text through Ray (500)")
    add("--cpus", default="1,2", metavar="N,N", help="CPUs of the runs through Ray (1,2)")
    add("--memory-megabytes", metavar="MB,MB", help="sizes compared (100,1000; loader: 10,1000)")
    add("--distinct-words", type=int, default=500_000, metavar="N", help="of training (500,000)")
    add("--rounds", type=int, default=3, metavar="N", help="of each side, in turn (3)")
    add("--files", type=Path, metavar="DIR", help="loader: a mask artifact to read")
    add("--batch-size", type=int, default=256, metavar="N", help="loader: rows of a batch (256)")
    add("--micro-batch-tokens", type=int, default=8192, metavar="N", help="loader: (8192)")
    add("--no-peers", action="store_true", help="measure only what is ours")
    add("--json", type=Path, metavar="FILE", help="write the figures there")
    add("--work", metavar="DIR", help="for what is made on the way (a temporary folder)")
    add("--keep", action="store_true", help="leave it there")
    add(
        "--examples",
        action="append",
        default=[],
        metavar="FILE",
        help="train: masked rows in Parquet, for a corpus; again for rows of another length",
    )
    add("--entries", type=int, metavar="N", help="train: vocabulary, where the file has no size")
    add("--save-examples", metavar="FILE", help="train: only make that file, to measure elsewhere")
    add(
        "--length", type=int, default=128, metavar="N", help="train: of the rows of that file (128)"
    )
    add("--rows", type=int, metavar="N", help="train: of a step (64 on CPUs)")
    add("--steps", type=int, metavar="N", help="train: of a round")
    add("--precision", choices=("bf16", "float32"), default="bf16", help="train: (bf16)")
    add("--dropout", type=float, default=0.1, metavar="P", help="train: of both sides (0.1)")
    add("--threads", type=int, metavar="N", help="train: of torch (all CPUs)")
    add("--device", choices=("cpu", "cuda"), help="train: (the GPU where there is one)")


def _predict(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input", type=Path, metavar="FILE", help=".jsonl, .parquet, .csv, .tsv or .txt")
    for name, about in (
        ("text", "the text"),
        ("text-b", "the second text"),
        ("question", "the question"),
        ("context", "its context"),
        ("words", "words to tag: a list, or with spaces between"),
    ):
        add(f"--{name}", metavar="COLUMN", help=f"of FILE: {about} (named so)")
    add("--context-file", type=Path, metavar="FILE", help="answer: one context for all questions")
    add("--output", type=Path, metavar="FILE", help=".jsonl or .parquet; with --ray also a folder")
    add("--json", action="store_true", help="JSON lines on a terminal too")
    add("--top", type=int, metavar="K", help="fill-mask: tokens (5); answer: answers (1)")
    add("--normalise", action="store_true", help="embed: vectors of length 1")
    add(
        "--max-unusable-share",
        type=float,
        default=0.01,
        metavar="X",
        help="of rows that may be skipped (0.01)",
    )
    add("--batch-tokens", type=int, default=8192, metavar="N", help="through the model at once")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (auto)")
    add("--precision", choices=("float32", "bf16", "tf32"), default="float32", help="(float32)")
    add("--ray", action="store_true", help="through Ray, as files above 64 MB are")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="an override; repeatable")


@dataclass(frozen=True)
class Command:
    """A command: what it is for, its usage after the name, and what adds its options."""

    about: str
    words: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()
    more: str | None = None


_SELECTION = "[--only NODE] [--from NODE] [--until NODE] [--force]"

COMMANDS = {
    "run": Command(
        "make what is missing", f"[OVERRIDES] {_SELECTION} [--dry-run]", (_selection, _run)
    ),
    "plan": Command(
        "say what run would make, and why",
        f"[OVERRIDES] {_SELECTION} [--json]",
        (_selection, _json),
    ),
    "status": Command(
        "say what is there, what is being made, what failed", "[OVERRIDES] [--json]", (_json,)
    ),
    "why": Command("say which values make a node run again", "NODE [OVERRIDES] [--json]", (_json,)),
    "graph": Command(
        "draw the graph of a config",
        "[OVERRIDES] [--format text|mermaid|svg] [--states] [--output FILE]",
        (_graph,),
    ),
    "show": Command(
        "print a node's figures, and where its report is", "NODE [OVERRIDES] [--json]", (_json,)
    ),
    "lineage": Command(
        "print what a result was made from, back to the raw input",
        "NODE|PATH|models:/NAME/VERSION [OVERRIDES] [--json]",
        (_json,),
        "NODE is of a config; PATH an artifact's folder, or a file in it; models:/NAME/VERSION\n"
        "(or models:/NAME@ALIAS) a model that a run registered in MLflow, also without its store.",
    ),
    "config": Command(
        "show a run's configuration, or compare two",
        "show [OVERRIDES] [--describe] [--json] | diff A B [--json]",
        (_json, _describe),
        "show prints the resolved values and where each comes from; diff compares two configs.\n"
        "A and B are lists of overrides in quotes ('' is the default), or paths: of a resolved\n"
        "config, of a manifest.json, or of an artifact's folder.",
    ),
    "ui": Command("open MLflow's pages on this machine", "[OVERRIDES] [--port PORT]", (_port,)),
    "bench": Command(
        "measure data preparation on this machine, beside what others run, the loader, or training",
        "prep|loader|train [PART...] [--corpus PATH] [--vocab FILE] [--json FILE] ...",
        (_bench,),
        "Parts of prep: chain (one core, beside NVIDIA LDDL and google-research/bert where they\n"
        "are installed), kernels, vocabulary, stages (through Ray), memory. All but memory, when\n"
        "none is named. Without --corpus the text is the documentation of Python packages on this\n"
        "machine. Parts of loader: speed, and memory when it is named. Of train:\n"
        "mini and base, beside transformers, and ladder on a GPU.\n"
        "bench/README.md says what is compared and how.",
    ),
    "predict": Command(
        "use a model: fill in masks, classify, tag, answer, embed",
        "fill-mask|classify|pair|tag|answer|embed MODEL [TEXT...] [--input FILE] [--output FILE] "
        "...",
        (_predict,),
        "MODEL is a folder (of ours or of transformers), or a node of this config: export,\n"
        "finetune/NAME; overrides of the config stand behind --set. Texts stand behind MODEL; a\n"
        "line of standard input each, where there are none. pair takes two, answer a question and\n"
        "its context (in a line: a tab between). Texts that begin with a dash stand behind --.\n"
        "A table on a terminal, JSON lines elsewhere and with --ray. docs/prediction.md has\n"
        "examples.",
    ),
    "doctor": Command(
        "check this machine, and say what to do",
        "[OVERRIDES] [--port PORT] [--json]",
        (_json, _port),
    ),
}
