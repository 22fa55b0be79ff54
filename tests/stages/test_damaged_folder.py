"""Stage shard over a folder of everything that can be wrong with files, in one corpus."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from pipeline.stage import StageError
from stages.text.readers import FORMATS, UNREADABLE
from tests.conftest import documents
from tests.stages.in_process import run_shard
from tests.stages.text.test_damage import LONG, TEXTS, stored, with_values

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
VARIANTS = 6


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Cut, with a bit turned over, or with something between."""
    at = generator.randrange(len(data))
    more = generator.choice([b"\0", b"\xff\xfe", b'"', b"<page>", b"\n\n", b"</doc>", b"{"])
    other = bytes([data[at] ^ 1 << generator.randrange(8)])
    return generator.choice(
        [data[:at], data[:at] + other + data[at + 1 :], data[:at] + more + data[at:]]
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A folder for each format, and whole documents beside them."""
    top = tmp_path_factory.mktemp("damaged")
    generator = random.Random(3)
    for format in FORMATS:
        folder = top / format
        folder.mkdir()
        for ending, compress in COMPRESS.items():
            whole = compress(stored(format))
            for i in range(VARIANTS):
                (folder / f"{i}{ending}").write_bytes(damaged(whole, generator))
            (folder / f"empty{ending}").write_bytes(b"")
        text = stored(format)
        (folder / "cp1252").write_bytes(text.decode("utf-8", "replace").encode("cp1252", "replace"))
        if format in ("jsonl", "parquet", "arrow"):
            (folder / "values").write_bytes(with_values(format))
        else:
            (folder / "long").write_bytes(text.replace(TEXTS[20].encode(), LONG.strip().encode()))
        os.mkfifo(folder / "fifo")
        (folder / "loop").symlink_to("loop")
        (folder / "again").symlink_to(".")
        (folder / "gone").symlink_to("nothing")
        if format == "text":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(os.path.relpath(folder / "socket"))
    (top / "whole.jsonl").write_text(
        "\n".join(json.dumps({"text": " ".join(document)}) for document in documents(60))
    )
    folders = [{"name": f, "paths": [str(top / f)], "format": f} for f in FORMATS]
    return [*folders, {"name": "whole", "paths": [str(top / "whole.jsonl")]}]


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
