"""The shuffle between the two passes of stage shard: an external merge sort through files.

The first pass leaves pieces; a shard is merged out of a range of keys of all of them. With many
pieces that would be too many files to open, so they are first regrouped: each group of about the
square root of their number (128 at least) becomes one run a range of keys. A shard then opens one
or two runs a group. Memory is that of one range, whatever the size of the corpus.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.stage import Context
from pipeline.store import ArtifactWriter
from stages.parallel import JobFailed, Record, run_jobs
from stages.scratch import (
    open_scratch,
    read_scratch_json,
    remove_scratch,
    scratch_names,
    write_scratch_buffer,
    write_scratch_json,
)
from stages.text.cuts import Window, distinct_rows
from stages.text.pieces import (
    BITS,
    FINE_BITS,
    PIECE_SCHEMA,
    PLAN_COLUMNS,
    between,
    first_batch,
    open_batches,
    plan_batch,
    ranges,
    write_run,
)
from stages.text.sharding import Merged, merge_rows

DIRECT_PIECES = 128
"""Up to so many pieces, shards are merged straight out of them."""

MERGED_BYTES = 4_000_000
"""Ranges that hold less are merged together with the next one."""

MOST_OPEN = 512
"""Files that are held open; of more, each is opened anew for each range."""


class Batch(NamedTuple):
    """Batch `number` of each of `files` holds the rows of one range of keys."""

    files: tuple[str, ...]
    number: int


@dataclass(frozen=True)
class Layout:
    """Where rows lie between the passes.

    Attributes:
        names: of the pieces, or of the groups of runs.
        regrouped: whether they are groups of runs.
        dropped: the scratch file of documents that stay out; "" for none.
    """

    names: tuple[str, ...]
    regrouped: bool = False
    dropped: str = ""

    def batches(self, side: str, low: int, high: int) -> Iterator[Batch]:
        """What holds the keys from `low` to `high` - 1 of a side, in the order of keys."""
        for number in ranges(BITS[side], low, high):
            if not self.regrouped:
                files = tuple(f"pieces/{name}" for name in self.names)
                yield Batch(files, first_batch(side) + number)
                continue
            files = self.files(side, number)
            # Of this range, the finer ones that are wanted.
            start = number << (64 - BITS[side])
            end = (number + 1) << (64 - BITS[side])
            fine = ranges(BITS[side] + FINE_BITS, max(low, start), min(high, end))
            yield from (Batch(files, i - (number << FINE_BITS)) for i in fine)

    def plan(self, side: str) -> Iterator[Batch]:
        """What holds the keys and sizes of a side, with or without text, in any order."""
        if self.regrouped:
            return self.batches(side, 0, 2**64)
        return iter([Batch(tuple(f"pieces/{name}" for name in self.names), plan_batch(side))])

    def files(self, side: str, number: int) -> tuple[str, ...]:
        """The runs of one range of a side."""
        return tuple(run_name(name, side, number) for name in self.names)


def run_name(group: str, side: str, number: int) -> str:
    """The scratch file that holds one range of a side of a group."""
    return f"runs/{group}/{side}-{number:03d}.arrow"


class Opened:
    """Scratch files that stay open while they are read, a batch at a time."""

    def __init__(self, output: ArtifactWriter, columns: Sequence[str] | None = None) -> None:
        self._output = output
        self._columns = columns
        self._open: dict[str, tuple[Any, Any]] = {}

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self._keep(())

    def read(self, batch: Batch) -> list[pa.RecordBatch]:
        """The rows of one range in each of the files; those without any are left out."""
        self._keep(batch.files)
        found = []
        for name in batch.files:
            if name not in self._open:
                source = open_scratch(self._output, name)
                self._open[name] = source, open_batches(source, self._columns)
            rows = self._open[name][1].get_batch(batch.number)
            if rows.num_rows:
                found.append(rows)
            if len(batch.files) > MOST_OPEN:
                self._keep(())
        return found

    def _keep(self, names: Sequence[str]) -> None:
        for name in self._open.keys() - set(names):
            source, _ = self._open.pop(name)
            source.close()


def plan_windows(
    output: ArtifactWriter, layout: Layout, side: str, whole: bool = False
) -> Iterator[tuple[Window, int]]:
    """The distinct rows of a side, range by range: keys and bytes, and how many documents.

    `whole`: all of them as one range.
    """
    dropped = Dropped(output, layout.dropped)
    columns = PLAN_COLUMNS if dropped.is_empty else (*PLAN_COLUMNS, "document")
    with Opened(output, columns) as opened:
        bits = 0 if whole else BITS[side]
        for number in range(2**bits):
            low, high = number << (64 - bits), (number + 1) << (64 - bits)
            batches = layout.plan(side) if whole else layout.batches(side, low, high)
            found = [b for batch in batches for b in opened.read(batch)]
            if not found:
                continue
            table, _ = dropped.split(pa.Table.from_batches(found))
            keys, part = table["key"].to_numpy(), table["part"].to_numpy()
            sizes = table["size"].to_numpy().astype("int64") * table["repeat"].to_numpy()
            documents = len(distinct_rows(keys[part == 0], sizes[part == 0]).keys)
            yield distinct_rows(keys, sizes), documents


class Dropped:
    """Documents that stay out of all shards, whatever source they are in.

    Args:
        name: of a scratch file with their origins in a column `origin`, sorted; "" for none.
    """

    def __init__(self, output: ArtifactWriter, name: str) -> None:
        self._origins = np.zeros(0, "S16")
        if name:
            with open_scratch(output, name) as source:
                column = pq.read_table(source, columns=["origin"])["origin"]
            self._origins = _as_bytes(column)
        self.is_empty = len(self._origins) == 0

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Rows that stay, and rows of documents that do not."""
        if self.is_empty:
            return rows, rows.slice(0, 0)
        origins = _as_bytes(rows["document"])
        at = np.minimum(np.searchsorted(self._origins, origins), len(self._origins) - 1)
        out = self._origins[at] == origins
        return rows.filter(pa.array(~out)), rows.filter(pa.array(out))


