"""The stage vocab through the command line and Ray, and an existing vocabulary down the line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import VARIED, Line, Run

pytestmark = pytest.mark.slow


def manifest(store: Path, node: str) -> dict[str, object]:
    found = [json.loads(path.read_text()) for path in store.rglob("manifest.json")]
    (one,) = [m for m in found if m["node"] == node]
    return dict(one)


@pytest.mark.timeout(600)
def test_an_existing_vocabulary_keeps_its_ids_down_the_line(
    varied: Line, joined: Run, tmp_path: Path
) -> None:
    vocab = (varied.folder / "vocab.txt").read_text("utf-8").splitlines()
    assert vocab[0] == "[MASK]" and vocab[-1] == "[PAD]"
    said, store = varied.output, varied.store
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
    varied.copy(tmp_path / "runs/store")
    (tmp_path / "moved").mkdir()
    shutil.copyfile(varied.folder / "vocab.txt", tmp_path / "moved/vocab.txt")
    words = ["vocab.from=moved/vocab.txt", *VARIED[1:], "train.steps=20"]
    plan = joined("plan", "--json", *words)
    states = {row["node"]: row["state"] for row in json.loads(plan.stdout)}
    assert states["vocab"] == states["mask/64"] == states["export"] == "cached"
