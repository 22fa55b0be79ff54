import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.bert import BertForPreTraining
from model.config import BertConfig
from model.losses import mlm_loss_sum, nsp_loss_sum
from stages.training.flops import model_flops, model_flops_utilisation, peak_flops

BASE = BertConfig(vocab_size=30_522, hidden_size=768, num_layers=12, num_heads=12)
LARGE = BertConfig(vocab_size=30_522, hidden_size=1024, num_layers=24, num_heads=16)


def test_terms_by_hand():
    # 12 layers of 4 x 768^2 + 2 x 768 x 3072 = 7,077,888 weights: 84,934,656, and 6 for each.
    assert model_flops(BASE, 1, 0, 0, 0) == 509_607_936
    # 12 x 12 x 768 for each pair of positions.
    assert model_flops(BASE, 0, 1, 0, 0) == 110_592
    # 6 x (768^2 + 768 x 30,522) = 6 x 24,030,720.
    assert model_flops(BASE, 0, 0, 1, 0) == 144_184_320
    # 6 x (768^2 + 2 x 768) = 6 x 591,360.
    assert model_flops(BASE, 0, 0, 0, 1) == 3_548_160
    # 24 layers of 12,582,912 weights.
    assert model_flops(LARGE, 1, 0, 0, 0) == 1_811_939_328


def test_a_step_by_hand():
    # 256 full rows of 512, 76 masked positions in each: 131,072 tokens, 256 x 512^2 pairs of
    # positions, 19,456 masked positions, 256 pairs.
    step = model_flops(LARGE, 131_072, 67_108_864, 19_456, 256)
    encoder = 131_072 * 1_811_939_328
    attention = 67_108_864 * 12 * 24 * 1024
    head = 19_456 * 6 * (1024 * 1024 + 1024 * 30_522)
    pooler = 256 * 6 * (1024 * 1024 + 2 * 1024)
    assert step == encoder + attention + head + pooler == 261_058_269_806_592
    # On one H200, in 0.586 s: 45 %.
    peak = peak_flops("NVIDIA H200", "bf16")
    assert peak == 989.4e12
    assert model_flops_utilisation(step, 0.586, peak) == pytest.approx(0.4503, abs=1e-4)


@pytest.mark.parametrize("nsp", [True, False])
def test_equals_what_torch_counts(nsp):
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_layers=3, num_heads=2, intermediate_size=40, nsp=nsp
    )
    model = BertForPreTraining(config, attention="sdpa").eval()
    batch, length = 3, 10
    tokens = batch * length
    ids, segments = torch.randint(50, (tokens,)), torch.zeros(tokens, dtype=torch.long)
    positions = torch.arange(length).repeat(batch)
    cu_seqlens = torch.arange(0, tokens + 1, length, dtype=torch.int32)
    masked, labels = torch.tensor([1, 2, 13, 25]), torch.tensor([4, 5, 6, 7])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        # Without labels: torch does not count products into a given buffer.
        output = model(ids, segments, positions, cu_seqlens, length, masked)
        loss = mlm_loss_sum(output.mlm_logits, labels)
        if nsp:
            loss = loss + nsp_loss_sum(output.nsp_logits, torch.tensor([True, False, True]))
        loss.backward()
    assert counter.get_total_flops() == model_flops(config, tokens, batch * length**2, 4, batch)


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-PCIE-32GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA GeForce RTX 4090", "tf32", 82.6),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", 80),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_peaks_of_devices_that_are_not_here(name, precision, tera):
    assert peak_flops(name, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("cpu", "bf16"),
        ("", "float32"),
        ("NVIDIA A1000", "bf16"),
        ("NVIDIA A10G", "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("Tesla T4", "tf32"),
        ("AMD Instinct MI355X", "tf32"),
    ],
)
def test_no_peak_is_guessed(name, precision):
    assert peak_flops(name, precision) is None


def test_an_unknown_precision_is_named():
    with pytest.raises(ValueError, match="unknown precision 'fp8'"):
        peak_flops("NVIDIA H200", "fp8")