def _as_bytes(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    array = column.combine_chunks()
    data = np.frombuffer(array.buffers()[1] or b"", "S16")
    return data[array.offset : array.offset + len(array)]


def merged_ranges(
    output: ArtifactWriter,
    layout: Layout,
    side: str,
    low: int,
    high: int,
    deduplicate: bool,
) -> Iterator[Merged]:
    """The rows of a side from key `low` to `high` - 1, in order, a part of them at a time."""
    found: list[pa.RecordBatch] = []
    filled = 0
    with Opened(output) as opened:
        for batch in layout.batches(side, low, high):
            rows = [between(rows, low, high) for rows in opened.read(batch)]
            found += rows
            filled += sum(part["text"].nbytes for part in rows)
            # Each part costs the same, however small it is.
            if filled >= MERGED_BYTES:
                yield _merged(found, deduplicate)
                found, filled = [], 0
    if found:
        yield _merged(found, deduplicate)


def _merged(found: Sequence[pa.RecordBatch], deduplicate: bool) -> Merged:
    return merge_rows([pa.Table.from_batches(found, PIECE_SCHEMA)], deduplicate)


class Regrouper:
    """Makes the runs of a group out of its pieces."""

    def __init__(self, output: ArtifactWriter, deduplicate: bool) -> None:
        self._output = output
        self._deduplicate = deduplicate

    def __call__(self, job: Record) -> Record:
        """`job["pieces"]` become the runs of `job["group"]`."""
        began = time.perf_counter()
        layout = Layout(tuple(job["pieces"]))
        told: Counter[str] = Counter(duplicate_rows=0, duplicate_documents=0, bytes=0)
        try:
            with Opened(self._output) as opened:
                for side in BITS:
                    for number, batch in enumerate(layout.batches(side, 0, 2**64)):
                        merged = _merged(opened.read(batch), self._deduplicate)
                        data = write_run(merged.rows, side, number)
                        name = run_name(job["group"], side, number)
                        write_scratch_buffer(self._output, name, data)
                        told["duplicate_rows"] += merged.duplicate_rows
                        told["duplicate_documents"] += merged.duplicate_documents
                        told["bytes"] += data.size
        except (OSError, ValueError) as error:
            raise JobFailed(f"regrouping pieces: {error}") from None
        record = {**told, "seconds": time.perf_counter() - began}
        write_scratch_json(self._output, f"regrouped/{job['group']}.json", record)
        return record | {"group": job["group"]}


def regroup(context: Context, pieces: Sequence[str], deduplicate: bool) -> tuple[Layout, Record]:
    """Regroup many pieces, and remove them; a few stay as they are.

    Returns:
        The layout to merge shards from, and the sum of what the workers told.
    """
    if len(pieces) <= DIRECT_PIECES:
        return Layout(tuple(pieces)), {}
    output = context.output
    members = groups(pieces)
    done = scratch_names(output, "regrouped")
    jobs = [
        {"group": name, "pieces": list(own)}
        for name, own in members.items()
        if f"{name}.json" not in done
    ]
    if not done:
        # From now on pieces are removed: those that are left have to be there after a power cut.
        output.files.sync(output.work)
    context.progress.start(len(members), "groups", done=len(members) - len(jobs))
    for name in members.keys() - {job["group"] for job in jobs}:
        _remove_pieces(output, members[name])
    arguments = {"output": output, "deduplicate": deduplicate}
    for record in run_jobs(context, "stages.shuffle:Regrouper", arguments, jobs):
        # Not by the worker: a twin of it, on a node that counts as lost, may still be reading.
        _remove_pieces(output, members[record["group"]])
        context.progress.advance(1)
    total: Record = {}
    for name in members:
        for key, value in read_scratch_json(output, f"regrouped/{name}.json").items():
            total[key] = total.get(key, 0) + value
    return Layout(tuple(members), regrouped=True), total


def groups(pieces: Sequence[str]) -> dict[str, Sequence[str]]:
    """Pieces in groups of about equal number: as many as each holds, or fewer."""
    number = math.ceil(len(pieces) / max(DIRECT_PIECES, math.isqrt(len(pieces))))
    edges = [len(pieces) * i // number for i in range(number + 1)]
    return {f"{i:04d}": pieces[edges[i] : edges[i + 1]] for i in range(number)}


def _remove_pieces(output: ArtifactWriter, pieces: Sequence[str]) -> None:
    remove_scratch(output, (f"pieces/{name}" for name in pieces))


class SpentRuns:
    """Removes runs as soon as no shard needs them, so that they and the shards share the disk."""

    def __init__(
        self,
        output: ArtifactWriter,
        layout: Layout,
        jobs: Sequence[Record],
        missing: Sequence[Record],
    ) -> None:
        self._output = output
        self._layout = layout
        self._waiting: dict[tuple[str, int], set[str]] = {}
        self._needs: dict[str, list[tuple[str, int]]] = {}
        if not layout.regrouped:
            return
        for job in jobs:
            side = job["side"]
            needs = [(side, n) for n in ranges(BITS[side], job["low"], job["high"])]
            self._needs[job["name"]] = needs
            for key in needs:
                self._waiting.setdefault(key, set()).add(job["name"])
        for name in self._needs.keys() - {job["name"] for job in missing}:
            self.done(name)

    def done(self, name: str) -> None:
        """A shard is finished."""
        for key in self._needs.get(name, ()):
            self._waiting[key].discard(name)
            if not self._waiting[key]:
                remove_scratch(self._output, self._layout.files(*key))
