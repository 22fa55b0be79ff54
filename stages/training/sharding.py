"""Weights, moments and gradients cut among the ranks (FSDP2, torch's `fully_shard`).

Each rank keeps its rows of every parameter and of its moments. A block's parameters are gathered
when it computes, and its gradients are summed and cut right after the last backward pass of a
step. What leaves the group of processes, checkpoints and final weights, is whole again: files know
nothing of shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.bert import BertForPreTraining

# `torch.distributed.tensor` takes half a second to import, and few runs need it.
if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def check_shardable(optimizer: str, compiled: bool) -> None:
    """Refuse what needs more of a parameter than a rank has.

    Raises:
        ValueError: the optimiser turns whole matrices, or the encoder is to be one graph.
    """
    if optimizer == "muon":
        raise ValueError(
            "rounding.sharding=full leaves each worker a part of every matrix, and "
            "train.optimizer=muon needs whole ones: set train.optimizer=adamw or lamb, or "
            "rounding.sharding=none"
        )
    if compiled:
        raise ValueError(
            "rounding.sharding=full gathers weights between the encoder's blocks, and "
            "rounding.compile=true makes one graph of them: set rounding.compile=false, or "
            "rounding.sharding=none"
        )


def shard(model: BertForPreTraining, device: torch.device) -> None:
    """Cut a model's parameters among all ranks, in place; they become DTensors on `device`.

    Embeddings and heads, which share the token table, are gathered together; each block alone.

    Args:
        model: its forward and backward passes are collective operations from now on.
        device: of this rank; the default process group takes its tensors.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    group = dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, device.type)
    for layer in model.bert.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by counts of the global batch, so that gradients are sums over
            # ranks; by default they are averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` cut it."""
    return hasattr(model, "set_requires_gradient_sync")


def sum_gradients(model: nn.Module, now: bool) -> None:
    """Whether the next backward pass of a sharded model sums gradients over ranks, with those of
    the passes before it, or leaves them whole on each rank."""
    cast("FSDPModule", model).set_requires_gradient_sync(now)


def release(model: nn.Module) -> None:
    """Free what a sharded model gathered for passes without a backward pass.

    It would be kept until the next backward pass, whatever became of the weights.
    """
    cast("FSDPModule", model).reshard()


def is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is this rank's part of a whole one."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This rank's part, which shares memory with `tensor`; a whole tensor as it is."""
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()
        return part


def own_part(parameter: Tensor | None, tensor: Tensor) -> Tensor:
    """What this rank keeps of a whole tensor: a copy of its part, cut as `parameter` is.

    Args:
        parameter: of a model, or None where `tensor` belongs to none.
        tensor: returned as it is unless the parameter is a shard of that shape.
    """
    if parameter is None or not is_shard(parameter) or parameter.shape != tensor.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # No rank sends anything: each holds the whole tensor for the moment.
    part = distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    return part.clone()


def gathered(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors one after another, on every rank; all ranks have to take all of them."""
    for name, tensor in tensors.items():
        yield name, tensor.full_tensor() if is_shard(tensor) else tensor
