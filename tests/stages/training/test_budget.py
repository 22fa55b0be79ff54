"""What a budget comes to, and that runs keep to it."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.training.budget import batch_size, course, planned_steps
from stages.training.job import TrainConfig, Validation
from stages.training.loop import pretrain
from stages.training.rehearsal import BudgetError, Pace, Timing, steps_of_hours
from stages.training.weights import weights_of
from tests.conftest import ROOT


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
    # 3600 - 600 - 10 for the figures after the last step; 0.6 s a step with its share of others.
    assert steps_of_hours(1.0, pace, evaluate_every_steps=100) == 4983
    assert steps_of_hours(0.01, pace, evaluate_every_steps=100) == 0


@pytest.mark.parametrize(
    ("step", "hours", "unmeasured", "measured"),
    [
        # 20 steps at least; 1 % of the budget; a minute at most.
        (0.5, 0.1, 5, 20),
        (0.25, 0.5, 5, 72),
        (0.125, 24.0, 5, 480),
        # Slow ones: the rehearsal ends after 2 % of the budget, or two minutes, or two steps.
        (10.0, 1.0, 5, 7),
        (40.0, 24.0, 5, 20),
        (235.0, 24.0, 4, 4),
        (235.0, 0.1, 1, 1),
    ],
)
def test_a_rehearsal_lasts_as_its_budget_has_it(
    step: float, hours: float, unmeasured: int, measured: int
):
    timing, now, made = Timing(hours * 3600), 0.0, 0
    last = False
    while not last:
        now += step
        last = timing.is_last(now)
        timing.stepped(now)
        made += 1
    assert (made - timing.made, timing.made) == (unmeasured, measured)
    assert timing.step == pytest.approx(step)


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
    """A clock that goes on by 0.1 seconds whenever it is read."""
    ticks = count()
    monkeypatch.setattr("stages.training.rehearsal.perf_counter", lambda: 0.1 * next(ticks))


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_hours_become_steps_that_give_the_same_model(
    make_job, recorder, slow_clock, shards, optimizer
):
    """The rehearsal leaves no trace, and a resume keeps the number on a machine of another pace."""
    train = {
        "steps": None, "hours": 7.8 / 3600, "optimizer": optimizer, "checkpoint_every_steps": 4,
        "evaluate_every_steps": 20,
    }  # fmt: skip
    validation = Validation(files=shards[:1], mask_token_id=4, max_rows=20)
    broken = recorder(break_at=6)
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=train, validation=validation), broken)
    # A rehearsal of 5.2 s, 0.2 s a step, 0.1 s for held-out figures, each 20 steps and at the end.
    assert broken.steps == 12 and broken.checkpoints == [0, 4]
    assert "measuring" in broken.notices[0]
    assert "12 steps" in broken.notices[1] and "train.steps=12" in broken.notices[1]

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


def test_a_stop_is_heard_in_the_rehearsal(make_job, recorder):
    train = {"steps": None, "hours": 1.0}
    hooks = recorder(stop_at=3)
    outcome = pretrain(make_job(train=train), hooks)
    assert (outcome.stopped, outcome.step, hooks.steps) == (True, 0, 0)
    assert hooks.checkpoints == []


def test_hours_that_hold_no_step_are_said(make_job, recorder, monkeypatch):
    ticks = count(0, 100)
    monkeypatch.setattr("stages.training.rehearsal.perf_counter", lambda: float(next(ticks)))
    with pytest.raises(BudgetError, match=r"^train\.hours=0\.1 is used up.*a step takes 200 s"):
        pretrain(make_job(train={"steps": None, "hours": 0.1}), recorder())


@pytest.mark.slow
def test_all_ranks_rehearse_as_long_as_rank_0(tmp_path):
    """Rank 1's clock stands still: left to itself it would never have measured enough."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", REHEARSAL, str(rank), str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    assert said[0] == said[1] == ["126"], said


REHEARSAL = """
import sys
from itertools import count

import torch
import torch.distributed as dist

from stages.training import rehearsal
from stages.training.gradients import gradients_of
from stages.training.step import StepLosses

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
ticks = count()
rehearsal.perf_counter = lambda: 0.25 * next(ticks) if rank == 0 else 0.0
model = torch.nn.Linear(2, 1)
gradients = gradients_of(model, figures=2)
made = 0


class Stepper:
    def moments(self):
        return {}

    def set_moments(self, moments):
        pass

    def gradients_of(self, step, batch, ask):
        global made
        made += 1
        gradients.zero()
        if rank == 0:
            gradients.figures[-1] = ask()
        gradients.sum_over_ranks()
        return StepLosses((0.0,), 0.0, float(gradients.figures[-1]))

    def change_weights(self, rate, grad_norm):
        assert rate == 0.0


# 60 s of 0.5 s each after 5 that are not measured; rank 0 asks a tick before a step's end.
rehearsal.rehearse(Stepper(), lambda step: None, 1, None, 24 * 3600.0, lambda: False)
print(made)
"""


def assert_same_weights(left, right) -> None:
    ours, theirs = weights_of(left.model), weights_of(right.model)
    assert ours.keys() == theirs.keys() and ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
