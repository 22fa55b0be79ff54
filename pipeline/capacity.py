"""What this process may use of the machine, asked without Ray or torch."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import psutil

LISTING_SECONDS = 10.0


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity and the container's quota counted in."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = read_text("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cpus = min(cpus, max(1, int(int(quota[0]) / int(quota[1]))))
    else:
        old_quota = read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        if old_quota and period and int(old_quota) > 0:
            cpus = min(cpus, max(1, int(int(old_quota) / int(period))))
    return cpus


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's or the container's."""
    total = int(psutil.virtual_memory().total)
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read_text(file)
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def visible_gpus() -> int:
    """NVIDIA GPUs that this process may use, counted without loading any library."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [w for w in (wanted or "").split(",") if w.strip() not in ("", "-1", "NoDevFiles")]
    if wanted is not None and not named:
        return 0
    devices = Path("/dev")
    there = sum(1 for d in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", d.name))
    if not there and (devices / "dxg").exists():
        # Linux on Windows (WSL 2) has one device for all GPUs.
        there = listed_gpus()
    return there if wanted is None else min(there, len(named))


@functools.cache
def listed_gpus() -> int:
    """GPUs that the NVIDIA driver lists; 0 where it has no `nvidia-smi`.

    Asked once a process: a run looks at what it may use several times a second.
    """
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LISTING_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def read_text(path: str) -> str:
    """The text of a small file; empty when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
