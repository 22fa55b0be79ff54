"""Schedules, decay, flat gradients, random keys and devices."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from model.bert import BertForPreTraining
from model.config import BertConfig
from stages.training.budget import course
from stages.training.device import Machine, autocast, backend, choose_device
from stages.training.gradients import FlatGradients
from stages.training.job import TrainConfig
from stages.training.optimisers import make_optimiser
from stages.training.randomness import key, permutation, seed_dropout
from stages.training.schedules import learning_rate
from stages.training.weights import moments_of, set_moments
from tests.oracle.plain_lamb import PlainLamb


def test_linear_schedule():
    rates = [learning_rate(s, 10, 4, 1.0, "linear") for s in range(10)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_cosine_and_constant_schedules():
    cosine = [learning_rate(s, 8, 4, 2.0, "cosine") for s in range(8)]
    expected = [1 + math.cos(math.pi * k / 4) for k in range(4)]
    assert cosine == pytest.approx([0.5, 1.0, 1.5, 2.0, *expected])
    assert [learning_rate(s, 5, 2, 1.0, "constant") for s in range(5)] == [0.5, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="unknown schedule 'sawtooth'"):
        learning_rate(5, 8, 4, 2.0, "sawtooth")


def test_warm_up_stable_decay():
    rates = [learning_rate(s, 10, 2, 1.0, "wsd", 4) for s in range(10)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    # Runs of several lengths share all but their ends.
    longer = [learning_rate(s, 99, 2, 1.0, "wsd", 4) for s in range(6)]
    assert longer == rates[:6]
    # Decay never reaches into warm-up.
    assert [learning_rate(s, 4, 2, 1.0, "wsd", 9) for s in range(4)] == [0.5, 1, 1, 0.5]
    assert learning_rate(3, 4, 2, 1.0, "wsd", 0) == 1.0


@given(
    st.integers(1, 500),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["linear", "cosine", "constant", "wsd"]),
)
def test_every_step_moves_and_none_above_the_peak(steps, warmup_share, decay_share, schedule):
    config = TrainConfig(
        steps, 1, 3.0, warmup_share=warmup_share, schedule=schedule, decay_share=decay_share
    )
    fitted = course(config, steps)
    warmup = fitted.warmup_steps
    rates = [fitted.rate(s, config) for s in range(steps)]
    assert all(0 < rate <= 3.0 for rate in rates)
    assert all(a <= b for a, b in pairwise(rates[:warmup]))
    assert all(a >= b for a, b in pairwise(rates[warmup:]))


def test_matrices_decay_and_nothing_else():
    model = BertForPreTraining(BertConfig(vocab_size=11, hidden_size=8, num_layers=1))
    optimiser = make_optimiser(model.parameters(), TrainConfig(10, 1, 1e-3, weight_decay=0.5))
    decay = {id(p): g["weight_decay"] for g in optimiser.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters():
        plain = name.endswith("bias") or "norm" in name
        assert decay.pop(id(parameter)) == (0.0 if plain else 0.5), name
    assert not decay


def test_adamw_is_that_of_the_paper_with_bias_correction():
    config = TrainConfig(10, 1, 0.1, weight_decay=0.3, beta1=0.9, beta2=0.99, epsilon=1e-6)
    weight = nn.Parameter(torch.full((2, 2), 1.5))
    optimiser = make_optimiser([weight], config)
    weight.grad = torch.full((2, 2), 0.2)
    optimiser.step()
    update = 0.2 / (math.sqrt(0.2**2) + 1e-6)
    assert weight[0, 0].item() == pytest.approx(1.5 * (1 - 0.1 * 0.3) - 0.1 * update, rel=1e-6)


@given(
    shapes=st.lists(
        st.sampled_from([(3, 5), (4, 1), (2, 3, 2), (6,), (1,)]), min_size=1, max_size=4
    ),
    decay=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_lamb_is_that_of_the_paper(shapes, decay, seed):
    """Also with weights, or gradients, that are all zero: then the ratio is 1."""
    generator = np.random.default_rng(seed)
    config = TrainConfig(
        10, 1, 0.0, optimizer="lamb", weight_decay=decay, beta1=0.9, beta2=0.99, epsilon=1e-6
    )
    weights = [generator.normal(size=shape) * (generator.random() < 0.8) for shape in shapes]
    ours = [nn.Parameter(torch.from_numpy(w.copy())) for w in weights]
    optimiser = make_optimiser(ours, config)
    plain = [
        PlainLamb(w, 0.9, 0.99, 1e-6, decay if w.ndim > 1 else 0.0, adapt=w.ndim > 1)
        for w in weights
    ]
    for rate in (0.1, 0.07, 0.02, 0.3):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for parameter, twin in zip(ours, plain, strict=True):
            gradient = generator.normal(size=parameter.shape) * (generator.random() < 0.8)
            parameter.grad = torch.from_numpy(gradient)
            twin.step(gradient, rate)
        optimiser.step()
    for parameter, twin in zip(ours, plain, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), twin.weights, rtol=1e-11, atol=1e-14)


def test_lamb_steps_are_as_long_as_the_weights():
    """The point of it: one rate moves each matrix by the same share, however large its gradient."""
    large, small = (nn.Parameter(torch.full((4, 4), size)) for size in (100.0, 0.01))
    optimiser = make_optimiser(
        [large, small], TrainConfig(9, 1, 0.1, weight_decay=0.0, optimizer="lamb")
    )
    before = [p.detach().clone() for p in (large, small)]
    large.grad, small.grad = torch.full((4, 4), 1e-3), torch.full((4, 4), 50.0)
    optimiser.step()
    for parameter, old in zip((large, small), before, strict=True):
        assert (1 - parameter / old).mean().item() == pytest.approx(0.1, rel=1e-3)


def test_muon_takes_the_encoder_s_matrices_alone():
    model = BertForPreTraining(BertConfig(vocab_size=11, hidden_size=8, num_layers=1))
    config = TrainConfig(10, 1, 1e-2, optimizer="muon", weight_decay=0.5)
    optimiser = make_optimiser(model.parameters(), config, model.bert.encoder.parameters())
    taken = {id(p) for g in optimiser.param_groups if "ns_steps" in g for p in g["params"]}
    names = {n for n, p in model.named_parameters() if id(p) in taken}
    assert names == {
        f"bert.encoder.layers.0.{layer}.weight"
        for layer in ("attention.qkv", "attention.output", "intermediate", "output")
    }
    together = [id(p) for g in optimiser.param_groups for p in g["params"]]
    assert sorted(together) == sorted(id(p) for p in model.parameters())
    decay = {id(p): g["weight_decay"] for g in optimiser.param_groups for p in g["params"]}
    assert all(decay[id(p)] == (0.5 if p.ndim > 1 else 0.0) for p in model.parameters())

    # The rates that the loop sets reach both parts.
    before = [p.detach().clone() for p in model.parameters()]
    for rate, moved in ((0.0, False), (0.1, True)):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert bool((parameter != old).any()) == moved
    with pytest.raises(ValueError, match="matrices of an encoder"):
        make_optimiser(model.parameters(), config)
    with pytest.raises(ValueError, match="unknown optimiser 'sgd'"):
        make_optimiser(model.parameters(), TrainConfig(10, 1, 1e-2, optimizer="sgd"))


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_moments_return_to_their_parameters(optimizer):
    def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        optimiser = make_optimiser(model.parameters(), config, model[0].parameters())
        for _ in range(steps):
            optimiser.zero_grad()
            model(torch.ones(5, 3)).square().sum().backward()
            optimiser.step()
        return model, optimiser

    config = TrainConfig(10, 1, 1e-2, optimizer=optimizer)
    model, optimiser = trained(3)
    moments = moments_of(model, optimiser)
    first = "momentum_buffer" if optimizer == "muon" else "exp_avg"
    assert {f"{first}/0.weight", "exp_avg_sq/2.bias", "step/1.weight"} <= moments.keys()
    fresh_model, fresh = trained(0)
    set_moments(fresh_model, fresh, moments)
    again = moments_of(fresh_model, fresh)
    assert again.keys() == moments.keys()
    assert all(torch.equal(again[n], moments[n]) for n in moments)

    # And they are used: a step from here is the step of a run that never stopped.
    fresh_model.load_state_dict(model.state_dict())
    for one, its in ((model, optimiser), (fresh_model, fresh)):
        its.zero_grad()
        one(torch.ones(5, 3)).square().sum().backward()
        its.step()
    for ours, theirs in zip(model.parameters(), fresh_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_flat_gradients_are_those_of_the_parameters():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    flat = FlatGradients(model.parameters(), figures=2)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    plain.load_state_dict(model.state_dict())
    for _ in range(2):
        flat.zero()
        plain.zero_grad()
        for batch in (torch.ones(4, 3), -2 * torch.ones(2, 3)):
            model(batch).square().sum().backward()
            plain(batch).square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.grad.data_ptr() % 64 == flat.gradients.data_ptr() % 64
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.7)
    assert flat.norm().item() == pytest.approx(norm.item(), rel=1e-6)
    flat.clip(float(flat.norm()), 0.7)
    assert flat.norm().item() == pytest.approx(0.7, rel=1e-5)
    flat.clip(float(flat.norm()), 9.0)
    assert flat.norm().item() == pytest.approx(0.7, rel=1e-5)
    assert flat.figures.tolist() == [0, 0]


def test_keys_tell_their_parts_apart():
    keys = {key(1, "a"), key("1", "a"), key(1, "b"), key(11, "a"), key(1, 1, "a"), key("1a")}
    assert len(keys) == 6


GOLDEN_ORDER = [2, 9, 1, 8, 5, 6, 0, 3, 7, 4]


def test_permutations_are_fixed():
    """Golden: another order here would break resuming of every run there is."""
    assert permutation(10, 5, "rows", 0, 3).tolist() == GOLDEN_ORDER
    assert sorted(permutation(1000, 1).tolist()) == list(range(1000))
    assert permutation(0, 1).tolist() == []
    firsts = [int(permutation(4, seed)[0]) for seed in range(400)]
    assert np.bincount(firsts).min() > 60


def test_dropout_differs_by_step_and_rank_alone():
    def draw(seed: int, step: int, rank: int) -> float:
        seed_dropout(seed, step, rank)
        return float(torch.rand(()))

    assert draw(1, 2, 0) == draw(1, 2, 0)
    assert len({draw(1, 2, 0), draw(1, 3, 0), draw(1, 2, 1), draw(2, 2, 0)}) == 4


@pytest.mark.parametrize(
    ("requested", "machine", "local_rank", "device"),
    [
        ("auto", Machine(0, False), 0, "cpu"),
        ("auto", Machine(0, True), 0, "cpu"),
        ("auto", Machine(8, False), 5, "cuda:5"),
        ("auto", Machine(1, False), 3, "cuda:0"),
        ("cpu", Machine(8, False), 5, "cpu"),
        ("cuda", Machine(2, False), 1, "cuda:1"),
        ("cuda:3", Machine(4, False), 0, "cuda:3"),
        ("mps", Machine(0, True), 0, "mps"),
    ],
)
def test_devices_of_machines_that_are_not_here(requested, machine, local_rank, device):
    assert choose_device(requested, machine, local_rank) == device


@pytest.mark.parametrize(
    ("requested", "machine", "local_rank", "message"),
    [
        ("cuda", Machine(0, False), 0, "torch sees 0 GPUs"),
        ("auto", Machine(2, False), 2, "torch sees 2 GPUs"),
        ("cuda:2", Machine(2, False), 0, "cuda:2 was asked for"),
        ("mps", Machine(2, False), 0, "no Apple GPU"),
        ("tpu", Machine(0, False), 0, "unknown device 'tpu'"),
        ("cuda:x", Machine(2, False), 0, "unknown device"),
    ],
)
def test_devices_that_are_not_there(requested, machine, local_rank, message):
    with pytest.raises(ValueError, match=message):
        choose_device(requested, machine, local_rank)


def test_backends_and_precision():
    assert (backend("cuda:1"), backend("cpu")) == ("nccl", "gloo")
    left = right = torch.ones(2, 2)
    with autocast("cpu", "bf16"):
        assert (left @ right).dtype == torch.bfloat16
    with autocast("cpu", "float32"):
        assert (left @ right).dtype == torch.float32


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this switch")
def test_freed_memory_is_kept():
    code = """
import resource, numpy as np
from stages.training.budget import course
from stages.training.device import keep_freed_memory
assert keep_freed_memory()
np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(8_000_000)
assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 2_000
"""
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})
