"""The parts of `clozeline bench loader` as they are called in their processes."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyarrow.fs import LocalFileSystem

from bench.loader_rows import files_of, grow
from bench.processes import call
from bench.rounds import Times, alternate
from bench.settings import Settings as TextSettings
from model.config import BertConfig
from stages.training.bins import LengthBins
from stages.training.drawn_masks import DrawnMasks
from stages.training.job import NoHooks, Rounding, TrainConfig, TrainJob
from stages.training.loader import Loader, MixedSource
from stages.training.loop import pretrain
from stages.training.packing import StepBatch, step_batch
from stages.training.prefetch import prefetched
from stages.training.row_groups import Limits, ShardFile, read_index

LOCAL = LocalFileSystem()
LENGTH = 128
BINS = LengthBins(8, LENGTH)
SMALL_BATCH = 32
SPEED_MEGABYTES = 60.0
TOKENS = 10_000_000
"""Read by each side in each round."""
SEEKS = 15
SEED = 3
STEPS = 40
AHEAD = 4
"""Batches read ahead, as in training."""


def prepare(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of 128 tokens from text, unless files are given."""
    if argument["files"]:
        return {"files": [str(path) for path in files_of(Path(argument["files"]))]}
    from bench.documents import read_lines
    from bench.parts import prepare as prepare_text
    from bench.serial import Chain, validation_share

    work = Path(argument["work"])
    known = ("work", "corpus", "vocab", "text_field", "base_megabytes")
    settings = TextSettings(**{key: argument[key] for key in known})
    made = prepare_text({**vars(settings)})
    share = validation_share(made["documents"], sum(map(len, read_lines(settings.documents))))
    chain = Chain(
        settings.documents,
        work / "store",
        settings.vocab_file,
        f"corpus.validation_share={share}",
        f"pairs.max_seq_length={LENGTH}",
    )
    chain()
    return {"text": made, "entries": len(_vocabulary(argument))}


