"""SIGTERM in a training worker: which one is for training, and which ends the process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from stages import leaving


def wait_until(true: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 20
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


@pytest.fixture
def passed_on() -> Iterator[list[int]]:
    """What the handler before got; it stands for Ray's, which ends the process."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    leaving.install()
    yield got
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_first_while_training_is_told_and_the_second_ends(passed_on: list[int]) -> None:
    told: list[str] = []
    seen: list[bool] = []

    def train() -> None:
        with leaving.training(lambda: told.append("told")):
            terminate()
            seen.append(wait_until(lambda: told) and not passed_on)
            terminate()
            seen.append(wait_until(lambda: passed_on))

    thread = threading.Thread(target=train)
    thread.start()
    while thread.is_alive():
        time.sleep(0.01)  # Handlers run in this thread.
    assert seen == [True, True]
    assert told == ["told"] and passed_on == [signal.SIGTERM]


def test_without_training_it_ends_at_once(passed_on: list[int]) -> None:
    terminate()
    with leaving.training(lambda: None):
        pass
    terminate()
    assert passed_on == [signal.SIGTERM] * 2


def test_a_training_that_does_not_end_is_ended(
    passed_on: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.3)
    with leaving.training(lambda: None):
        terminate()
        assert passed_on == []
        assert wait_until(lambda: passed_on)


def test_training_needs_no_handler() -> None:
    with leaving.training(lambda: None):
        pass


def test_installed_twice_is_installed_once(passed_on: list[int]) -> None:
    leaving.install()
    with leaving.training(lambda: None):
        terminate()
        assert passed_on == []
