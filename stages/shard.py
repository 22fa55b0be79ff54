"""Stage shard: raw text -> clean documents in shards, validation documents apart.

Two passes. The first reads, cleans, cuts into sentences and hashes, and leaves pieces sorted by the
order key in the work folder. The driver then decides the cuts from keys and sizes alone, and the
second pass merges the range of each shard out of all pieces; many pieces are regrouped before
(`stages.shuffle`). A kill loses at most the splits, groups and shards that were being made.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.stage import Context, Result, StageError
from pipeline.store import ArtifactWriter
from stages.corpus_config import CorpusConfig
from stages.near_duplicates import drop_near_duplicates
from stages.parallel import Record, run_jobs
from stages.raw import corpus_listing
from stages.scratch import (
    read_scratch_json,
    remove_scratch,
    scratch_names,
    scratch_sizes,
    write_scratch_json,
)
from stages.shard_report import shard_result
from stages.shard_tally import Tally
from stages.shuffle import Layout, SpentRuns, plan_windows, regroup
from stages.text.cuts import Totals, Window, shard_cuts, shard_number
from stages.text.listing import DocsListing
from stages.text.pieces import SIDES
from stages.text.readers import UNREADABLE
from stages.text.splitting import splits

LEAST_VALIDATION_DOCUMENTS = 2

PLAIN_BYTES = 1_000_000_000
"""Up to such a size of the corpus as stored, pieces are not compressed: they are soon gone, before
most disks have to take them."""

KEPT_ROWS = 4_000_000
"""Of a corpus with so many rows the keys are held while it is planned; else they are read anew."""

MAX_SHARD_BYTES = 1_000_000_000
"""Later stages hold a shard as one column of strings, which ends at 2 GiB."""


def run(context: Context) -> Result:
    """Read every split, decide the cuts, write every shard."""
    config = _config(context)
    jobs = _reading_jobs(context, config)
    tally = _tally(context, jobs)
    try:
        _check_readable(tally, context.node.settings["corpus"])
    except StageError:
        _forget_unreadable(context, jobs)
        raise
    dropped = drop_near_duplicates(context, config, tally.pieces)
    layout, regrouped = regroup(context, tally.pieces, config.deduplicate)
    layout = dataclasses.replace(layout, dropped=dropped)
    cuts = _cuts(context, config, layout, tally)
    _write_shards(context, config, cuts, layout)
    return shard_result(context, tally, regrouped)


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
    done = _read_before(context.output)
    missing = [job for job in jobs if f"{job['number']:05d}.json" not in done]
    size, left = sum(s.bytes for s in work), sum(job["split"]["bytes"] for job in missing)
    context.progress.start(size / 1e6, "MB read", done=(size - left) / 1e6)
    arguments = {
        "output": context.output,
        "config": config,
        "seed": context.node.config["seeds"]["split"],
        "batch_bytes": int(context.node.settings["speed"]["batch_mb"] * 1e6),
        "packed": size > PLAIN_BYTES,
    }
    documents = 0
    # A large one that came last would keep all workers but one waiting.
    missing.sort(key=lambda job: -job["split"]["bytes"])
    for record in run_jobs(context, "stages.shard_workers:Reader", arguments, missing):
        documents += record["documents"]
        context.progress.advance(record["stored_bytes"] / 1e6, documents=documents)
    if missing and corpus_listing(config, Path.cwd()).fingerprint_entries() != (
        listing.fingerprint_entries()
    ):
        remove_scratch(context.output, (f"read/{job['number']:05d}.json" for job in missing))
        raise StageError("the corpus changed while it was read: run again, and it is read anew")
    return jobs


def _read_before(output: ArtifactWriter) -> set[str]:
    """Records of the splits that need not be read again: after a power cut, pieces may be gone."""
    sizes = scratch_sizes(output, "pieces")
    # Made from pieces that were whole, and these are removed then.
    regrouped = bool(scratch_names(output, "regrouped"))
    done = set()
    for name in scratch_names(output, "read"):
        record = read_scratch_json(output, f"read/{name}")
        if record is None:
            continue
        there = sum(sizes.get(piece, 0) for piece in record["pieces"])
        if regrouped or there == record["counts"].get("bytes_pieces", 0):
            done.add(name)
    return done


def _tally(context: Context, jobs: list[Record]) -> Tally:
    tally = Tally()
    for job in jobs:
        tally.add(read_scratch_json(context.output, f"read/{job['number']:05d}.json"))
    return tally


def _forget_unreadable(context: Context, jobs: list[Record]) -> None:
    """Have splits with files that could not be opened read again by the next run.

    A file whose permissions were mended, or whose disk is back, has the same size and time.
    """
    for job in jobs:
        name = f"read/{job['number']:05d}.json"
        if read_scratch_json(context.output, name)["rejects"].get("unreadable"):
            remove_scratch(context.output, [name])


def _check_readable(tally: Tally, settings: Mapping[str, Any]) -> None:
    bad = sum(n for reason, n in tally.rejects.items() if reason in UNREADABLE)
    share = bad / max(1, tally.counts["in"])
    if share > settings["max_unreadable_share"]:
        reasons = ", ".join(f"{n} {r}" for r, n in tally.rejects.items() if r in UNREADABLE)
        # One of each reason: a common one hides no other.
        each = {e["reason"]: e for e in tally.examples if e["reason"] in UNREADABLE}
        examples = "; ".join(
            f"{e['source']} {e['where'][:100]}".strip() + f": {e['detail'][:300]}"
            for e in list(each.values())[:3]
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
            "check corpus.paths, corpus.format, corpus.min_characters and rules that refuse them"
        )


def _cuts(
    context: Context, config: CorpusConfig, layout: Layout, tally: Tally
) -> dict[str, list[int]]:
    """First keys of the shards of each side."""
    output = context.output
    # The rows that they follow from are removed while shards are made.
    known: dict[str, list[int]] | None = read_scratch_json(output, "cuts.json")
    if known is not None:
        return known
    plans = {side: _Plan(output, layout, side, tally.counts["rows"]) for side in SIDES}
    _check_documents({side: plan.documents for side, plan in plans.items()}, tally, config)
    cuts = {
        "train": plans["train"].cuts(config.shard_bytes, config.shards),
        "validation": plans["validation"].cuts(config.shard_bytes),
    }
    # Else they follow from the pieces once more.
    write_scratch_json(output, "cuts.json", cuts, durable=layout.regrouped)
    return cuts


class _Plan:
    """The rows of a side as keys and sizes, a range at a time; those of a small corpus are kept."""

    def __init__(self, output: ArtifactWriter, layout: Layout, side: str, rows: int) -> None:
        self._read = functools.partial(plan_windows, output, layout, side)
        self._kept = list(self._read(whole=True)) if rows <= KEPT_ROWS else None
        self._total = Totals(0, 0)
        self.documents = 0
        for window, documents in self._windows():
            self._total = self._total.add(window)
            self.documents += documents

    def _windows(self) -> Iterable[tuple[Window, int]]:
        return self._read() if self._kept is None else self._kept

    def cuts(self, shard_bytes: int, shards: int | None = None) -> list[int]:
        """The first key of each shard but the first."""
        number = shard_number(self._total, shard_bytes, shards)
        if self._total.bytes / number > MAX_SHARD_BYTES:
            least = -(-self._total.bytes // MAX_SHARD_BYTES)
            raise StageError(
                f"{self._total.bytes / 1e9:.1f} GB of text in {number} shards are more than "
                f"{MAX_SHARD_BYTES / 1e9:g} GB a shard, which a worker does not hold: "
                + (
                    f"set corpus.shards to {least} or more, or to null (corpus.shard_bytes decides)"
                    if shards is not None
                    else f"lower corpus.shard_bytes below {MAX_SHARD_BYTES}"
                )
            )
        cuts = shard_cuts(lambda: (window for window, _ in self._windows()), self._total, number)
        return [int(key) for key in cuts]


def _check_documents(documents: Mapping[str, int], tally: Tally, config: CorpusConfig) -> None:
    total = sum(documents.values())
    if total < 2:
        found = tally.counts["documents"]
        equal = f" (its {found:,} documents are equal)" if found > 1 else ""
        raise StageError(
            f"the corpus holds one document only{equal}: NotNext pairs and a validation split "
            "need at least two. Give more documents, or split it (corpus.format=sentences: a blank "
            "line between documents)"
        )
    for side, least in (("validation", LEAST_VALIDATION_DOCUMENTS), ("train", 1)):
        if documents[side] < least:
            # Three documents on either side, as the draw goes.
            few = min(0.5, math.ceil(300 / total) / 100)
            share = few if side == "validation" else 1 - few
            raise StageError(
                f"{documents[side]} of {total} documents fell to the {side} side: set "
                f"corpus.validation_share={share:g} so that both sides get some (now "
                f"{config.validation_share:g}), or give more documents"
            )


def _write_shards(
    context: Context, config: CorpusConfig, cuts: Mapping[str, list[int]], layout: Layout
) -> None:
    """Second pass."""
    jobs: list[Record] = []
    for side, keys in cuts.items():
        bounds = [0, *keys, 2**64]
        jobs += [
            {"name": f"{side}-{i:05d}.parquet", "side": side, "low": low, "high": high}
            for i, (low, high) in enumerate(itertools.pairwise(bounds))
        ]
    finished = context.output.finished()
    missing = [job for job in jobs if job["name"] not in finished]
    context.progress.start(len(jobs), "shards", done=len(jobs) - len(missing))
    arguments = {
        "output": context.output,
        "layout": layout,
        "deduplicate": config.deduplicate,
    }
    spent = SpentRuns(context.output, layout, jobs, missing)
    for record in run_jobs(context, "stages.shard_workers:Merger", arguments, missing):
        spent.done(record["name"])
        context.progress.advance(1)
