"""Peak memory of a worker over damaged files beside little and much good text.

`python -m bench.damaged_folder --data FOLDER --work FOLDER`: the same damaged files (4 of each
format and compression, 5 MB lines, wrong encodings, FIFOs, links) beside 20 and 200 MB that
`variation` makes of the corpora in FOLDER. Checked: in = out + reasons, examples that can be read,
and a peak that grows by less than 15 %.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from pathlib import Path

from bench.damage import write_damaged
from bench.formats import beginnings
from bench.shard_run import Shards, run_shard
from bench.variation import Variation

FLAT = 1.15
DOCUMENT_CHARACTERS = 20_000
DAMAGED_TEXTS = 300
"""Documents of each damaged file, of 1,000 characters at most."""


def main() -> int:
    """Measure, print, and say by the exit code whether all was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora")
    parser.add_argument("--work", type=Path, required=True, help="for what is made on the way")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[20, 200])
    parser.add_argument("--variants", type=int, default=4, help="of each format and compression")
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    work = options.work.resolve()
    texts = beginnings(options.data, DOCUMENT_CHARACTERS)
    damage = work / "damaged"
    shutil.rmtree(damage, ignore_errors=True)
    few = [text[:1000] for text in texts[:: max(1, len(texts) // DAMAGED_TEXTS)]]
    sources = write_damaged(damage, few, random.Random(0), options.variants)
    variation = Variation(texts)
    faults: list[str] = []
    peaks: list[int] = []
    for megabytes in options.megabytes:
        good = work / "good"
        shutil.rmtree(good, ignore_errors=True)
        written = variation.write(good, megabytes * 1e6)
        shards = run_shard(
            work,
            [*sources, {"name": "good", "paths": [str(good)], "format": "jsonl"}],
            options.cpus,
            encoding="detect",
            max_unreadable_share=1,
        )
        peaks.append(shards.worker_bytes)
        faults += _faults(shards, written.documents)
        print(
            f"{written.bytes / 1e6:.0f} MB of good text in {written.documents} documents: "
            f"{dict(shards.counts)}; {len(shards.quarantine)} examples; {shards.seconds:.0f} s, "
            f"peak of a worker {shards.worker_bytes / 1e6:.0f} MB",
            flush=True,
        )
    if max(peaks) > FLAT * min(peaks):
        faults.append(f"peaks differ by {max(peaks) / min(peaks) - 1:.0%}")
    print("\n".join(faults) or f"flat: peaks differ by {max(peaks) / min(peaks) - 1:.1%}")
    return 1 if faults else 0


def _faults(shards: Shards, good: int) -> list[str]:
    faults = []
    if missing := shards.missing():
        faults.append(f"{missing} documents are neither out nor counted")
    if shards.counts["out"] < good:
        faults.append(f"{shards.counts['out']} documents out, {good} good ones were given")
    for example in shards.quarantine:
        shown = example["snippet"].replace("\n", "").replace("\t", "")
        if not (example["source"] and example["detail"] and shown.isprintable()):
            faults.append(f"an example that cannot be read: {example}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
