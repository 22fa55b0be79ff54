"""Stage shard over a folder of everything that can be wrong with files, in one corpus."""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from bench.damage import write_damaged
from pipeline.stage import StageError
from stages.text.readers import UNREADABLE
from tests.conftest import documents
from tests.stages.in_process import run_shard
from tests.stages.text.test_damage import TEXTS, with_values

VARIANTS = 6


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A folder for each format, and whole documents beside them."""
    top = tmp_path_factory.mktemp("damaged")
    found = write_damaged(top, TEXTS, random.Random(3), VARIANTS)
    for format in ("jsonl", "parquet", "arrow"):
        (top / format / "values").write_bytes(with_values(format))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(top / "text" / "socket"))
    (top / "whole.jsonl").write_text(
        "\n".join(json.dumps({"text": " ".join(document)}) for document in documents(60))
    )
    return [*found, {"name": "whole", "paths": [str(top / "whole.jsonl")]}]


@pytest.mark.slow
def test_a_folder_of_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sources: list[dict[str, Any]]
) -> None:
    """In = out + reasons; what is kept of it for a person can be read."""
    corpus = {"sources": sources, "encoding": "detect", "validation_share": 0.2}
    with pytest.raises(StageError) as refused:
        run_shard(monkeypatch, tmp_path / "a", corpus)
    assert "corpus.max_unreadable_share=0.01 allows" in str(refused.value)
    assert len(str(refused.value)) < 2000
    assert ": no text;" not in str(refused.value), "an empty file is no damage"
    corpus |= {"max_unreadable_share": 1}
    result, output = run_shard(monkeypatch, tmp_path / "b", corpus)
    counts = dict(result.counts)
    assert counts["in"] == sum(n for reason, n in counts.items() if reason != "in")
    assert counts["out"] >= 60 + len(TEXTS)
    assert {"truncated", "damaged", "malformed_json", "malformed_csv", "not_text"} <= counts.keys()
    content = (Path(output.data) / "quarantine.json").read_bytes()
    assert len(content) < 200_000
    examples = json.loads(content)
    assert {example["reason"] for example in examples} >= UNREADABLE & counts.keys()
    for example in examples:
        assert example["source"]
        assert example["detail"]
        assert example["snippet"].replace("\n", "").replace("\t", "").isprintable()
