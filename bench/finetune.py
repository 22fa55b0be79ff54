"""Fine-tuning of ours beside transformers', and what pretraining is worth: see README.md.

    python -m bench.finetune parity     the first 50 losses from the same weights, without dropout
    python -m bench.finetune pays       a pretrained encoder against the same shape, drawn
    python -m bench.finetune peers      dev figures, time and tokens/s over seeds, in turn
    python -m bench.finetune answers    answers and tags that come back exactly, others by reason

Each writes its figures to `--json` as they come. One thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import finetune_answers, finetune_parity, finetune_pays, finetune_peers
from bench.finetune_data import LAYOUTS, model_folder, tasks_folder
from bench.machine import describe, sentence
from pipeline.commands.text import table

Keep = Callable[[dict[str, Any]], None]


def main(words: Sequence[str] | None = None) -> None:
    """Run one experiment, print its table."""
    options = _options(words)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"machine": describe(), "options": vars(options)}

    def keep(found: dict[str, Any]) -> None:
        if options.json:
            whole = json.dumps(figures | {options.experiment: found}, indent=1)
            Path(options.json).write_text(whole + "\n", "utf-8")

    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        for line in EXPERIMENTS[options.experiment](options, Path(folder), keep):
            print(line, flush=True)
    print(sentence(figures["machine"]))


def _parity(options: argparse.Namespace, work: Path, keep: Keep) -> list[str]:
    data, model = tasks_folder(options.data), model_folder(options.model)
    found: dict[str, Any] = {}
    for name in options.task or LAYOUTS:
        found[name] = finetune_parity.parity(name, data, model, work)
        keep(found)
        print(name, found[name]["largest_relative"], found[name]["seconds"], file=sys.stderr)
    return list(table(finetune_parity.HEADER, finetune_parity.lines(found)))


def _pays(options: argparse.Namespace, work: Path, keep: Keep) -> list[str]:
    if not options.model:
        raise SystemExit("pays: give --model, the data folder of a pretraining of ours")
    data = tasks_folder(options.data)
    found: dict[str, Any] = {}
    for name in options.task or finetune_pays.TASKS:

        def kept(part: dict[str, Any], name: str = name) -> None:
            keep(found | {name: part})
            print(name, part["choice"], part["figures"], file=sys.stderr, flush=True)

        found[name] = finetune_pays.pays(name, data, Path(options.model), work, options.seeds, kept)
    return list(table(finetune_pays.HEADER, finetune_pays.lines(found)))


def _peers(options: argparse.Namespace, work: Path, keep: Keep) -> list[str]:
    data, model = tasks_folder(options.data), model_folder(options.model)
    found: dict[str, Any] = {}
    for name in options.task or LAYOUTS:

        def kept(part: dict[str, Any], name: str = name) -> None:
            keep(found | {name: part})
            last = {s: (r[-1]["figures"], r[-1]["seconds"]) for s, r in part["runs"].items() if r}
            print(name, last, file=sys.stderr, flush=True)

        found[name] = finetune_peers.peers(name, data, model, work, options.seeds, kept)
    return list(table(finetune_peers.HEADER, finetune_peers.lines(found)))


def _answers(options: argparse.Namespace, work: Path, keep: Keep) -> list[str]:
    found = finetune_answers.answers(tasks_folder(options.data))
    keep(found)
    return list(table(finetune_answers.HEADER, finetune_answers.lines(found)))


EXPERIMENTS: dict[str, Callable[[argparse.Namespace, Path, Keep], list[str]]] = {
    "parity": _parity,
    "pays": _pays,
    "peers": _peers,
    "answers": _answers,
}


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.finetune", description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--task", nargs="+", choices=LAYOUTS, help="all that it is made for")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", help="folder of the task sets")
    parser.add_argument("--model", help="folder of a BERT in transformers' layout; MiniLM")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--work", help="folder for files on the way")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
