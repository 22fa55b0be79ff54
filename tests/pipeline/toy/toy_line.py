"""A catalogue of small stages without Ray, and the command line over it.

`python toy_line.py run ...` is `clozeline run ...` with these nodes. What a stage does is set by
files in the current folder, so that a test can change it without a trace in the config.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pipeline import cli
from pipeline.stage import Context, Json, Node, RawInput, Result, Stage, StageError, Table
from stages.config import Config

ITEMS = 8


def shard(context: Context) -> Result:
    """Eight parts; waits in each while a file `slow` is there, for ever with `deaf`."""
    context.progress.start(ITEMS, "shards", len(context.output.finished()))
    for item in range(ITEMS):
        name = f"{item:05}.txt"
        if name in context.output.finished():
            continue
        while Path("deaf").exists():
            Path("hears-nothing").touch()
            time.sleep(0.05)
        if Path("slow").exists():
            time.sleep(0.3)
        context.stop.check()
        context.output.write_bytes(name, f"{item} {context.node.config['seeds']['split']}".encode())
        context.progress.advance()
    return Result(
        figures={"shards": ITEMS, "bytes_in": 1234567},
        counts={"in": 10, "out": 9, "duplicate": 1},
        unit="documents",
        report=[Table("Files", ["name", "documents"], [["a.txt", 10]])],
        samples=["One document."],
    )


def mask(context: Context) -> Result:
    """One part; fails while a file `broken` or `mistake` is there."""
    if Path("broken").exists():
        raise ZeroDivisionError("division by zero")
    if Path("mistake").exists():
        raise StageError("the corpus has one document: NotNext needs two")
    context.output.write_bytes("rows.txt", str(context.node.config["mask"]).encode())
    return Result({"masked_share": 0.15}, {"in": 9, "out": 9})


def remote(context: Context) -> Result:
    """Asks a Ray worker for the number of its process."""
    import ray

    number = ray.get(ray.remote(lambda: os.getpid()).remote())
    Path("asked").touch()
    while Path("slow-ray").exists():
        context.stop.check()
        time.sleep(0.1)
    context.output.write_bytes("worker.txt", b"asked")
    return Result({"worker": number}, {"in": 1, "out": 1})


def listing() -> RawInput:
    return RawInput([["a.txt", 3, 1]], "one file")


class ToyCatalog:
    config_model = Config

    def nodes(self, config: Config) -> list[Node]:
        made = [
            Node(
                "shard",
                _stage("shard"),
                {"seeds": {"split": config.seed_for("split")}},
                raw=listing,
            )
        ]
        masked = config.mask.model_dump(mode="json")
        made.append(Node("mask/128", _stage("mask"), {"mask": masked}, inputs={"shard": "shard"}))
        # Two nodes with Ray, one after the other, where a file says so.
        before = "mask/128"
        for name in ("remote/1", "remote/2") if Path("with-ray").exists() else ():
            stage = replace(_stage("remote"), needs_ray=True)
            made.append(Node(name, stage, {}, inputs={"before": before}))
            before = name
        return made

    def summary(self, figures: Mapping[str, Mapping[str, Json]]) -> list[str]:
        shares = [one["masked_share"] for one in figures.values() if "masked_share" in one]
        return [f"masked share {share:.1%}" for share in shares]


def _stage(name: str) -> Stage:
    return Stage(name, 1, f"toy_line:{name}", modules=("toy_line",), needs_ray=False)


if __name__ == "__main__":
    cli.catalog = ToyCatalog
    sys.exit(cli.main())
