"""Placements on machines that are not here, and what is set on this one."""

from __future__ import annotations

import pytest
import torch

from stages.training.device import Machine, Placement, apply, autocast, place, this_machine
from stages.training.flops import peak_flops

CPU = Machine(0, False)
EIGHT_H100 = Machine(8, False, ("NVIDIA H100 80GB HBM3",) * 8, ((9, 0),) * 8)
TWO_UNLIKE = Machine(2, False, ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"), ((8, 0), (7, 0)))
APPLE = Machine(0, True)


def test_a_node_of_gpus():
    assert place("auto", "bf16", EIGHT_H100, local_rank=5) == Placement(
        device="cuda:5",
        name="NVIDIA H100 80GB HBM3",
        backend="nccl",
        fused_optimiser=True,
        pinned_copies=True,
        tf32=False,
        notices=(),
    )


def test_a_machine_without_gpus():
    placement = place("auto", "bf16", CPU, local_rank=3)
    assert placement == Placement("cpu", "", "gloo", True, False, False, ())
    assert peak_flops(placement.name, "bf16") is None


def test_apple():
    placement = place("mps", "float32", APPLE)
    assert placement == Placement("mps", "", "gloo", True, False, False, ())
    assert place("auto", "float32", APPLE).device == "cpu"


def test_each_device_is_judged_by_itself():
    new, old = (place("cuda", "bf16", TWO_UNLIKE, rank) for rank in (0, 1))
    assert new.notices == ()
    (notice,) = old.notices
    assert "Tesla V100-SXM2-16GB has no units for bf16" in notice
    assert "train.precision=float32" in notice
    assert peak_flops(new.name, "bf16") == 312e12
    assert peak_flops(old.name, "bf16") is None


@pytest.mark.parametrize(
    ("requested", "machine", "local_rank", "tf32"),
    [
        ("auto", EIGHT_H100, 1, True),
        ("auto", TWO_UNLIKE, 0, True),
        ("auto", TWO_UNLIKE, 1, False),
        ("cpu", EIGHT_H100, 0, False),
        ("mps", APPLE, 0, False),
    ],
)
def test_tf32_where_it_is_and_a_notice_elsewhere(requested, machine, local_rank, tf32):
    placement = place(requested, "tf32", machine, local_rank)
    assert placement.tf32 is tf32
    assert [n for n in placement.notices if "has no TF32" in n] == list(placement.notices)
    assert bool(placement.notices) is not tf32
    assert not place(requested, "float32", machine, local_rank).tf32
    assert place(requested, "float32", machine, local_rank).notices == ()


def test_a_gpu_of_which_torch_says_nothing():
    placement = place("cuda", "bf16", Machine(1, False))
    assert (placement.name, placement.notices) == ("", ())


def test_a_placement_is_applied_here():
    before = torch.get_float32_matmul_precision()
    assert apply(place("cpu", "tf32", this_machine())) == torch.device("cpu")
    # On CPUs "high" may round products too, and there the run is promised to the bit.
    assert torch.get_float32_matmul_precision() == before


def test_tf32_is_not_autocast():
    left = right = torch.ones(2, 2)
    with autocast("cpu", "tf32"):
        assert (left @ right).dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 needs a CUDA device")
def test_tf32_rounds_and_float32_does_not():
    machine = this_machine()
    if machine.compute_capabilities[0] < (8, 0):
        pytest.skip("this CUDA device has no TF32")
    left = torch.randn(256, 256, dtype=torch.float64)
    exact = left @ left.t()
    errors = {}
    for precision in ("float32", "tf32", "float32"):
        device = apply(place("cuda", precision, machine))
        product = (left.float().to(device) @ left.t().float().to(device)).cpu()
        errors[precision] = float((product - exact).abs().max() / exact.abs().max())
    assert errors["float32"] < 1e-6 < errors["tf32"] < 1e-2
