from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.cpu_attention import _keep_bits, attend

B, S, H, D = 5, 37, 3, 16


def _inputs(padded: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(B, S, 3, H, D, generator=generator).bfloat16()
    weights = torch.randn(B, S, H, D, generator=generator).bfloat16()
    if not padded:
        return qkv, None, weights
    lengths = torch.tensor([37, 1, 20, 36, 5])
    mask = torch.arange(S) < lengths[:, None]
    return qkv, mask[:, None, None, :], weights * mask[:, :, None, None]


def _plain(qkv: Tensor, mask: Tensor | None, kept: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    scores = query @ key.transpose(-1, -2) / D**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return ((scores.softmax(-1) * kept) @ value).transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_values_and_gradients_are_those_of_float64(padded: bool, dropout: float) -> None:
    qkv, mask, weights = _inputs(padded)
    ours, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    torch.manual_seed(11)
    context = attend(ours, mask, dropout)
    context.backward(weights)
    torch.manual_seed(11)
    kept = torch.ones(B, H, S, S, dtype=torch.float64)
    if dropout:
        bits = _keep_bits(torch.Size([B * H, S, S]), round(dropout * 2**15))
        kept = bits.view(B, H, S, S).ne(0) / (1 - dropout)
    expected = _plain(exact, mask, kept)
    expected.backward(weights.double())
    assert ours.grad is not None and exact.grad is not None
    valid = weights.ne(0) if padded else torch.ones_like(weights, dtype=torch.bool)
    for found, wanted in ((context[valid], expected[valid]), (ours.grad, exact.grad)):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 0.01
    assert ours.detach().equal(qkv), "the input is not scaled in place"


def test_it_rounds_as_sdpa_does() -> None:
    qkv, mask, _ = _inputs(True)
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    assert mask is not None
    theirs = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
    torch.testing.assert_close(attend(qkv, mask, 0.0), theirs, rtol=0.02, atol=0.02)


def test_dropout_keeps_its_share_and_follows_the_seed() -> None:
    torch.manual_seed(5)
    bits = _keep_bits(torch.Size([400, 1000]), 3277)
    assert bits.unique().tolist() == [-1, 0]
    assert float(bits.eq(0).double().mean()) == pytest.approx(0.1, abs=0.002)
    qkv, mask, _ = _inputs(True)
    runs = []
    for seed, threads in ((5, 1), (5, 2), (6, 1)):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        runs.append(attend(qkv, mask, 0.1))
        torch.set_num_threads(before)
    assert runs[0].equal(runs[1]) and not runs[0].equal(runs[2])
