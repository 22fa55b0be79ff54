"""The stage vocab through the command line and Ray, and an existing vocabulary down the line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stages.text.tokenizer_files import vocab_bytes
from tests.conftest import ROOT, SMALL, Line

pytestmark = pytest.mark.slow


def run(folder: Path, corpus: Path, *words: str, hash_seed: str = "0") -> str:
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "run",
        *SMALL,
        f"corpus.paths=['{corpus}']",
        *words,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def manifest(store: Path, node: str) -> dict[str, object]:
    found = [json.loads(path.read_text()) for path in store.rglob("manifest.json")]
    (one,) = [m for m in found if m["node"] == node]
    return dict(one)


@pytest.mark.timeout(600)
def test_neither_cpus_nor_the_hash_seed_change_the_vocabulary(
    line: Line, corpus: Path, tmp_path: Path
) -> None:
    # The line ran on all CPUs, with a hash seed of its own.
    line.copy(tmp_path / "runs/store", without=["vocab", "pairs", "mask", "pretrain"])
    run(tmp_path, corpus, "--only", "vocab", "cluster.num_cpus=1", hash_seed="77")
    made, expected = (manifest(s, "vocab") for s in (tmp_path / "runs/store", line.store))
    assert made["output_digest"] == expected["output_digest"]


@pytest.mark.timeout(600)
def test_an_existing_vocabulary_keeps_its_ids_down_the_line(
    line: Line, corpus: Path, tmp_path: Path
) -> None:
    (trained,) = line.store.glob("vocab/*/*/vocab.txt")
    ordinary = trained.read_text("utf-8").splitlines()[5:]
    # No special token is where BERT has it; [PAD] is the last of all.
    vocab = ["[MASK]", *ordinary[:40], "[SEP]", "[UNK]", *ordinary[40:], "[CLS]", "[PAD]"]
    (tmp_path / "vocab.txt").write_bytes(vocab_bytes(vocab))
    line.copy(tmp_path / "runs/store", without=["vocab", "pairs", "mask", "pretrain", "export"])
    said = run(tmp_path, corpus, "--until", "export", "vocab.from=vocab.txt", "train.steps=2")
    store = tmp_path / "runs/store"
    assert "using vocab.txt" in said and f"vocabulary of {len(vocab)} entries" in said
    figures = manifest(store, "vocab")["figures"]
    assert isinstance(figures, dict)
    assert figures["entries"] == len(vocab) and 1 < figures["fertility/validation"] < 3

    pairs = manifest(store, "pairs/64")["figures"]
    assert isinstance(pairs, dict)
    if importlib.util.find_spec("nanotoken"):
        assert pairs["shards/nanotoken"] == 4 and "shards/dictionary" not in pairs

    cls, sep, mask = (vocab.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
    (path,) = store.glob("mask/64/*/*/train-c0m0-00000.parquet")
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        ids = row["input_ids"]
        assert ids[0] == cls and ids[-1] == sep and ids[row["a_length"] + 1] == sep
        assert ids.count(sep) == 2 and ids.count(cls) == 1
    masked = [row["input_ids"][p] == mask for row in rows for p in row["mlm_positions"]]
    assert 0.7 < sum(masked) / len(masked) < 0.9

    transformers = pytest.importorskip("transformers")
    (export,) = store.glob("export/*/*/config.json")
    assert json.loads(export.read_text())["pad_token_id"] == vocab.index("[PAD]")
    tokenizer = transformers.AutoTokenizer.from_pretrained(export.parent)
    assert tokenizer.pad_token_id == vocab.index("[PAD]")
    row = tokenizer("Call me [MASK].")["input_ids"]
    assert row[0] == cls and row[-1] == sep and mask in row
    model = transformers.AutoModelForPreTraining.from_pretrained(export.parent)
    assert model.config.vocab_size == len(vocab)

    # The same words elsewhere are the same vocabulary: nothing is made.
    (tmp_path / "moved").mkdir()
    (tmp_path / "vocab.txt").rename(tmp_path / "moved/vocab.txt")
    plan = subprocess.run(
        [
            *(sys.executable, "-m", "pipeline", "plan", "--json", *SMALL),
            *(f"corpus.paths=['{corpus}']", "vocab.from=moved/vocab.txt", "train.steps=2"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    states = {row["node"]: row["state"] for row in json.loads(plan.stdout)}
    assert states["vocab"] == states["mask/64"] == states["export"] == "cached"
