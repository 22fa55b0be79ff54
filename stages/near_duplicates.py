"""Near duplicates across the whole corpus, between the passes of stage shard.

The first pass leaves rows (key, origin, sketch) beside each piece; a range of keys of all of them
is compared in one place, and the pairs that are found join documents to clusters, of which one
document stays. Files, ranges and order change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.stage import Context
from pipeline.store import ArtifactWriter
from stages.corpus_config import CorpusConfig
from stages.parallel import JobFailed, Record, run_jobs
from stages.scratch import (
    open_scratch,
    remove_scratch,
    scratch_names,
    write_scratch,
    write_scratch_buffer,
)
from stages.shuffle import Batch, Opened
from stages.text.minhash import NearDuplicateOptions
from stages.text.near_duplicates import PAIR_SCHEMA, clusters, similar_pairs
from stages.text.pieces import write_ranges

BAND_BITS = 10
"""log2 of the ranges of keys that are compared one at a time."""

RANGES_A_JOB = 8
DROPPED = "dropped.parquet"


def near_duplicate_options(config: CorpusConfig) -> NearDuplicateOptions | None:
    """What counts as one; None when they are not looked for."""
    own = config.near_duplicates
    if not own.enabled:
        return None
    return NearDuplicateOptions(
        threshold=own.threshold, shingle_words=own.shingle_words, permutations=own.permutations
    )


def write_bands(output: ArtifactWriter, piece: str, tables: Sequence[pa.Table]) -> None:
    """Leave the rows of a piece (`near_duplicates.band_rows`) for `Matcher`."""
    rows = pa.concat_tables(tables).combine_chunks()
    rows = rows.take(
        pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("origin", "ascending")])
    ).combine_chunks()
    write_scratch_buffer(output, f"bands/{piece}", write_ranges(rows, BAND_BITS))


class Matcher:
    """Finds pairs among the rows of some ranges of keys."""

    def __init__(
        self, output: ArtifactWriter, pieces: Sequence[str], options: NearDuplicateOptions
    ) -> None:
        self._output = output
        self._files = tuple(f"bands/{piece}" for piece in pieces)
        self._options = options

    def __call__(self, job: Record) -> Record:
        """The pairs of `RANGES_A_JOB` ranges, from `job["range"]` on."""
        first = job["range"]
        pairs = [PAIR_SCHEMA.empty_table()]
        try:
            with Opened(self._output) as opened:
                for number in range(first, first + RANGES_A_JOB):
                    found = opened.read(Batch(self._files, number))
                    if found:
                        pairs.append(similar_pairs(pa.Table.from_batches(found), self._options))
            table = clusters(pa.concat_tables(pairs))
            write_scratch(self._output, f"pairs/{first:04d}.parquet", table)
        except OSError as error:
            raise JobFailed(f"comparing near duplicates: {error}") from None
        return {"range": first}


def drop_near_duplicates(context: Context, config: CorpusConfig, pieces: Sequence[str]) -> str:
    """Find documents that nearly equal another one; returns the scratch file that names them."""
    options = near_duplicate_options(config)
    if options is None:
        return ""
    output = context.output
    if DROPPED in scratch_names(output, "near"):
        return f"near/{DROPPED}"
    known = scratch_names(output, "bands")
    arguments = {
        "output": output,
        "pieces": [piece for piece in pieces if piece in known],
        "options": options,
    }
    done = scratch_names(output, "pairs")
    starts = range(0, 2**BAND_BITS, RANGES_A_JOB)
    jobs: list[Record] = [{"range": n} for n in starts if f"{n:04d}.parquet" not in done]
    context.progress.start(len(starts), "ranges", done=len(starts) - len(jobs))
    for _ in run_jobs(context, "stages.near_duplicates:Matcher", arguments, jobs):
        context.progress.advance(1)
    found = [PAIR_SCHEMA.empty_table()]
    for name in sorted(scratch_names(output, "pairs")):
        with open_scratch(output, f"pairs/{name}") as source:
            found.append(pq.read_table(source).cast(PAIR_SCHEMA))
    write_scratch(output, f"near/{DROPPED}", clusters(pa.concat_tables(found)))
    remove_scratch(output, (f"bands/{name}" for name in known))
    return f"near/{DROPPED}"
