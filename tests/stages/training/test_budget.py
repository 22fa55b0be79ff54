"""What a budget comes to, and that runs keep to it."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.training.budget import batch_size, course, planned_steps
from stages.training.job import TrainConfig, Validation
from stages.training.loop import pretrain
from stages.training.rehearsal import Pace, _more_steps, steps_of_hours
from stages.training.weights import weights_of


def config(**changes: object) -> TrainConfig:
    values = {"steps": None, "global_batch_size": None, "learning_rate": 1e-3}
    return TrainConfig(**{**values, **changes})  # type: ignore[arg-type]


def test_exactly_one_budget_and_one_batch_size():
    assert planned_steps(config(steps=7), 16, None) == 7
    assert planned_steps(config(tokens=10_000), 16, 12.5) == 50
    assert planned_steps(config(hours=1.0), 16, None) is None
    assert batch_size(config(global_batch_size=9), None) == 9
    assert batch_size(config(global_batch_tokens=1000), 12.4) == 81
    assert batch_size(config(global_batch_tokens=3), 128.0) == 1
    for wrong in ({}, {"steps": 7, "tokens": 9}, {"tokens": 9, "hours": 1.0}):
        with pytest.raises(ValueError, match=r"one of train\.steps, train\.tokens and train"):
            planned_steps(config(**wrong), 16, 12.5)
    for wrong in ({}, {"global_batch_size": 1, "global_batch_tokens": 9}):
        with pytest.raises(ValueError, match=r"one of train\.global_batch_size"):
            batch_size(config(**wrong), 12.5)
    with pytest.raises(ValueError, match="mean length of the training rows"):
        planned_steps(config(tokens=10_000), 16, None)


@given(st.integers(1, 10**12), st.integers(1, 10**5), st.floats(8, 512))
def test_tokens_are_met_within_half_a_step(tokens, examples, mean):
    steps = planned_steps(config(tokens=tokens), examples, mean)
    assert steps is not None and steps >= 1
    a_step = examples * mean
    assert steps == 1 or abs(steps * a_step - tokens) <= a_step / 2 * (1 + 1e-9)


def test_hours_pay_for_rehearsal_and_held_out_figures():
    pace = Pace(step=0.5, evaluation=10.0, spent=600.0)
    assert steps_of_hours(1.0, pace, evaluate_every_steps=100) == 5000
    assert steps_of_hours(0.01, pace, evaluate_every_steps=100) == 1


@pytest.mark.parametrize(
    ("step", "hours", "more"),
    # 20 steps at least, 1 % of the budget, a minute at most.
    [(0.5, 0.1, 0), (0.25, 0.5, 52), (0.1, 24.0, 580), (10.0, 24.0, 0)],
)
def test_a_long_budget_is_measured_for_longer(step: float, hours: float, more: int):
    assert _more_steps(step, hours * 3600) == more


def test_the_schedule_is_fitted_to_the_steps():
    train = config(steps=None, hours=2.0, schedule="wsd", warmup_share=0.1, decay_share=0.2)
    fitted = course(train, 50)
    rates = [fitted.rate(step, train) for step in range(50)]
    assert (fitted.warmup_steps, fitted.decay_steps) == (5, 10)
    assert rates[4:40] == [1e-3] * 36 and rates[41] == pytest.approx(0.9e-3)


def test_tokens_become_steps_and_examples(make_job, recorder):
    train = {"steps": None, "tokens": 6000, "global_batch_size": None, "global_batch_tokens": 320}
    hooks = recorder()
    outcome = pretrain(make_job(train=train, mean_row_tokens=20.0), hooks)
    # 320 / 20 = 16 examples; 6000 / (16 * 20) = 18.75 steps.
    assert outcome.step == 19 and hooks.steps == 19
    same = pretrain(make_job(train={"steps": 19}, folder="same"), recorder())
    assert_same_weights(outcome, same)
    assert hooks.notices == [
        "train.global_batch_tokens=320: 16 examples; train.tokens=6000: 19 steps of 16 examples, "
        "as a training row has 20.0 tokens in the mean"
    ]


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 7 seconds whenever it is read."""
    ticks = count(0, 7)
    monkeypatch.setattr("stages.training.rehearsal.perf_counter", lambda: float(next(ticks)))


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_hours_become_steps_that_give_the_same_model(
    make_job, recorder, slow_clock, shards, optimizer
):
    """The rehearsal leaves no trace, and a resume keeps the number on a machine of another pace."""
    train = {
        "steps": None, "hours": 29.5 / 3600, "optimizer": optimizer, "checkpoint_every_steps": 4,
        "evaluate_every_steps": 20,
    }  # fmt: skip
    validation = Validation(files=shards[:1], mask_token_id=4, max_rows=20)
    broken = recorder(break_at=6)
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=train, validation=validation), broken)
    # A rehearsal of 21 s, 0.35 s a step, 7 s each 20 steps for held-out figures.
    assert broken.steps == 12 and broken.checkpoints == [0, 4]
    assert "12 steps" in broken.notices[0] and "train.steps=12" in broken.notices[0]

    resumed = recorder()
    outcome = pretrain(make_job(train=train, validation=validation, attempt="second"), resumed)
    assert (outcome.resumed_from, outcome.step, resumed.steps) == (4, 12, 12)
    assert not [text for text in resumed.notices if "train.hours" in text]

    plain = {**train, "hours": None, "steps": 12}
    same = pretrain(make_job(train=plain, folder="plain"), recorder())
    assert_same_weights(outcome, same)


def test_what_was_settled_outlives_a_kill_before_the_first_checkpoint(
    make_job, recorder, slow_clock
):
    train = {"steps": None, "hours": 0.01}
    first, second = recorder(break_at=2), recorder(stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=train), first)
    assert first.checkpoints == [0] and first.steps > 2
    outcome = pretrain(make_job(train=train, attempt="second"), second)
    assert outcome.resumed_from == 0 and second.steps == first.steps
    assert not [text for text in second.notices if "train.hours" in text]


def assert_same_weights(left, right) -> None:
    ours, theirs = weights_of(left.model), weights_of(right.model)
    assert ours.keys() == theirs.keys() and ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
