"""The machine and the versions that figures belong to, and how a process is held to one core."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = (
    "numpy",
    "pyarrow",
    "tokenizers",
    "nanotoken",
    "icu4py",
    "ray",
    "torch",
    "transformers",
    "nltk",
    "lddl",
    "bert-tensorflow",
)

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ARROW_IO_THREADS": "1",
}
"""Read by libraries when they are loaded, so they have to stand in a process from its start."""


def hold_to(cpus: int) -> list[int]:
    """Let this process and all it starts use `cpus` CPUs only, where the system can do that.

    Returns:
        Their numbers; none where the system has no such call (macOS).
    """
    if not hasattr(os, "sched_setaffinity"):
        return []
    # The last ones: the first CPU serves most interrupts.
    chosen = sorted(os.sched_getaffinity(0))[-cpus:]
    os.sched_setaffinity(0, chosen)
    return chosen


def one_core() -> None:
    """One thread on one core for this process, which was started with `ONE_THREAD`."""
    import pyarrow as pa

    hold_to(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def describe() -> dict[str, Any]:
    """Processor, CPUs, memory, system, and the versions of what is compared."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return {
        "processor": _processor(),
        "cpus": usable,
        "memory_gb": round(_memory_bytes() / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def sentence(machine: Mapping[str, Any]) -> str:
    """The same as one paragraph."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Measured on {machine['processor']} with {machine['cpus']} CPUs and "
        f"{machine['memory_gb']:g} GB of memory, {machine['system']}, "
        f"Python {machine['python']}, {versions}. MB are 10^6 bytes of raw UTF-8 text."
    )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()
