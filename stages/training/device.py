"""The one place that knows about devices: which one, which backend, which precision."""

from __future__ import annotations

import ctypes
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

Precision = Literal["bf16", "float32"]


@dataclass(frozen=True)
class Machine:
    """What a process finds on its machine; made by `this_machine`, or by hand in tests.

    Attributes:
        cuda_devices: GPUs that the process sees.
        mps: whether Apple's GPU backend is there.
    """

    cuda_devices: int
    mps: bool


def this_machine() -> Machine:
    """Asks torch."""
    return Machine(
        cuda_devices=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        mps=torch.backends.mps.is_available(),
    )


def choose_device(requested: str, machine: Machine, local_rank: int = 0) -> str:
    """The device of a process.

    Args:
        requested: "auto" (CUDA where there is a GPU for this process, else CPU), "cpu", "cuda",
            "cuda:N" or "mps".
        machine: what is there.
        local_rank: number of this process among those of its host.

    Returns:
        A name for `torch.device`, with an index for CUDA.

    Raises:
        ValueError: the device is not there; the message says what is.
    """
    kind, _, number = requested.partition(":")
    if requested == "auto":
        return choose_device("cuda", machine, local_rank) if machine.cuda_devices else "cpu"
    if requested == "cpu":
        return "cpu"
    if requested == "mps":
        if not machine.mps:
            raise ValueError("device mps was asked for, but torch finds no Apple GPU")
        return "mps"
    if kind != "cuda" or (number and not number.isdigit()):
        raise ValueError(f"unknown device {requested!r}: auto, cpu, cuda, cuda:N or mps")
    # A process that sees one GPU was given it (Ray hides the others), whatever its rank.
    default = local_rank if machine.cuda_devices > 1 else 0
    index = int(number) if number else default
    if index >= machine.cuda_devices:
        raise ValueError(
            f"device cuda:{index} was asked for, but torch sees {machine.cuda_devices} GPUs: "
            "ask for fewer workers a host, or for device cpu"
        )
    return f"cuda:{index}"


def backend(device: str) -> Literal["gloo", "nccl"]:
    """The torch.distributed backend for tensors on `device`."""
    return "nccl" if device.startswith("cuda") else "gloo"


def keep_freed_memory() -> bool:
    """Let glibc's malloc keep what is freed, for this process; whether it could be set.

    By default it hands large buffers back to the system, and each step pays anew for the page
    faults of its activations: 6 % of the CPU time of a small model, 13 % with dropout. Values
    stay the same, and so does the peak of memory.
    """
    if sys.platform != "linux":
        return False
    trim_threshold, mmap_threshold = -1, -3  # Names of malloc.h.
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # Another C library.
        return False
    return all(mallopt(name, 1 << 30) == 1 for name in (mmap_threshold, trim_threshold))


def autocast(device: str, precision: Precision) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16, or nothing for float32; weights stay float32 either way."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)
