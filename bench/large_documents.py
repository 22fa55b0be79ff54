"""Peak memory of a worker of stage shard over one large document among small ones.

`python -m bench.large_documents --data FOLDER --work FOLDER`: a document of 10, 50, 100 and 250 MB
as a file of text, plain and as .gz, as a JSON line and as a page of a wiki. Checked: each is in the
shards or counted as too_large, and no worker takes 1.5 GiB.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from bench.formats import COMPRESS, beginnings, stored
from bench.shard_run import run_shard

KINDS = (("text", ""), ("text", ".gz"), ("jsonl", ""), ("mediawiki", ""))
MOST_BYTES = 1536 * 2**20
CHARACTERS = 100_000


def main() -> int:
    """Measure, print, and say by the exit code whether all was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora")
    parser.add_argument("--work", type=Path, required=True, help="for what is made on the way")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 50, 100, 250])
    parser.add_argument("--cpus", type=int, default=1)
    options = parser.parse_args()
    work = options.work.resolve()
    texts = beginnings(options.data, CHARACTERS)
    faults = 0
    for megabytes in options.megabytes:
        text = long_text(texts, megabytes * 1_000_000)
        for format, ending in KINDS:
            folder = work / "large"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / f"small{ending}").write_bytes(COMPRESS[ending](stored("jsonl", texts)))
            content = text.encode() if format == "text" else stored(format, [text])
            (folder / f"large{ending}").write_bytes(COMPRESS[ending](content))
            sources = [
                {"name": "small", "paths": [str(folder / f"small{ending}")], "format": "jsonl"},
                {"name": "large", "paths": [str(folder / f"large{ending}")], "format": format},
            ]
            shards = run_shard(work, sources, options.cpus, max_unreadable_share=1)
            left_out = shards.counts.get("too_large", 0)
            found = shards.provenance()["source"].to_pylist().count(f"large/large{ending}")
            wrong = shards.missing() or (found > 0) == (left_out > 0)
            faults += bool(wrong or shards.worker_bytes >= MOST_BYTES)
            print(
                f"{megabytes} MB as {format}{ending}: {found} parts, {left_out} too large, peak of "
                f"a worker {shards.worker_bytes / 2**20:.0f} MiB, {shards.seconds:.0f} s",
                flush=True,
            )
    print(f"{faults} faults" if faults else "every worker stayed below 1.5 GiB")
    return 1 if faults else 0


def long_text(texts: list[str], size: int) -> str:
    """One document of about `size` bytes, of all texts again and again."""
    once = "\n\n".join(texts)
    rounds = -(-size // len(once.encode()))
    many = "\n\n".join(f"Round {i}.\n\n{once}" for i in range(rounds))
    return many.encode()[:size].decode("utf-8", "ignore")


if __name__ == "__main__":
    sys.exit(main())
