"""Stage shard: raw text -> clean documents in shards, validation documents apart.

Two passes. The first reads, cleans, cuts into sentences and hashes, and leaves pieces sorted by the
order key in the work folder. The driver then decides the cuts from keys and sizes alone, and the
second pass merges the range of each shard out of all pieces. A kill loses at most the splits and
shards that were being made.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline.stage import Context, Result, StageError
from stages.config import CorpusConfig
from stages.parallel import Record, run_jobs
from stages.raw import corpus_listing
from stages.scratch import open_scratch, scratch_names
from stages.shard_report import shard_result
from stages.shard_workers import Tally
from stages.text.listing import DocsListing
from stages.text.readers import UNREADABLE
from stages.text.sharding import shard_cuts
from stages.text.splitting import splits

LEAST_VALIDATION_DOCUMENTS = 2


def run(context: Context) -> Result:
    """Read every split, decide the cuts, write every shard."""
    config = _config(context)
    jobs = _reading_jobs(context, config)
    tally = _tally(context, jobs)
    _check_readable(tally, context.node.settings["corpus"])
    cuts = _cuts(context, config, tally.pieces)
    _write_shards(context, config, cuts, tally.pieces)
    return shard_result(context, config, tally)


def _config(context: Context) -> CorpusConfig:
    # All of it: the slice that is fingerprinted knows no paths and no thresholds.
    return CorpusConfig.model_validate(context.node.settings["corpus"])


def _reading_jobs(context: Context, config: CorpusConfig) -> list[Record]:
    """First pass; returns the jobs of all splits, done before or now."""
    listing = corpus_listing(config, Path.cwd())
    if context.raw is not None and listing.fingerprint_entries() != list(context.raw.entries):
        raise StageError("the corpus changed while the run began: run again, and it is listed anew")
    work = splits(listing)
    jobs: list[Record] = [{"number": i, "split": s.to_json()} for i, s in enumerate(work)]
    if isinstance(listing, DocsListing):
        for absent in listing.missing:
            context.progress.note(f"corpus.distributions: {absent.path} left out: {absent.reason}")
    elif listing.skipped:
        first = ", ".join(f"{s.path} ({s.reason})" for s in listing.skipped[:3])
        context.progress.note(f"{len(listing.skipped)} files are not read: {first}")
    done = scratch_names(context.output, "read")
    missing = [job for job in jobs if f"{job['number']:05d}.json" not in done]
    size, left = sum(s.bytes for s in work), sum(job["split"]["bytes"] for job in missing)
    context.progress.start(size / 1e6, "MB read", done=(size - left) / 1e6)
    arguments = {
        "output": context.output,
        "config": config,
        "seed": context.node.config["seeds"]["split"],
        "batch_bytes": int(context.node.settings["speed"]["batch_mb"] * 1e6),
    }
    documents = 0
    for record in run_jobs(context, "stages.shard_workers:Reader", arguments, missing):
        documents += record["documents"]
        context.progress.advance(record["stored_bytes"] / 1e6, documents=documents)
    if missing and corpus_listing(config, Path.cwd()).fingerprint_entries() != (
        listing.fingerprint_entries()
    ):
        raise StageError("the corpus changed while it was read: run again, and it is read anew")
    return jobs


def _tally(context: Context, jobs: list[Record]) -> Tally:
    tally = Tally()
    output = context.output
    for job in jobs:
        data = output.files.read(f"{output.work}/read/{job['number']:05d}.json")
        assert data is not None
        tally.add(json.loads(data))
    return tally


def _check_readable(tally: Tally, settings: Mapping[str, Any]) -> None:
    bad = sum(n for reason, n in tally.rejects.items() if reason in UNREADABLE)
    share = bad / max(1, tally.counts["in"])
    if share > settings["max_unreadable_share"]:
        reasons = ", ".join(f"{n} {r}" for r, n in tally.rejects.items() if r in UNREADABLE)
        examples = "; ".join(
            f"{e['source']} {e['where']}".strip() + f": {e['detail']}" for e in tally.examples[:3]
        )
        raise StageError(
            f"{bad} of {tally.counts['in']} documents could not be read ({reasons}), more than "
            f"corpus.max_unreadable_share={settings['max_unreadable_share']:g} allows. "
            f"Examples: {examples}"
        )
    if not tally.counts["documents"]:
        reasons = ", ".join(f"{n} {reason}" for reason, n in tally.rejects.items()) or "none found"
        raise StageError(
            f"no document is left of {tally.counts['in']} ({reasons}): "
            "check corpus.paths, corpus.format and corpus.min_characters"
        )


def _cuts(
    context: Context, config: CorpusConfig, pieces: list[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """First keys of the shards of each side, from (key, size) of all rows: 13 bytes a document."""
    keys, sizes, held_out, parts = [], [], [], []
    for name in pieces:
        with open_scratch(context.output, f"pieces/{name}") as source:
            table = pq.read_table(source, columns=["key", "size", "validation", "part"])
        keys.append(table["key"].to_numpy())
        sizes.append(table["size"].to_numpy())
        held_out.append(table["validation"].to_numpy(zero_copy_only=False))
        parts.append(table["part"].to_numpy())
    key, size = np.concatenate(keys), np.concatenate(sizes)
    validation, part = np.concatenate(held_out), np.concatenate(parts)
    first = part == 0
    documents = {
        "train": len(np.unique(key[first & ~validation])),
        "validation": len(np.unique(key[first & validation])),
    }
    total = sum(documents.values())
    if total < 2:
        copies = int(np.count_nonzero(first))
        equal = f" (its {copies:,} documents are equal)" if copies > 1 else ""
        raise StageError(
            f"the corpus holds one document only{equal}: NotNext pairs and a validation split "
            "need at least two. Give more documents, or split it (corpus.format=sentences: a blank "
            "line between documents)"
        )
    for side, least in (("validation", LEAST_VALIDATION_DOCUMENTS), ("train", 1)):
        if documents[side] < least:
            raise StageError(
                f"{documents[side]} of {total} documents fell to the {side} side: set "
                "corpus.validation_share so that both sides get some (now "
                f"{config.validation_share:g}), or give more documents"
            )
    return {
        "train": shard_cuts(key[~validation], size[~validation], config.shard_bytes, config.shards),
        "validation": shard_cuts(key[validation], size[validation], config.shard_bytes),
    }


def _write_shards(
    context: Context,
    config: CorpusConfig,
    cuts: Mapping[str, np.ndarray[Any, Any]],
    pieces: list[str],
) -> None:
    """Second pass."""
    jobs = []
    for side, keys in cuts.items():
        bounds = [0, *(int(k) for k in keys), 2**64]
        jobs += [
            {"name": f"{side}-{i:05d}.parquet", "side": side, "low": low, "high": high}
            for i, (low, high) in enumerate(itertools.pairwise(bounds))
        ]
    finished = context.output.finished()
    missing = [job for job in jobs if job["name"] not in finished]
    context.progress.start(len(jobs), "shards", done=len(jobs) - len(missing))
    arguments = {
        "output": context.output,
        "pieces": pieces,
        "deduplicate": config.deduplicate,
    }
    for _ in run_jobs(context, "stages.shard_workers:Merger", arguments, missing):
        context.progress.advance(1)
