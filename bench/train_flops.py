"""What a step costs in floating point operations, and what a device can do at most."""

from __future__ import annotations

import numpy as np

from model.config import BertConfig
from stages.training.examples import Examples

PEAKS = {
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "4090": 165e12,
    "3090": 71e12,
    "A6000": 155e12,
}
"""Operations a second in dense bfloat16, from data sheets, by a part of the device's name;
the longest that fits counts."""


def peak(device_name: str) -> float | None:
    """Operations a second of a device in bfloat16; None when it is not in the table."""
    fitting = [name for name in PEAKS if name in device_name]
    return PEAKS[max(fitting, key=len)] if fitting else None


def model_flops(config: BertConfig, examples: Examples) -> float:
    """Operations of forward and backward over `examples`, padding and recomputation not counted.

    A token costs 6 (12 L d^2) + 12 L d s + p 6 (d^2 + d V), with s = E[len^2] / E[len] and p the
    share of positions that are to be predicted. (For a feed-forward layer of 4 d.)
    """
    d, layers, entries = config.hidden_size, config.num_layers, config.vocab_size
    matrices = 4 * d * d + 2 * d * config.feed_forward_size
    lengths = examples.input_ids.lengths.astype(np.float64)
    encoder = 6 * layers * matrices * lengths.sum()
    attention = 12 * layers * d * np.square(lengths).sum()
    head = 6 * (d * d + d * entries) * examples.masked
    return float(encoder + attention + head)
