"""What a training worker says to the driver, and what it makes of too little memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stages.training.device import memory_ran_out
from stages.training_worker import DriverHooks, figures_in_words

LOGGED = {
    "train/loss": 5.31234, "train/mlm_loss": 4.9, "train/learning_rate": 0.00123456,
    "train/grad_norm": 1.2345, "train/tokens_seen": 12_000, "train/memory_gb": 3.456,
    "train/tokens_per_second": 27_123.4, "train/padding_share": 0.1234,
    "train/data_wait_share": 0.0015, "train/mfu": 0.4321,
}  # fmt: skip


def test_a_line_of_the_log_has_all_that_a_person_looks_for() -> None:
    assert figures_in_words(LOGGED) == {
        "loss": 5.312,
        "tokens/s": 27_123,
        "rate": "0.00123",
        "gradient": "1.23",
        "MFU": "43.2 %",
        "padding": "12.3 %",
        "wait": "0.15 %",
        "memory": "3.46 GB",
    }
    # After the first step of a process there are no rates yet.
    assert figures_in_words({"train/loss": 1.0, "train/skipped_steps": 2.0}) == {
        "loss": 1.0,
        "skipped": 2,
    }


class Sent:
    """A sender that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def start(self, total: float, unit: str, done: float = 0) -> None:
        self.said.append(("start", total, done))

    def advance(self, amount: float, **figures: Any) -> None:
        self.said.append(("advance", amount, figures["loss"]))

    def log(self, values: dict[str, float], step: int) -> None:
        self.said.append(("log", step, sorted(values)))


def test_progress_is_shown_before_the_first_line() -> None:
    sent = Sent()
    hooks = DriverHooks(sent, "seed_2/")  # type: ignore[arg-type]
    hooks.planned(100, 40)
    hooks.log(50, {"train/loss": 2.0})
    hooks.log(50, {"validation/mlm_loss": 2.0})
    hooks.log(60, {"train/loss": 1.0})
    assert sent.said == [
        ("start", 100, 40),
        ("log", 50, ["seed_2/train/loss"]),
        # The time of the first steps says nothing of the others.
        ("start", 100, 50),
        ("advance", 0, 2.0),
        ("log", 50, ["seed_2/validation/mlm_loss"]),
        ("log", 60, ["seed_2/train/loss"]),
        ("advance", 10, 1.0),
    ]


ROUNDING = {"micro_batch_tokens": 65_536, "gradient_checkpointing": False, "sharding": "none"}


def test_too_little_memory_is_said_with_what_to_do() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    said = memory_ran_out(caught.value, ROUNDING)
    assert said is not None and said.startswith(
        "the machine ran out of memory: lower rounding.micro_batch_tokens (65536 now) or set "
        "rounding.gradient_checkpointing=true; the result stays the same but for its last bits"
    )
    gpu = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.12 GiB. GPU 0 has")
    said = memory_ran_out(gpu, ROUNDING)
    assert said is not None and "the GPU ran out of memory" in said
    assert "rounding.sharding=full" in said and said.endswith("3.12 GiB. GPU 0 has")
    assert memory_ran_out(RuntimeError("shapes do not match"), ROUNDING) is None


def test_a_worker_without_memory_ends_the_run_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again it would meet the same: Ray must not do so."""
    from stages.training_worker import as_worker

    ranks = SimpleNamespace(
        get_world_rank=lambda: 0, get_local_rank=lambda: 0, get_world_size=lambda: 1
    )
    monkeypatch.setattr("ray.train.get_context", lambda: ranks)
    sender = SimpleNamespace(
        failure=lambda: None, began=lambda: None, close=lambda: None, leave=print
    )
    plan = SimpleNamespace(settings={"rounding": ROUNDING})

    def too_large(*_: Any) -> dict[str, Any]:
        torch.empty(1 << 50)
        raise AssertionError("so much memory")

    ended = as_worker({"plan": plan, "sender": sender}, too_large)
    assert ended is not None and "rounding.micro_batch_tokens (65536 now)" in ended["failed"]
