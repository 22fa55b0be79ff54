"""What a run leaves of its pretrained model besides weights: a card, and a version in MLflow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifact import output_digest
from pipeline.store import Artifact, Store
from stages.predictor import Predictor
from tests.conftest import Line, runner

pytestmark = pytest.mark.slow
MODEL = "models:/clozeline-pretrained/1"


def exported(line: Line) -> Artifact:
    (artifact,) = Store(str(line.store)).artifacts("export")
    return artifact


def client(folder: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder}/runs/mlflow.db")


def test_the_card_is_no_part_of_the_result(line: Line) -> None:
    hub = pytest.importorskip("huggingface_hub")
    artifact = exported(line)
    parts = artifact.files()
    assert parts["README.md"].digest is None
    others = {name: part for name, part in parts.items() if name != "README.md"}
    assert artifact.output_digest == output_digest(others)
    card = hub.ModelCard(artifact.read_bytes("README.md").decode())
    assert card.data.pipeline_tag == "fill-mask"
    nodes = ("pretrain/64", "mask/64", "pairs/64", "vocab", "shard")
    store = Store(str(line.store))
    for node in nodes:
        (made,) = store.artifacts(node)
        assert f"| {node} | `{made.fingerprint[:16]}` | `{made.output_digest[:16]}` |" in card.text
    assert "| train.steps | 30 |" in card.text


def test_lineage_leads_from_the_registered_model_to_corpus_and_vocabulary(
    line: Line, corpus: Path
) -> None:
    call = runner(corpus, line.folder)
    by_model = json.loads(call("lineage", MODEL, "--json").stdout)
    by_path = json.loads(call("lineage", exported(line).data, "--json").stdout)
    assert [s["node"] for s in by_model] == [s["node"] for s in by_path]
    # The run's own result had no output yet that anything could read: all else is the same.
    assert by_model == by_path
    assert {"export", "pretrain/64", "vocab", "shard"} <= {s["node"] for s in by_model}
    (shard,) = [s for s in by_model if s["node"] == "shard"]
    assert shard["raw"]["entries"] == 2
    shown = call("lineage", MODEL).stdout.splitlines()
    assert shown[1].startswith("export") and len(shown) == len(by_model) + 1


def test_what_is_cached_is_not_registered_again(line: Line, corpus: Path, tmp_path: Path) -> None:
    assert "registered in MLflow as " + MODEL in line.output
    # Others look at the line itself meanwhile.
    shutil.copytree(line.folder, tmp_path, dirs_exist_ok=True)
    runner(corpus, tmp_path)("run")
    assert len(client(tmp_path).search_model_versions("name = 'clozeline-pretrained'")) == 1


def test_the_registered_model_fills_masks_in(line: Line) -> None:
    import mlflow
    import pandas

    artifact = exported(line)
    mlflow.set_tracking_uri(f"sqlite:///{line.folder}/runs/mlflow.db")
    rows = [{"text": "Call me [MASK]."}, {"text": "We hold these [MASK] to be [MASK]."}]
    model = mlflow.pyfunc.load_model(MODEL)
    found = model.predict(pandas.DataFrame(rows), params={"top": 3})
    ours = Predictor.load(artifact.local_path(), "cpu").fill_mask([r["text"] for r in rows], 3)
    assert [len(mask["tokens"]) for row in found for mask in row["masks"]] == [3, 3, 3]
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(ours))
