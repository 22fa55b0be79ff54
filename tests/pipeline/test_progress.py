"""Progress on and off a terminal."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest

from pipeline.progress import Board, Count, clock, short


def test_off_a_terminal_few_plain_lines() -> None:
    out = io.StringIO()
    with Board(out) as board:
        line = board.line("mask/128")
        line.start(100_000, "rows")
        for _ in range(100_000):
            line.advance(loss=5.25)
        line.note("3 rows were cut")
        board.finish("mask/128")
    lines = out.getvalue().splitlines()
    assert lines[0] == "mask/128: 0/100,000 rows"
    assert lines[1] == "mask/128: 3 rows were cut"
    assert lines[2].startswith("mask/128: 100,000/100,000 rows, ")
    assert lines[2].endswith("/s, loss 5.25")
    assert len(lines) == 3
    assert "\x1b" not in out.getvalue()


def test_a_long_stage_prints_now_and_then_even_without_counting() -> None:
    out = io.StringIO()
    with Board(out, plain_seconds=0.1) as board:
        board.line("shard").start(8, "shards")
        time.sleep(0.55)
    printed = len(out.getvalue().splitlines())
    assert 3 <= printed <= 8


def test_counting_is_cheap() -> None:
    with Board(io.StringIO()) as board:
        line = board.line("x")
        line.start(None, "rows")
        began = time.perf_counter()
        for _ in range(20_000):
            line.advance()
        assert (time.perf_counter() - began) / 20_000 < 50e-6


def test_many_threads_lose_no_count() -> None:
    with Board(io.StringIO()) as board:
        line = board.line("x")
        line.start(80_000, "rows")
        threads = [
            threading.Thread(target=lambda: [line.advance() for _ in range(10_000)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert line.count.done == 80_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_live_line_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with Board(out) as board:
        for name in ("mask/128", "mask/512"):
            line = board.line(name)
            line.start(8, "shards")
            line.advance(3, loss="5.25")
        time.sleep(0.5)
        board.line("mask/128").note("[MASK] is a [bold]word[/bold] here")
        board.finish("mask/128")
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert re.search(r"mask/128 +━.*3/8 shards, .*/s, 0:\d\d left, loss 5.25", drawn)
    assert re.search(r"mask/512 +━", drawn)
    assert "mask/128: [MASK] is a [bold]word[/bold] here" in drawn
    assert "\x1b" in out.getvalue()


def test_one_line_says_counts_rate_and_time_left() -> None:
    count = Count(total=8, unit="shards", done=5, before=3, started=100.0)
    count.figures = {"loss": 5.3125, "tokens/s": 27_000}
    said = "5/8 shards, 0.5 shards/s, 0:06 left, loss 5.31, 27,000 tokens/s"
    assert count.text(104.0) == said
    # Between two counts the rate stays, and the time left goes down.
    count.counted = 104.0
    assert count.text(106.0) == said.replace("0:06", "0:04")
    assert "0:00 left" in count.text(200.0)
    assert Count(total=2, unit="x", done=1, started=0.0).text(60.0) == "1/2 x, 60 s each, 1:00 left"
    assert Count(unit="rows").text(1.0) == "0 rows"


@pytest.mark.parametrize(
    ("value", "text"),
    [(8.0, "8"), (0.123456, "0.123"), (27_123.4, "27,123"), (3e9, "3G"), (1e15, "1e+03T"),
     (float("inf"), "inf"), (float("nan"), "nan"), (-2.5, "-2.5")],
)  # fmt: skip
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


def test_clock() -> None:
    assert [clock(s) for s in (7, 725, 10_810)] == ["0:07", "12:05", "3:00:10"]
