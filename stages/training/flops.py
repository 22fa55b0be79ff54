"""Model FLOPs of a training step and peak FLOPs of devices: what MFU is the ratio of.

MFU (Chowdhery et al. 2022, appendix B) = model FLOPs / (seconds x devices x peak of a device).
Model FLOPs are those that the mathematics needs, whatever the implementation spends: padding and
what gradient checkpointing computes again count nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from model.config import BertConfig


def model_flops(
    config: BertConfig, tokens: int, squared_lengths_sum: int, masked: int, pairs: int
) -> float:
    """FLOPs of forward and backward passes over some examples.

    A product of [m, k] and [k, n] takes 2 m k n, and its backward pass twice that. So each
    weight of a matrix costs 6 for each vector that goes through it: all tokens through the
    encoder, masked positions alone through the vocabulary head, [CLS] alone through the pooler.
    Attention's two products (scores, and sums of values) take 4 d len^2 a layer in a sequence of
    len tokens, 12 with their backward pass. Embedding look-ups, norms, GELU, softmax and the
    optimiser are left out, as usual.

    Args:
        config: the shape.
        tokens: real tokens, without padding.
        squared_lengths_sum: sum over the examples of (tokens of the example)^2.
        masked: masked positions.
        pairs: examples that the next sentence head sees; not counted when there is none.
    """
    width, inner = config.hidden_size, config.intermediate_size
    assert inner is not None
    layer = 4 * width * width + 2 * width * inner
    encoder = 6 * config.num_layers * layer * tokens
    attention = 12 * config.num_layers * width * squared_lengths_sum
    vocabulary_head = 6 * (width * width + width * config.vocab_size) * masked
    pair_head = 6 * (width * width + 2 * width) * pairs if config.nsp else 0
    return float(encoder + attention + vocabulary_head + pair_head)


def model_flops_utilisation(flops: float, seconds: float, peak: float) -> float:
    """MFU: the share of the devices' peak that went into the model.

    Args:
        flops: `model_flops` of all devices' work.
        seconds: in which it was done.
        peak: FLOP/s of all devices, of `peak_flops`.
    """
    return flops / (seconds * peak)


@dataclass(frozen=True)
class _Peak:
    """Dense TFLOP/s with float32 sums; None where the device has no such unit."""

    bf16: float | None
    fp16: float
    tf32: float | None
    float32: float


# Without structured sparsity: where a data sheet gives the sparse figure, half of it stands here.
# Sources, all of the vendors: data sheets of V100, V100S, T4, A100, A30, A40, A10, RTX A6000, L4,
# L40, L40S, RTX 6000 Ada, H100 (SXM, PCIe, NVL), H200 (SXM, NVL), HGX B200 and GB200; appendix A
# of the whitepapers of GA102 (RTX 3090), AD102 (RTX 4090) and RTX Blackwell (RTX 5090), their
# rows "with FP32 accumulate"; data sheets of AMD Instinct MI250X (a half of it is one device),
# MI300A, MI300X, MI325X, MI350X and MI355X, their rows "matrix" (TF32 of MI350X and MI355X was
# left out of the hardware).
# The order matters: the first pattern found in the name is the device.
_PEAKS: tuple[tuple[str, _Peak], ...] = (
    (r"gb200", _Peak(2500, 2500, 1250, 80)),
    (r"b200", _Peak(2250, 2250, 1125, 75)),
    (r"h200 nvl", _Peak(835.5, 835.5, 417.5, 60)),
    (r"h200", _Peak(989.4, 989.4, 494.7, 66.9)),
    (r"gh200", _Peak(989.4, 989.4, 494.7, 66.9)),
    (r"h100 pcie", _Peak(756, 756, 378, 51)),
    (r"h100 nvl", _Peak(835.5, 835.5, 417.5, 60)),
    (r"h100", _Peak(989.4, 989.4, 494.7, 66.9)),
    (r"a100", _Peak(312, 312, 156, 19.5)),
    (r"a30", _Peak(165, 165, 82, 10.3)),
    (r"a40", _Peak(149.7, 149.7, 74.8, 37.4)),
    (r"a10", _Peak(125, 125, 62.5, 31.2)),
    (r"rtx a6000", _Peak(154.8, 154.8, 77.4, 38.7)),
    (r"l40s", _Peak(362.05, 362.05, 183, 91.6)),
    (r"l40", _Peak(181.05, 181.05, 90.5, 90.5)),
    (r"l4", _Peak(121, 121, 60, 30.3)),
    (r"rtx 6000 ada", _Peak(364.25, 364.25, 182.1, 91.1)),
    (r"rtx 5090", _Peak(209.5, 209.5, 104.8, 104.8)),
    (r"rtx 4090", _Peak(165.2, 165.2, 82.6, 82.6)),
    (r"rtx 3090 ti", _Peak(80, 80, 40, 40)),
    (r"rtx 3090", _Peak(71, 71, 35.6, 35.6)),
    (r"v100s", _Peak(None, 130, None, 16.4)),
    (r"v100 pcie", _Peak(None, 112, None, 14)),
    (r"v100", _Peak(None, 125, None, 15.7)),
    (r"t4", _Peak(None, 65, None, 8.1)),
    (r"mi355x", _Peak(2516.6, 2516.6, None, 157.3)),
    (r"mi350x", _Peak(2306.9, 2306.9, None, 144.2)),
    (r"mi325x", _Peak(1307.4, 1307.4, 653.7, 163.4)),
    (r"mi300x", _Peak(1307.4, 1307.4, 653.7, 163.4)),
    (r"mi300a", _Peak(980.6, 980.6, 490.3, 122.6)),
    (r"mi250x", _Peak(191.5, 191.5, None, 47.85)),
)

# Parts of a device, and mobile or cut-down chips that bear a large one's name.
_OTHERS = re.compile(r"\b(mig|laptop|mobile|max-q|rtx 4090 d|rtx 5090 d|vgpu|grid)\b")


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak of one device in FLOP/s, by the vendor's data sheet.

    Args:
        device_name: as `torch.cuda.get_device_name` gives it, e.g. "NVIDIA A100-SXM4-80GB".
        precision: of matrix products: "bf16", "fp16", "tf32" or "float32".

    Returns:
        None for a device that is not known, for a part of one (MIG) and for a CPU: a guess would
        make a wrong share look right. None too where the device computes this precision without
        matrix units.

    Raises:
        ValueError: no such precision.
    """
    if precision not in ("bf16", "fp16", "tf32", "float32"):
        raise ValueError(f"unknown precision {precision!r}: bf16, fp16, tf32 or float32")
    name = " ".join(re.split(r"[\s_-]+", device_name.lower()))
    if _OTHERS.search(name.replace("max q", "max-q")):
        return None
    for pattern, peak in _PEAKS:
        if re.search(rf"\b{pattern}\b", name):
            tera: float | None = getattr(peak, precision)
            return None if tera is None else tera * 1e12
    return None