def speed(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens a second of the loader alone and with packing, and the time of first batches."""
    size, budget = argument["batch_size"], argument["micro_batch_tokens"]
    masked, pairs = _speed_files(argument)
    other = MixedSource(LOCAL, (masked,), 0.3)
    loaders: dict[str, Callable[[], Loader]] = {
        f"batches of {size} rows": partial(_loader, masked, size),
        f"batches of {SMALL_BATCH} rows": partial(_loader, masked, SMALL_BATCH),
        f"{size} rows, {BINS.count} length bins": partial(_loader, masked, size, bins=BINS),
        f"{size} rows, mixed 7 : 3": partial(_loader, masked, size, mix=(other,)),
    }
    if pairs:
        for strategy in ("per_token", "whole_word"):
            drawn = partial(_loader, pairs, size, masks=_masks(argument, strategy))
            loaders[f"{size} rows, masks drawn, {strategy}"] = drawn
    counted: dict[str, int] = {}
    sides: dict[str, Callable[[], object]] = {}
    for name, make in loaders.items():
        for packs in (False, True):
            sides[f"{name}|{packs}"] = _reading(make, budget if packs else None, counted, name)
            sides[f"{name}|{packs}"]()  # files into memory, code into its caches
    times = alternate(sides, argument["rounds"])
    return {
        "tokens": sum(counted.values()) // len(counted),
        "reading": {
            name: {
                key: _speeds(counted[name], times[f"{name}|{packs}"])
                for key, packs in (("alone", False), ("packed", True))
            }
            for name in loaders
        },
        "first_batch": {name: _seeks(make) for name, make in loaders.items()},
        "stored_bytes": sum(Path(file.path).stat().st_size for file in masked),
        "rows": sum(file.rows for file in masked),
    }


def memory(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Peak memory of a training worker, and of a loader that reads an epoch, on `megabytes`."""
    work = Path(argument["work"])
    folder = work / f"memory-{argument['megabytes']:g}"
    if argument["files"]:
        raise ValueError("bench loader memory makes its own rows: leave --files out")
    entries = len(_vocabulary(argument))
    made = grow(_stored(work, "mask"), folder, entries, _special(argument), argument["megabytes"])
    job = {**argument, "folder": str(folder), "entries": entries}
    peaks = {
        name: call(f"bench.loader_parts:{name}", job, work, single=True)
        for name in ("reader", "worker")
    }
    for path in folder.iterdir():
        path.unlink()
    return {**made, **peaks, "megabytes": argument["megabytes"]}


def reader(argument: Mapping[str, Any]) -> dict[str, int]:
    """A process that reads and packs, as training does, as many rows as the most there are.

    So all sizes make the same number of steps, and only what is stored differs.
    """
    started = _peak()
    files = _index(files_of(Path(argument["folder"])))
    size, budget = argument["batch_size"], argument["micro_batch_tokens"]
    loader = _loader(files, size)
    epochs = max(argument["memory_megabytes"]) / argument["megabytes"]
    steps = range(int(epochs * loader.rows(0)) // size)

    def prepared(step: int) -> StepBatch:
        return step_batch(loader.batch(step), 0, 1, budget, nsp=True)

    with prefetched(prepared, steps, AHEAD) as batches:
        tokens = sum(batch.tokens for batch in batches)
    return {"started_bytes": started, "peak_bytes": _peak(), "tokens": tokens}


def worker(argument: Mapping[str, Any]) -> dict[str, int]:
    """A process that trains a small model for some steps, with a checkpoint at the end."""
    started = _peak()
    files = _index(files_of(Path(argument["folder"])))
    steps = argument.get("steps", STEPS)
    job = TrainJob(
        model=BertConfig(
            vocab_size=argument["entries"], hidden_size=128, num_layers=2, num_heads=2
        ),
        train=TrainConfig(
            steps=steps,
            global_batch_size=SMALL_BATCH,
            learning_rate=1e-3,
            checkpoint_every_steps=steps,
        ),
        rounding=Rounding(micro_batch_tokens=2048, threads=1),
        seed=SEED,
        filesystem=LOCAL,
        copies=(files,),
        checkpoint_filesystem=LOCAL,
        checkpoint_folder=f"{argument['folder']}-checkpoints",
        fingerprint="0" * 64,
        attempt="bench",
        device="cpu",
        prefetch_batches=AHEAD,
    )
    outcome = pretrain(job, NoHooks())
    return {"started_bytes": started, "peak_bytes": _peak(), "tokens": outcome.tokens_seen}


def _loader(files: tuple[ShardFile, ...], batch_size: int, **more: Any) -> Loader:
    return Loader(LOCAL, (files,), SEED, batch_size, Limits(1 << 32, 1 << 16), **more)


def _reading(
    make: Callable[[], Loader], budget: int | None, counted: dict[str, int], name: str
) -> Callable[[], object]:
    def read() -> None:
        loader, tokens, index = make(), 0, 0
        while tokens < TOKENS:
            batch = loader.batch(index)
            tokens += batch.tokens
            index += 1
            if budget is not None:
                step_batch(batch, 0, 1, budget, nsp=batch.is_next is not None)
        counted[name] = tokens

    return read


def _speeds(tokens: int, times: Times) -> dict[str, float]:
    return {
        "tokens_per_second": tokens / times.seconds,
        "tokens_per_cpu_second": tokens / times.cpu_seconds,
    }


def _seeks(make: Callable[[], Loader]) -> dict[str, float]:
    """Milliseconds from nothing to the first batch: of all, and at 95 % of the first epoch."""
    probe = make()
    rows = probe.rows(0)
    late = int(0.95 * rows) // len(probe.batch(0))
    times = alternate({"first": lambda: make().batch(0), "late": lambda: make().batch(late)}, SEEKS)
    return {name: 1000 * side.seconds for name, side in times.items()} | {"late_index": late}


def _speed_files(
    argument: Mapping[str, Any],
) -> tuple[tuple[ShardFile, ...], tuple[ShardFile, ...]]:
    """Files of masked rows, and of pairs where the rows were made here."""
    if argument["files"]:
        return _index(files_of(Path(argument["files"]))), ()
    work = Path(argument["work"])
    entries, special = len(_vocabulary(argument)), _special(argument)
    grown = []
    for stage in ("mask", "pairs"):
        folder = work / f"speed-{stage}"
        grow(_stored(work, stage), folder, entries, special, SPEED_MEGABYTES)
        grown.append(_index(files_of(folder)))
    return grown[0], grown[1]


def _index(paths: list[Path]) -> tuple[ShardFile, ...]:
    return read_index(LOCAL, [str(path) for path in paths])


def _stored(work: Path, stage: str) -> list[Path]:
    return files_of(work / "store" / stage / str(LENGTH))


def _vocabulary(argument: Mapping[str, Any]) -> list[str]:
    path = argument["vocab"] or Path(argument["work"]) / "vocab.txt"
    return Path(path).read_text("utf-8").splitlines()


def _special(argument: Mapping[str, Any]) -> int:
    """The first id that is no special token."""
    from stages.text.special_tokens import SPECIAL_TOKENS

    vocabulary = _vocabulary(argument)
    return 1 + max(vocabulary.index(token) for token in SPECIAL_TOKENS)


def _masks(argument: Mapping[str, Any], strategy: Any) -> DrawnMasks:
    from stages.text.masking import MaskOptions, vocabulary_flags
    from stages.text.special_tokens import SPECIAL_TOKENS

    vocabulary = _vocabulary(argument)
    ordinary, continuation = vocabulary_flags(vocabulary, SPECIAL_TOKENS)
    options = MaskOptions(
        cls_id=vocabulary.index("[CLS]"),
        sep_id=vocabulary.index("[SEP]"),
        mask_id=vocabulary.index("[MASK]"),
        ordinary=ordinary,
        continuation=continuation,
        max_predictions=20,
        strategy=strategy,
    )
    return DrawnMasks(options, SEED)


def _peak() -> int:
    """Peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


torch.set_num_threads(1)
