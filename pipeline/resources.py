"""Sharing CPUs and GPUs among nodes that may run at the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.services import Capacity
from pipeline.stage import Granted, Resources


def resolved(need: Resources, whole: Capacity) -> Resources:
    """With infinity replaced by all that there is."""
    return Resources(
        whole.cpus if math.isinf(need.cpus) else need.cpus,
        whole.gpus if math.isinf(need.gpus) else need.gpus,
        need.memory_bytes,
    )


def missing(need: Resources, whole: Capacity) -> str | None:
    """What a node needs more than there is at all, as text; None when it can run."""
    if need.cpus > whole.cpus:
        return f"needs {need.cpus:g} CPUs, there are {whole.cpus:g}"
    if need.gpus > whole.gpus:
        return f"needs {need.gpus:g} GPUs, there are {whole.gpus:g}"
    if need.memory_bytes > whole.memory_bytes:
        gb = (need.memory_bytes / 1e9, whole.memory_bytes / 1e9)
        return f"needs {gb[0]:.1f} GB of memory, there are {gb[1]:.1f}"
    return None


def free(whole: Capacity, taken: Sequence[tuple[Granted, int]]) -> Capacity:
    """What is left; `taken` holds what running nodes were granted, and their memory in bytes."""
    return Capacity(
        whole.cpus - sum(granted.cpus for granted, _ in taken),
        whole.gpus - sum(granted.gpus for granted, _ in taken),
        whole.memory_bytes - sum(memory for _, memory in taken),
    )


def that_fit(needs: Sequence[Resources], left: Capacity) -> list[int]:
    """Which nodes fit together into what is left, earlier ones first."""
    chosen = []
    for i, need in enumerate(needs):
        if missing(need, left) is None:
            chosen.append(i)
            left = free(left, [(Granted(need.cpus, need.gpus), need.memory_bytes)])
    return chosen


def shares(needs: Sequence[Resources], left: Capacity) -> list[Granted]:
    """What nodes that fit together are given: what they need and an even share of the rest.

    The rest is shared in whole CPUs and GPUs, the first getting the remainder; GPUs go only to
    nodes that asked for some. A node alone gets everything.
    """
    cpus = _share([need.cpus for need in needs], left.cpus)
    on_gpu = [i for i, need in enumerate(needs) if need.gpus > 0]
    gpus = dict(zip(on_gpu, _share([needs[i].gpus for i in on_gpu], left.gpus), strict=True))
    return [Granted(cpu, gpus.get(i, 0.0)) for i, cpu in enumerate(cpus)]


def _share(needs: Sequence[float], whole: float) -> list[float]:
    if not needs:
        return []
    rest = whole - sum(needs)
    each = math.floor(rest / len(needs))
    first = rest - each * (len(needs) - 1)
    return [need + (each if i else first) for i, need in enumerate(needs)]
