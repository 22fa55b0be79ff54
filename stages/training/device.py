"""The one place that knows about devices: which one, which backend, which precision."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

Precision = Literal["bf16", "tf32", "float32"]
Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class Machine:
    """What a process finds on its machine; made by `this_machine`, or by hand in tests.

    Attributes:
        cuda_devices: GPUs that the process sees.
        mps: whether Apple's GPU backend is there.
        names: of the GPUs, as torch gives them; empty where they are not known.
        compute_capabilities: of the GPUs; empty where they are not known.
    """

    cuda_devices: int
    mps: bool
    names: tuple[str, ...] = ()
    compute_capabilities: tuple[tuple[int, int], ...] = ()


def this_machine() -> Machine:
    """Asks torch."""
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return Machine(
        cuda_devices=len(devices),
        mps=torch.backends.mps.is_available(),
        names=tuple(torch.cuda.get_device_name(n) for n in devices),
        compute_capabilities=tuple(torch.cuda.get_device_capability(n) for n in devices),
    )


@dataclass(frozen=True)
class Placement:
    """Where and how a process computes.

    Attributes:
        device: a name for `torch.device`, with an index for CUDA.
        name: of the GPU, for `peak_flops`; empty for other devices.
        backend: of torch.distributed.
        fused_optimiser: whether torch has one pass over memory for an optimiser's step there.
        pinned_copies: whether batches go through page-locked memory, copied while others compute.
        tf32: whether float32 products may be rounded to TF32.
        notices: what a person should know, a line each.
    """

    device: str
    name: str
    backend: Backend
    fused_optimiser: bool
    pinned_copies: bool
    tf32: bool
    notices: tuple[str, ...]


def place(requested: str, precision: Precision, machine: Machine, local_rank: int = 0) -> Placement:
    """Decide all of it; pure, so that it holds for machines that are not here.

    The precision is what was asked for on every device, as it is part of the mathematics: where
    a device has no units for it a notice says so.

    Raises:
        ValueError: as `choose_device`.
    """
    device = choose_device(requested, machine, local_rank)
    kind, _, number = device.partition(":")
    name, capability = "", None
    if kind == "cuda":
        index = int(number)
        name = machine.names[index] if machine.names else ""
        capabilities = machine.compute_capabilities
        capability = capabilities[index] if capabilities else None
    notices = []
    old = capability is not None and capability < (8, 0)
    if old and precision == "bf16":
        notices.append(
            f"{name or device} has no units for bf16 (they begin with compute capability 8.0), so "
            "torch computes it slowly through float32: train.precision=float32 is faster there"
        )
    if precision == "tf32" and (kind != "cuda" or old):
        notices.append(
            f"{name or device} has no TF32 (of CUDA devices from compute capability 8.0 on): "
            "products are computed in float32"
        )
    return Placement(
        device=device,
        name=name,
        backend=backend(device),
        fused_optimiser=kind in ("cpu", "cuda", "mps"),
        pinned_copies=kind == "cuda",
        tf32=precision == "tf32" and kind == "cuda" and not old,
        notices=tuple(notices),
    )


def apply(placement: Placement) -> torch.device:
    """Set the process up for a placement: the GPU, TF32, attention, malloc. Returns the device."""
    device = torch.device(placement.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high" if placement.tf32 else "highest")
        # From Hopper on, padded attention would go to cuDNN, which plans each new (rows, length)
        # for about a second, and micro-batches of text are seldom alike.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device.type == "cpu":
        keep_freed_memory()
    return device


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
            + ("ask for fewer workers a host, or for device cpu" if local_rank else "cpu is there")
        )
    return f"cuda:{index}"


def backend(device: str) -> Backend:
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


def peak_memory_gb(device: torch.device) -> float:
    """Most memory that this process held so far, in 10^9 bytes: of the GPU, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def memory_ran_out(error: RuntimeError, rounding: Mapping[str, Any]) -> str | None:
    """What to do about an error of torch that means too little memory; None for other errors.

    Args:
        error: of a step, or of held-out figures.
        rounding: the settings of that group: `micro_batch_tokens` and what else saves memory.
    """
    on_gpu = isinstance(error, torch.OutOfMemoryError)
    if not on_gpu and "not enough memory" not in str(error) and "DefaultCPU" not in str(error):
        return None
    advice = [f"lower rounding.micro_batch_tokens ({rounding['micro_batch_tokens']} now)"]
    if not rounding.get("gradient_checkpointing", True):
        advice.append("set rounding.gradient_checkpointing=true")
    if on_gpu and rounding.get("sharding") == "none":
        advice.append("on several GPUs rounding.sharding=full")
    said = " ".join(str(error).split())
    return (
        f"{'the GPU' if on_gpu else 'the machine'} ran out of memory: {' or '.join(advice)}; the "
        "result stays the same but for its last bits, and training goes on from its last "
        f"checkpoint. torch says: {said:.300}"
    )


def autocast(device: str, precision: Precision) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16, or nothing for float32 and TF32; weights stay float32."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)
