import pytest
import torch

from model.dropout import dropout


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("shape", [(1000, 1001), (7,), (3, 0)])
def test_rate_scale_and_independence(probability, shape):
    torch.manual_seed(1)
    result = dropout(torch.ones(shape), probability, training=True)
    kept = result[result != 0]
    torch.testing.assert_close(
        kept, torch.full_like(kept, 1 / (1 - probability)), atol=1e-4, rtol=0
    )
    if result.numel() < 1000:
        return
    dropped = (result == 0).float()
    assert dropped.mean().item() == pytest.approx(probability, abs=0.002)
    # Neighbours share a draw of 64 bits: they must not share their fate.
    flat = dropped.flatten()
    for lag in (1, 2, 3, 4, 1001):
        both = (flat[lag:] * flat[:-lag]).mean().item()
        assert both == pytest.approx(probability**2, abs=0.002)


def test_gradient_passes_where_the_value_did():
    torch.manual_seed(2)
    hidden = torch.randn(50, 8, requires_grad=True)
    result = dropout(hidden, 0.3, training=True)
    result.sum().backward()
    assert torch.equal(hidden.grad == 0, result == 0)
    torch.testing.assert_close(hidden.grad * hidden, result)


def test_off_returns_its_argument():
    hidden = torch.randn(3, 3)
    assert dropout(hidden, 0.5, training=False) is hidden
    assert dropout(hidden, 0.0, training=True) is hidden


def test_bits_depend_on_the_seed_and_not_on_threads():
    def draw(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        return dropout(torch.ones(300_001), 0.1, training=True)

    try:
        assert torch.equal(draw(1), draw(2))
    finally:
        torch.set_num_threads(1)


def test_bfloat16_keeps_its_type():
    assert dropout(torch.ones(9, dtype=torch.bfloat16), 0.1, True).dtype == torch.bfloat16
