"""`clozeline run --until shard` as a person starts it, with the memory of its workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peaks import Peaks
from bench.processes import HOME
from pipeline.artifact import Artifact
from pipeline.store import Store


@dataclass(frozen=True)
class Shards:
    """What a run left.

    Attributes:
        artifact: of stage shard.
        counts: reason -> documents, with `in` and `out`.
        quarantine: examples of what was left out.
        worker_bytes: peak resident memory of the largest worker.
        seconds: of the stage.
    """

    artifact: Artifact
    counts: Mapping[str, int]
    quarantine: Sequence[Mapping[str, str]]
    worker_bytes: int
    seconds: float

    def missing(self) -> int:
        """Documents that are neither out nor counted under a reason."""
        lost = sum(n for reason, n in self.counts.items() if reason != "in")
        return self.counts["in"] - lost

    def provenance(self) -> pa.Table:
        """Columns document, part, source, id of all rows of both sides."""
        return self._tables("provenance")

    def rows(self) -> pa.Table:
        """The rows themselves."""
        return self._tables("")

    def _tables(self, folder: str) -> pa.Table:
        found = sorted((Path(self.artifact.data) / folder).glob("*.parquet"))
        return pa.concat_tables(map(pq.read_table, found))


def run_shard(
    work: Path, sources: Sequence[Mapping[str, Any]], cpus: int, **corpus: object
) -> Shards:
    """Run the stage in a new store below `work`.

    Args:
        sources: as `corpus.sources`.
        corpus: further keys of `corpus`.

    Raises:
        RuntimeError: it failed, or wrote a traceback.
    """
    conf, store = work / "conf", work / "store"
    for folder in (conf, store):
        shutil.rmtree(folder, ignore_errors=True)
    (conf / "corpus").mkdir(parents=True)
    # JSON is YAML.
    text = json.dumps({"defaults": ["mixed"], "sources": list(sources), **corpus})
    (conf / "corpus" / "measured.yaml").write_text(text, "utf-8")
    words = (
        *("--until", "shard", "--conf-dir", str(conf), "corpus=measured", f"store='{store}'"),
        *("tracking.enabled=false", f"cluster.num_cpus={cpus}", "cluster.num_gpus=0"),
    )
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    peaks = Peaks(lambda: "shard")
    said = work / "said.txt"
    with said.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "run", *words],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
        )
    largest = peaks.close()["shard"]
    output = said.read_text("utf-8", "replace")
    if done.returncode or re.search("traceback", output, re.IGNORECASE):
        raise RuntimeError(f"exit code {done.returncode}:\n{output[-5000:]}")
    (artifact,) = Store(str(store)).artifacts("shard")
    quarantine = json.loads((Path(artifact.data) / "quarantine.json").read_bytes())
    counts: Counter[str] = Counter(artifact.manifest["counts"])
    seconds = artifact.manifest["seconds"]
    return Shards(artifact, counts, quarantine, largest["worker"], seconds)
