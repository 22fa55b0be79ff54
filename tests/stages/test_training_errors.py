"""What goes wrong in training, through the product."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import Line, Run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nan_in_a_weight_stops_the_run_and_keeps_the_batch(
    line: Line, joined: Run, tmp_path: Path
) -> None:
    import torch
    from pyarrow.fs import LocalFileSystem
    from safetensors.torch import load_file

    from stages.training.checkpoint import State, save

    store = tmp_path / "runs/store"
    line.copy(store, without=["pretrain", "evaluate", "export"])
    nodes = {n["node"]: n for n in json.loads(joined("plan", "--json").stdout)}
    node = store / "pretrain/64" / nodes["pretrain/64"]["fingerprint"]
    weights = load_file(next((line.store / "pretrain/64").rglob("weights.safetensors")))
    weights["bert.encoder.layers.1.output.weight"][3, 5] = torch.nan
    work = node / "data.making/work"
    state = State(4, 0, 32, 1600, {}, node.name, "", {}, {})
    (work / "checkpoints").mkdir(parents=True)
    # As a killed run leaves it.
    (node / "attempt.json").write_text(json.dumps({"attempt": "dead", "generation": "data"}))
    save(LocalFileSystem(), str(work / "checkpoints"), "hand", state, weights, {}, keep=1)

    done = joined("run", "--until", "pretrain", check=1)
    said = " ".join((done.stdout + done.stderr).split())
    kept = work / "nonfinite/step-00000005.parquet"
    assert "step 5: MLM loss nan" in said and "Traceback" not in said
    assert "its batch is in" in said and kept.name in said
    rows = pq.read_table(kept)
    assert rows.num_rows == 8 and len(rows["document"][0].as_py()) == 16
    assert json.loads(kept.with_suffix(".json").read_text())["train"]["steps"] == 30
    # Neither a result nor a checkpoint holds it.
    assert not (node / "manifest.json").exists()
    assert [path.name for path in (work / "checkpoints").iterdir()] == ["step-00000004"]
