"""Every corpus of a folder in every format and compression, in one run of stage shard.

`python -m bench.every_format --data FOLDER --work FOLDER`: each format and compression is a source
of one mixed corpus. Checked: in = out + reasons, and out of each source the documents that it was
given, by the hash of their cleaned text, up to what the format cannot hold (`formats.HELD`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.formats import ALL, TITLE, beginnings, held, write
from bench.shard_run import Shards, run_shard
from stages.corpus_config import CorpusConfig
from stages.shard_tally import preparing_options
from stages.text.preparing import prepare_documents
from stages.text.readers import FORMATS
from stages.text.sharding import document_hash

ROUGH = "mediawiki"
"""Its markup cannot hold text to the letter: letters and digits are compared instead of hashes."""

CORPUS = {"deduplicate": False, "min_characters": 1}
"""Equal documents of several sources are to be seen, and a format that loses letters of a short one
is to lose no document."""


def main() -> int:
    """Measure, print, and say by the exit code whether all was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora")
    parser.add_argument("--work", type=Path, required=True, help="for what is made on the way")
    parser.add_argument("--characters", type=int, default=4000, help="of each document")
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    work = options.work.resolve()
    texts = beginnings(options.data, options.characters)
    corpus = work / "corpus"
    shutil.rmtree(corpus, ignore_errors=True)
    size = 0
    for format, ending in ALL:
        size += write(corpus / source_name(format, ending), format, ending, texts)
    sources = [
        {"name": name, "paths": [str(corpus / name)], "format": format}
        for format, ending in ALL
        for name in [source_name(format, ending)]
    ]
    print(f"{len(texts)} documents in {len(ALL)} sources, {size / 1e6:.0f} MB on disk", flush=True)
    began = time.perf_counter()
    shards = run_shard(work, sources, options.cpus, **CORPUS)
    faults = [*_sum_faults(shards), *_source_faults(shards, texts)]
    print(
        f"in {shards.counts['in']}, out {shards.counts['out']}, reasons "
        f"{ {k: n for k, n in shards.counts.items() if k not in ('in', 'out')} }; "
        f"{time.perf_counter() - began:.0f} s, peak of a worker {shards.worker_bytes / 1e6:.0f} MB"
    )
    print("\n".join(faults) or "every source gave the documents that it was given")
    return 1 if faults else 0


def source_name(format: str, ending: str) -> str:
    """The source of a format and compression."""
    return f"{format}{ending}".replace(".", "-")


def _sum_faults(shards: Shards) -> list[str]:
    missing = shards.missing()
    return [f"{missing} documents are neither out nor counted"] if missing else []


def _source_faults(shards: Shards, texts: Sequence[str]) -> list[str]:
    """What each source gave that it was not given, and the other way."""
    rows = shards.provenance()
    rows = rows.filter(pc.equal(rows["part"], 0))
    folder = pc.list_element(pc.split_pattern(rows["source"], "/", max_splits=1), 0)
    faults = []
    for format in FORMATS:
        wanted = expected(format, texts)
        for name in (source_name(*pair) for pair in ALL if pair[0] == format):
            own = rows.filter(pc.equal(folder, name))
            found = Counter(own["document"].to_pylist())
            if format == ROUGH:
                faults += _rough_faults(name, shards, own, texts)
            elif found != wanted:
                more, less = found - wanted, wanted - found
                faults.append(f"{name}: {more.total()} documents too many, {less.total()} too few")
    return faults


def expected(format: str, texts: Sequence[str]) -> Counter[bytes]:
    """Hashes of what a source of this format should give, cleaned as the stage cleans it."""
    as_held = [held(format, text) for text in texts]
    if format == "wikitext":
        as_held = [f"{TITLE}\n\n{text}" for text in as_held]
    return Counter(document_hash(_cleaned(format, as_held)).to_pylist())


def _cleaned(format: str, texts: Sequence[str]) -> pa.Array:
    options = preparing_options(CorpusConfig.model_validate(CORPUS), format)
    return prepare_documents(pa.array(texts), options).texts


def _rough_faults(name: str, shards: Shards, own: pa.Table, texts: Sequence[str]) -> list[str]:
    found = {row["document"]: row["id"] for row in own.to_pylist()}
    rows = shards.rows()
    mine = rows.filter(pc.is_in(rows["document"], pa.array(list(found), rows["document"].type)))
    parts: dict[bytes, dict[int, str]] = {}
    for row in mine.select(["document", "part", "text"]).to_pylist():
        parts.setdefault(row["document"], {})[row["part"]] = row["text"]
    differ = 0
    letters = [held(ROUGH, text) for text in _cleaned(ROUGH, texts).to_pylist()]
    for document, number in found.items():
        text = "".join(parts[document][i] for i in sorted(parts[document]))
        differ += held(ROUGH, text) != letters[int(number)]
    lost = len(texts) - own.num_rows
    return [f"{name}: {differ} differ, {lost} lost"] if differ or lost else []


if __name__ == "__main__":
    sys.exit(main())
