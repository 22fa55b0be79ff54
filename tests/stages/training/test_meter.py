"""Rates, with a clock of our own."""

from __future__ import annotations

import pytest

from model.config import BertConfig
from stages.training.flops import model_flops
from stages.training.meter import Meter
from stages.training.packing import StepBatch

SHAPE = BertConfig(vocab_size=64, hidden_size=32, num_layers=2)
BATCH = StepBatch(
    (), tokens=1000, masked=150, pairs=20, padded_tokens=800, laid_tokens=750, share_tokens=600,
    squared_lengths=52_000,
)  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("stages.training.meter.time.perf_counter", lambda: now[0])
    return now


def step(meter: Meter, clock: list[float], waiting: float, working: float) -> None:
    meter.waiting()
    clock[0] += waiting
    meter.received(BATCH)
    clock[0] += working
    meter.stepped()


def test_rates_are_those_of_steps_alone(clock):
    flops = model_flops(SHAPE, 1000, 52_000, 150, 20)
    meter = Meter(SHAPE, peak=flops * 4, attention_is_padded=True)
    # A start that takes long, as after a resume or with a compiler, is in no figure.
    step(meter, clock, waiting=30, working=60)
    assert meter.read() == {}
    step(meter, clock, waiting=0.5, working=1.5)
    with meter.paused():
        clock[0] += 1000
    step(meter, clock, waiting=0.3, working=1.7)
    assert meter.read() == {
        "train/tokens_per_second": pytest.approx(500),
        "train/padding_share": pytest.approx(0.25),
        "train/data_wait_share": pytest.approx(0.2),
        "train/mfu": pytest.approx(2 / 4 / 4),
    }
    step(meter, clock, waiting=0, working=4)
    figures = meter.read()
    assert figures["train/tokens_per_second"] == pytest.approx(250)
    assert figures["train/data_wait_share"] == 0


def test_no_share_of_a_peak_that_is_not_known(clock):
    meter = Meter(SHAPE, peak=None, attention_is_padded=False)
    step(meter, clock, 1, 1)
    step(meter, clock, 1, 1)
    assert "train/mfu" not in meter.read()


def test_what_fills_up_a_fixed_shape_is_padding_for_any_attention(clock):
    meter = Meter(SHAPE, peak=None, attention_is_padded=False)
    step(meter, clock, 1, 1)
    step(meter, clock, 1, 1)
    step(meter, clock, 1, 1)
    assert meter.read()["train/padding_share"] == pytest.approx(1 - 600 / 750)
