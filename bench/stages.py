"""The Ray stages shard, pairs, mask on a large corpus, and what a worker's memory comes to."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.documents import read_lines
from bench.processes import call
from bench.settings import Settings
from bench.through_ray import STAGES
from bench.variation import Variation, Written

SMALL_MEGABYTES = 2.0
"""The corpus whose time is nearly all fixed cost."""

LEAST_SMALL_DOCUMENTS = 30


def measure(settings: Settings) -> dict[str, Any]:
    """MB/s/core of the stages on each number of CPUs, scaling, fixed costs.

    A small and a large corpus give two points, and these a fixed cost and a rate: seconds =
    fixed + MB / rate.
    """
    variation = Variation(read_lines(settings.documents))
    small, large = settings.folder / "small", settings.folder / "large"
    written = variation.write(large, settings.megabytes * 1e6)
    # Another copy: held-out documents and all else must be there in a small corpus, too.
    wanted = max(
        min(SMALL_MEGABYTES * 1e6, settings.megabytes * 1e6 / 4),
        LEAST_SMALL_DOCUMENTS * written.bytes / written.documents,
    )
    few = variation.write(small, wanted, first_copy=1)
    runs: list[dict[str, Any]] = []
    for cpus in settings.cpus:
        fixed = _run(settings, small, few, cpus)
        whole = _run(settings, large, written, cpus)
        runs.append(_two_points(fixed, whole))
    shutil.rmtree(large)
    result: dict[str, Any] = {
        "megabytes": runs[0]["megabytes"],
        "documents": runs[0]["documents"],
        "new_words_per_mb": len(variation.respelled) / variation.bytes * 1e6,
        "runs": runs,
    }
    if len(runs) > 1:
        first, last = runs[0], runs[-1]
        result["scaling"] = first["total_seconds"] / last["total_seconds"]
        result["scaling_without_fixed_cost"] = first["work_seconds"] / last["work_seconds"]
        result["scaling_of"] = [first["cpus"], last["cpus"]]
    return result


def _two_points(small: Mapping[str, Any], large: Mapping[str, Any]) -> dict[str, Any]:
    """A run with what is fixed in each stage set apart."""
    more = large["megabytes"] - small["megabytes"]
    fixed: dict[str, float] = {}
    for stage in STAGES:
        a_mb = max(0.0, large["seconds"][stage] - small["seconds"][stage]) / more
        fixed[stage] = max(0.0, small["seconds"][stage] - a_mb * small["megabytes"])
    total = sum(large["seconds"].values())
    # Noise can make a corpus that is too small look as if all of its time were fixed.
    work = max(1e-3, total - sum(fixed.values()))
    return {
        **large,
        "small": {"megabytes": small["megabytes"], "seconds": small["seconds"]},
        "fixed_seconds": fixed,
        "stages_seconds": total,
        "work_seconds": work,
        "mb_per_second_core": large["megabytes"] / total / large["cpus"],
        "mb_per_second_core_without_fixed_cost": large["megabytes"] / work / large["cpus"],
    }


def measure_memory(settings: Settings) -> dict[str, Any]:
    """Peak resident memory of the workers of each stage for corpora of several sizes."""
    variation = Variation(read_lines(settings.documents))
    runs = []
    for megabytes in settings.memory_megabytes:
        folder = settings.folder / "large"
        written = variation.write(folder, megabytes * 1e6)
        runs.append(_run(settings, folder, written, max(settings.cpus), memory=True))
        shutil.rmtree(folder)
    worst = [
        max(kinds["worker"] for kinds in run["peaks"].values() if "worker" in kinds) for run in runs
    ]
    return {
        "megabytes": [run["megabytes"] for run in runs],
        "worst_worker_bytes": worst,
        "differ": max(worst) / min(worst) - 1,
        "runs": runs,
    }


def _run(
    settings: Settings,
    corpus: Path,
    written: Written,
    cpus: int,
    *,
    memory: bool = False,
) -> dict[str, Any]:
    store = settings.folder / "store"
    shutil.rmtree(store, ignore_errors=True)
    job = {
        "corpus": str(corpus),
        "store": str(store),
        "vocab_file": str(settings.vocab_file),
        "cpus": cpus,
        "bytes": written.bytes,
        "documents": written.documents,
        "memory": memory,
    }
    result = call("bench.through_ray:measure", job, settings.folder)
    shutil.rmtree(store, ignore_errors=True)
    return result
