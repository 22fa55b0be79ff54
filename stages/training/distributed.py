"""The few collective operations of training; each is a no-op in a process without a group."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    """Number of this process; 0 without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes; 1 without a group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_ranks(values: Tensor) -> None:
    """Adds up `values` over all ranks, in place. Every rank ends with the same bits."""
    if world_size() > 1:
        dist.all_reduce(values)


def barrier() -> None:
    """Waits until all ranks are here."""
    if world_size() > 1:
        dist.barrier()


def _all(name: str, tensor: Tensor) -> Tensor:
    return tensor


def from_rank_0(
    header: Any,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    keep: Callable[[str, Tensor], Tensor] = _all,
) -> tuple[Any, dict[str, Tensor]]:
    """Gives all ranks what rank 0 holds; what the others pass is ignored.

    Args:
        header: a JSON value.
        tensors: by name.
        device: where the group's backend takes tensors.
        keep: what a rank keeps of a tensor, by name; the rest is freed before the next comes.

    Returns:
        Header and tensors of rank 0; on the other ranks the tensors are on `device`.
    """
    if world_size() == 1:
        return header, dict(tensors)
    # Sent as JSON, so that no process unpickles what another sends.
    layout = [(n, list(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items()]
    text = torch.frombuffer(bytearray(json.dumps([header, layout]).encode()), dtype=torch.uint8)
    size = torch.tensor([len(text)], dtype=torch.int64, device=device)
    dist.broadcast(size, src=0)
    text = (
        text.to(device)
        if rank() == 0
        else torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    )
    dist.broadcast(text, src=0)
    kept = {}
    if rank() == 0:
        for name, tensor in tensors.items():
            dist.broadcast(tensor.to(device), src=0)
            kept[name] = keep(name, tensor)
        return header, kept
    header, layout = json.loads(bytes(text.cpu().numpy()))
    for name, shape, dtype in layout:
        received = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        dist.broadcast(received, src=0)
        kept[name] = keep(name, received)
    return header, kept
