import math

import pytest
import torch

import model.losses
from model.heads import vocabulary_logits
from model.losses import mlm_loss_sum, nsp_loss_sum, vocabulary_loss_sum

LOGITS = torch.tensor([[-0.11, 0.46, 0.12, 0.05, 0.25, -0.27]])  # seed 2.4
UNDERSTAND = torch.tensor([2])


def test_the_seed_s_loss_of_understand():
    # The seed takes -log of the rounded 0.168 and prints 1.784; unrounded it is 1.783.
    loss = mlm_loss_sum(LOGITS, UNDERSTAND)
    assert loss.item() == pytest.approx(1.783, abs=5e-4)
    assert -math.log(0.168) == pytest.approx(1.784, abs=5e-4)
    assert loss.item() == pytest.approx(-math.log(0.168), abs=2e-3)


def test_more_masked_positions_weigh_more():
    one = mlm_loss_sum(LOGITS, UNDERSTAND)
    three = mlm_loss_sum(LOGITS.expand(3, -1), UNDERSTAND.expand(3))
    torch.testing.assert_close(three, 3 * one)
    assert mlm_loss_sum(LOGITS[:0], UNDERSTAND[:0]) == 0


def test_the_loss_looks_at_the_label_alone_not_at_ranks():
    swapped = LOGITS[:, [1, 0, 2, 3, 4, 5]]
    torch.testing.assert_close(mlm_loss_sum(swapped, UNDERSTAND), mlm_loss_sum(LOGITS, UNDERSTAND))


def test_limits_of_cross_entropy():
    label = torch.tensor([0])
    assert mlm_loss_sum(torch.tensor([[100.0, 0.0]]), label) == 0
    assert mlm_loss_sum(torch.tensor([[0.0, 100.0]]), label) == 100
    assert mlm_loss_sum(torch.tensor([[-math.inf, 0.0]]), label) == math.inf


def test_class_0_is_is_next():
    sure_of_is_next = torch.tensor([[20.0, -20.0]])
    assert nsp_loss_sum(sure_of_is_next, torch.tensor([True])) < 1e-6
    assert nsp_loss_sum(sure_of_is_next, torch.tensor([False])) == pytest.approx(40)


def test_nsp_sums_over_sequences():
    logits, labels = torch.randn(5, 2), torch.tensor([True, False, False, True, False])
    each = sum(nsp_loss_sum(logits[i : i + 1], labels[i : i + 1]) for i in range(5))
    torch.testing.assert_close(nsp_loss_sum(logits, labels), each)


def test_losses_of_bfloat16_logits_are_computed_in_float32():
    logits = torch.randn(40, 300).bfloat16()
    labels = torch.randint(0, 300, (40,))
    loss = mlm_loss_sum(logits, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, mlm_loss_sum(logits.float(), labels))
    assert nsp_loss_sum(logits[:, :2], labels > 9).dtype == torch.float32


def loss_and_gradients(loss_of, factor=1.0):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(23, 16, generator=generator).requires_grad_()
    weight = torch.randn(90, 16, generator=generator).requires_grad_()
    bias = torch.randn(90, generator=generator).requires_grad_()
    labels = torch.randint(0, 90, (23,), generator=generator)
    loss = loss_of(hidden, weight, bias, labels)
    return loss, torch.autograd.grad(factor * loss, (hidden, weight, bias))


def whole(hidden, weight, bias, labels):
    return mlm_loss_sum(vocabulary_logits(hidden, weight, bias), labels)


@pytest.mark.parametrize("rows", [1, 5, 23, 1000])
def test_the_sliced_loss_equals_the_whole_one(monkeypatch, rows):
    monkeypatch.setitem(model.losses._BUFFER_BYTES, "cpu", (rows * 90 * 4, 3 * 90 * 4))
    torch.testing.assert_close(
        loss_and_gradients(vocabulary_loss_sum, 0.25), loss_and_gradients(whole, 0.25)
    )


def test_the_sliced_loss_under_autocast(monkeypatch):
    monkeypatch.setitem(model.losses._BUFFER_BYTES, "cpu", (5 * 90 * 4, 3 * 90 * 4))
    exact_loss, exact_gradients = loss_and_gradients(whole)
    with torch.autocast("cpu", torch.bfloat16):
        loss, gradients = loss_and_gradients(vocabulary_loss_sum)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact_loss.item(), rel=0.01)
    for rough, exact in zip(gradients, exact_gradients, strict=True):
        assert rough.dtype == torch.float32
        assert (rough - exact).abs().max() < 0.02 * exact.abs().max()


def test_the_sliced_loss_of_nothing_and_without_gradients():
    empty = torch.empty(0, 16), torch.randn(90, 16), torch.randn(90), torch.empty(0).long()
    assert vocabulary_loss_sum(*empty) == 0
    with torch.no_grad():
        hidden, labels = torch.randn(4, 16), torch.tensor([1, 2, 3, 89])
        loss = vocabulary_loss_sum(hidden, *empty[1:3], labels)
        torch.testing.assert_close(loss, whole(hidden, *empty[1:3], labels))
    assert not loss.requires_grad


def test_the_sliced_loss_gives_the_seed_s_number():
    # Unit vectors pick the seed's logits out of the table.
    loss = vocabulary_loss_sum(torch.ones(1, 1), LOGITS.T.contiguous(), torch.zeros(6), UNDERSTAND)
    assert loss.item() == pytest.approx(1.783, abs=5e-4)
