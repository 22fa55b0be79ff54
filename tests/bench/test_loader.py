"""The loader's measurement on a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench import loader_parts
from bench.loader import Settings, run
from bench.loader_report import lines
from bench.loader_rows import files_of, grow
from pipeline.cli import main
from pipeline.stage import UserError


@pytest.fixture
def argument(corpus: Path, vocab_file: Path, tmp_path: Path) -> dict[str, object]:
    return {
        "work": str(tmp_path),
        "files": "",
        "corpus": (str(corpus),),
        "vocab": str(vocab_file),
        "text_field": "text",
        "base_megabytes": 1.0,
        "rounds": 1,
        "batch_size": 64,
        "micro_batch_tokens": 1024,
        "memory_megabytes": [0.3, 0.6],
        "steps": 2,
    }


@pytest.mark.slow
def test_speed_and_memory(
    argument: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_parts, "TOKENS", 20_000)
    monkeypatch.setattr(loader_parts, "SEEKS", 2)
    monkeypatch.setattr(loader_parts, "SPEED_MEGABYTES", 0.5)
    assert loader_parts.prepare(argument)["entries"] == 600
    speed = json.loads(json.dumps(loader_parts.speed(argument)))
    assert len(speed["reading"]) == 6 and speed["stored_bytes"] >= 450_000
    for row in speed["reading"].values():
        assert row["alone"]["tokens_per_cpu_second"] > 0 < row["packed"]["tokens_per_second"]
    assert all(row["late_index"] > 0 for row in speed["first_batch"].values())
    memory = [loader_parts.memory({**argument, "megabytes": m}) for m in (0.3, 0.6)]
    figures = {"speed": speed, "memory": memory, "settings": argument}
    assert any("mixed 7 : 3" in line for line in lines("speed", figures))
    assert sum("peaks differ by" in line for line in lines("memory", figures)) == 2
    # Each size is read for as many steps.
    tokens = [row["reader"]["tokens"] for row in memory]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.2)

    given = {**argument, "files": str(tmp_path / "speed-mask")}
    assert loader_parts.prepare(given)["files"]
    assert loader_parts.speed(given)["rows"] == speed["rows"]


@pytest.mark.slow
def test_grown_rows_differ_in_ids_alone(argument: dict[str, object], tmp_path: Path) -> None:
    loader_parts.prepare(argument)
    sources = files_of(tmp_path / "store" / "mask" / "128")
    made = grow(sources, tmp_path / "grown", 600, 5, 0.5)
    base = pq.read_table(sources[0])
    grown = pq.read_table(tmp_path / "grown")
    assert made["rows"] == grown.num_rows > 2 * base.num_rows
    first, second = grown.slice(0, base.num_rows), grown.slice(base.num_rows, base.num_rows)
    assert first.equals(base.select(first.column_names))
    for name in ("a_length", "is_next", "mlm_positions"):
        assert second[name].combine_chunks().equals(base[name].combine_chunks())
    ids = [t["input_ids"].combine_chunks().flatten().to_numpy() for t in (base, second)]
    assert (ids[0] != ids[1]).mean() > 0.5 and ids[1].max() < 600
    assert ((ids[0] < 5) == (ids[1] < 5)).all()


def test_what_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["bench", "loader", "sped"], "no part 'sped'; its parts: speed, memory"),
        (["bench", "loader", "--files", "/nowhere"], "/nowhere does not exist"),
        (["bench", "loader", "--batch-size", "0"], "must be above 0"),
        (["bench", "walk"], "bench takes prep, loader, train"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError):
        run(["speed"], Settings(work="", rounds=0))
