"""Files of tasks and given models: found, listed, refused before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.stage import RawInput, UserError
from tests.conftest import ROOT
from tests.stages.task_runs import SMALL, model_folder, node_of, task_config


def listed(folder: Path, name: str = "x", data: str | None = None, **task: Any) -> RawInput:
    values = {"objective": "classification", "train": ["a.csv"], "dev": ["b.csv"], **task}
    node = node_of(task_config(name, values, finetune={"data": data or str(folder)}))
    assert node.raw is not None
    return node.raw()


def message(folder: Path, **task: Any) -> str:
    with pytest.raises(UserError) as caught:
        listed(folder, **task)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "more").mkdir(parents=True)
    for name in ("a.csv", "b.csv", "more/c1.csv", "more/c2.csv"):
        (made / name).write_text(f"text,label\n{name},1\n")
    return made


def test_same_files_elsewhere_are_the_same(folder: Path, tmp_path: Path) -> None:
    first = listed(folder)
    assert [entry["name"] for entry in first.entries] == ["a.csv", "b.csv"]
    moved = folder.rename(tmp_path / "moved")
    assert listed(moved, "y").entries == first.entries
    assert "1 file of train" in first.description
    (moved / "a.csv").write_text("text,label\nother,1\n")
    assert listed(moved).entries != first.entries


def test_order_is_as_given_and_globs_are_sorted(folder: Path) -> None:
    found = listed(folder, train=["more/*.csv", "a.csv"])
    assert [entry["name"] for entry in found.entries[:3]] == ["c1.csv", "c2.csv", "a.csv"]
    turned = listed(folder, train=["a.csv", "more/*.csv"])
    assert turned.entries != found.entries


def test_relative_folder_is_from_the_current_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert listed(folder, data="data").entries == listed(folder).entries


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"train": ["aa.csv"]}, ["tasks.x.train", "aa.csv is not there", "did you mean 'a.csv'"]),
        ({"dev": ["none.tsv"]}, ["tasks.x.dev", "none.tsv", "finetune.data="]),
        ({"train": ["more"]}, ["more is a folder", "more/*.tsv"]),
        ({"train": ["more/*.tsv"]}, ["no file matches more/*.tsv"]),
        ({"train": ["nowhere/*.tsv"]}, ["no file matches"]),
    ],
)
def test_files_that_are_not_there(folder: Path, task: dict[str, Any], words: list[str]) -> None:
    text = message(folder, **task)
    for word in words:
        assert word in text, text


def test_given_model_is_listed_by_its_vocabulary(folder: Path, tmp_path: Path) -> None:
    bert = model_folder(tmp_path / "bert")
    found = listed(folder, init_from=str(bert))
    entry = found.entries[-1]
    assert (entry["name"], entry["entries"], entry["positions"]) == ("vocabulary", len(SMALL), 128)
    # Weights are of no account here: the features are the same.
    other = model_folder(tmp_path / "other")
    assert listed(folder, init_from=str(other)).entries == found.entries


def test_given_models_that_are_of_no_use(folder: Path, tmp_path: Path) -> None:
    assert "tasks.x.init_from" in message(folder, init_from="none")
    assert "no such folder" in message(folder, init_from="none")

    small = model_folder(tmp_path / "small", entries=len(SMALL) + 3)
    text = message(folder, init_from=str(small))
    assert f"{len(SMALL)} entries" in text and f"table of its weights {len(SMALL) + 3}" in text

    short = model_folder(tmp_path / "short")
    text = message(folder, init_from=str(short), max_length=200)
    assert "tasks.x.max_length=200" in text and "128 positions" in text
    assert "freeze_layers=3" in message(folder, init_from=str(short), freeze_layers=3)

    (short / "model.safetensors").rename(short / "pytorch_model.bin")
    text = message(folder, init_from=str(short))
    assert "pickled" in text and "save_pretrained" in text
    (short / "pytorch_model.bin").unlink()
    assert "does not hold config.json and model.safetensors" in message(
        folder, init_from=str(short)
    )

    cut = model_folder(tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    assert "no whole safetensors file" in message(folder, init_from=str(cut))
    weights.write_bytes((640).to_bytes(8, "little"))
    assert "no whole safetensors file" in message(folder, init_from=str(cut))
    weights.write_bytes(b"\x80\x04" + b"never unpickled")
    assert "is a pickle under the name of safetensors" in message(folder, init_from=str(cut))
    weights.write_bytes((2).to_bytes(8, "little") + b"{}" + b"x")
    assert "no table of word embeddings" in message(folder, init_from=str(cut))


def test_given_models_that_are_no_whole_bert(folder: Path, tmp_path: Path) -> None:
    def with_config(name: str, **values: Any) -> Path:
        made = model_folder(tmp_path / name)
        config = json.loads((made / "config.json").read_text())
        (made / "config.json").write_text(json.dumps(config | values))
        return made

    other = with_config("other", model_type="distilbert")
    assert "model_type=distilbert" in message(folder, init_from=str(other))
    deep = with_config("deep", num_hidden_layers=7)
    assert "has not the 7 blocks" in message(folder, init_from=str(deep))
    weights = with_config("cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "ends too early" in message(folder, init_from=str(weights.parent))


def test_listing_imports_nothing_heavy(folder: Path) -> None:
    """`plan` answers at once."""
    script = (
        "import sys\n"
        "from stages.config import Config\n"
        "from stages.task_nodes import task_node\n"
        "task = {'objective': 'answers', 'train': ['a.csv'], 'dev': ['*.csv']}\n"
        "config = Config.model_validate({'corpus': {'kind': 'python_docs'},\n"
        "    'finetune': {'data': sys.argv[1]}, 'tasks': {'x': task}})\n"
        "print(task_node(config, 'x', config.resolved_tasks()['x']).raw().description)\n"
        "heavy = ('numpy', 'pyarrow', 'torch', 'ray', 'tokenizers', 'mlflow')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["1 file of train, 2 files of dev, 0.0 MB", "[]"], (
        done.stderr
    )


def test_finetune_is_named_where_it_says_so(folder: Path) -> None:
    values = {"objective": "classification", "train": ["a.csv"], "dev": ["b.csv"]}
    config = task_config("x", values, finetune={"data": str(folder), "init_from": "none"})
    node = node_of(config)
    assert node.raw is not None
    with pytest.raises(UserError, match=r"finetune\.init_from=none"):
        node.raw()


def test_only_what_changes_features_is_in_the_slice() -> None:
    def slices(**task: Any) -> Any:
        values = {"objective": "tagging", "train": ["a.conll"], "dev": ["b.conll"], **task}
        return node_of(task_config("x", values)).config

    plain = slices()
    for changes in (
        {"train": ["c.conll"]}, {"epochs": 9}, {"learning_rate": 1.0}, {"seeds": 3},
        {"max_unusable_share": 1.0}, {"max_answer_length": 3}, {"onnx": True},
    ):  # fmt: skip
        assert slices(**changes) == plain, changes
    for changes in (
        {"max_length": 64}, {"overlap": 8}, {"labels": ["O", "B-X"]}, {"scheme": "BIO"},
        {"tags_column": 1}, {"encoding": "latin-1"}, {"metric": "accuracy"},
    ):  # fmt: skip
        assert slices(**changes) != plain, changes
    # Another encoder with another vocabulary is told by the listing.
    assert slices(init_from="/a") == slices(init_from="/b") != plain
