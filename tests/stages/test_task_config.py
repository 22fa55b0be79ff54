"""The group `finetune` and the tasks: composed, filled in, refused."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from pipeline.commands.configuration import show
from pipeline.config import Composed, compose
from pipeline.stage import UserError
from stages.config import Config
from stages.task_config import METRICS, FinetuneConfig, GlueLayout, TaskConfig
from stages.text.tasks.glue import LAYOUTS

MINE = ("tasks.mine.train=[a.csv]", "tasks.mine.dev=[b.csv]")


def composed(*overrides: str, conf_dir: Path | None = None) -> Composed:
    return compose(overrides, conf_dir, Config)


def config(*overrides: str, conf_dir: Path | None = None) -> Config:
    found = composed(*overrides, conf_dir=conf_dir).config
    assert isinstance(found, Config)
    return found


def message(*overrides: str, conf_dir: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        composed(*overrides, conf_dir=conf_dir)
    return str(caught.value)


def test_no_task_unless_one_is_picked() -> None:
    assert config().tasks == {}


def test_one_and_several_are_picked_in_any_order() -> None:
    assert list(config("task=sst2").resolved_tasks()) == ["sst2"]
    both = config("task=[wikigold,sst2]").resolved_tasks()
    assert list(both) == ["sst2", "wikigold"]
    assert both["sst2"].glue == "sst2" and both["wikigold"].objective == "tagging"


def test_own_task_needs_no_file() -> None:
    found = composed("tasks.mine.objective=classification", *MINE, "tasks.mine.label=class")
    assert isinstance(found.config, Config)
    mine = found.config.resolved_tasks()["mine"]
    assert (mine.train, mine.dev, mine.label, mine.text) == (("a.csv",), ("b.csv",), "class", None)
    assert found.origins["tasks.mine.objective"] == "command line"
    assert found.origins["tasks.mine.text"] == "default"


def test_own_file_and_its_origins(tmp_path: Path) -> None:
    file = tmp_path / "task/mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package tasks.mine\nobjective: regression\ntrain: [a.tsv]\ndev: [b.tsv]\nepochs: 7\n"
    )
    found = composed("task=[mine,sst2]", "tasks.mine.seeds=5", conf_dir=tmp_path)
    assert isinstance(found.config, Config)
    mine = found.config.resolved_tasks()["mine"]
    assert (mine.epochs, mine.seeds, mine.metric) == (7, 5, "pearson")
    assert found.origins["tasks.mine.epochs"] == str(file)
    assert found.origins["tasks.mine.seeds"] == "command line"
    assert found.origins["tasks.sst2.glue"] == "conf/task/sst2.yaml"
    lines = "\n".join(show(found, False, True))
    assert "# null: finetune.learning_rate." in lines


@pytest.mark.parametrize("first", ["", "# my task\n", "# @package tasks\n"])
def test_forgotten_package_line(tmp_path: Path, first: str) -> None:
    file = tmp_path / "task/mine.yaml"
    file.parent.mkdir()
    file.write_text(f"{first}objective: regression\ntrain: [a.tsv]\ndev: [b.tsv]\n")
    text = message("task=mine", conf_dir=tmp_path)
    assert "# @package tasks.NAME" in text
    if "@" not in first:
        assert str(file) in text


def test_group_in_another_place_says_where(tmp_path: Path) -> None:
    file = tmp_path / "quality/mine.yaml"
    file.parent.mkdir()
    file.write_text("min_words: 3\n")
    assert "# @package corpus.quality" in message("quality=mine", conf_dir=tmp_path)


def test_null_is_as_finetune_says() -> None:
    found = config("task=[sst2,squad_v1]", "finetune.epochs=9", "tasks.sst2.epochs=2",
                   "finetune.onnx=true", "tasks.sst2.onnx=false")  # fmt: skip
    tasks = found.resolved_tasks()
    assert (tasks["sst2"].epochs, tasks["squad_v1"].epochs) == (2, 9)
    assert (tasks["sst2"].onnx, tasks["squad_v1"].onnx) == (False, True)
    assert found.tasks["squad_v1"].epochs is None
    # A field that one has and the other calls by another name would never be filled in.
    shared = TaskConfig.model_fields.keys() & FinetuneConfig.model_fields.keys()
    said = [n for n, f in TaskConfig.model_fields.items() if "finetune." in (f.description or "")]
    assert {*said, "max_length"} - {"train"} == shared
    optional = {"init_from", "head_dropout", "dropout", "patience", "evaluate_every_steps"}
    for task in tasks.values():
        assert all(getattr(task, name) is not None for name in shared - optional)


def test_lengths_by_objective() -> None:
    tasks = config("task=[sst2,stsb,wikigold,squad_v1]").resolved_tasks()
    assert {n: (t.max_length, t.overlap) for n, t in tasks.items()} == {
        "sst2": (128, None), "stsb": (128, None), "wikigold": (128, 32), "squad_v1": (384, 128),
    }  # fmt: skip
    short = config("task=squad_v1", "finetune.max_length=100").resolved_tasks()["squad_v1"]
    assert short.overlap == (100 - 3 - 64) // 2


def test_metrics_by_objective() -> None:
    tasks = config("task=[sst2,cola,stsb,wikigold,squad_v1]").resolved_tasks()
    assert {n: t.metric for n, t in tasks.items()} == {
        "sst2": "accuracy", "cola": "matthews", "stsb": "pearson", "wikigold": "f1",
        "squad_v1": "f1",
    }  # fmt: skip
    assert set(METRICS) == set(typing.get_args(TaskConfig.model_fields["objective"].annotation))


def test_layouts_are_those_of_the_readers() -> None:
    assert typing.get_args(GlueLayout) == tuple(LAYOUTS)


def test_labels_are_names_whatever_yaml_reads() -> None:
    mine = ("tasks.mine.objective=classification", *MINE)
    assert config(*mine, "tasks.mine.labels=[0,1]").tasks["mine"].labels == ("0", "1")
    assert config(*mine, "tasks.mine.labels=[no,true]").tasks["mine"].labels == ("no", "true")
    assert config(*mine, "tasks.mine.positive=1").tasks["mine"].positive == "1"


def test_finetune_has_a_seed_of_its_own() -> None:
    found = config("seeds.finetune=3")
    assert found.seed_for("finetune") == 3
    assert len({config().seed_for(p) for p in ("train", "finetune", "mask")}) == 3


def test_given_model_has_its_own_positions() -> None:
    long = ("task=sst2", "tasks.sst2.max_length=1000")
    assert "model.max_position_embeddings=512" in message(*long)
    assert config(*long, "finetune.init_from=/models/mine").tasks["sst2"].max_length == 1000


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("tasks.sst2.epochs=3", ["tasks.sst2.objective is missing", "task=sst2"]),
        ("tasks.objective=answers", ["tasks.NAME.objective"]),
        ("task.mine.epochs=3", ["tasks.NAME.KEY=value", "# @package tasks.NAME"]),
        ("tasks.Mine.epochs=3", ["tasks.Mine", "call it mine"]),
        ("task=sst2 tasks.sst2.epcohs=3", ["tasks.sst2.epcohs", "tasks.sst2.epochs"]),
        ("task=sst2 tasks.sst2.epochs=x", ["tasks.sst2.epochs=x", "whole number of at least 1"]),
        ("task=sst2 tasks.sst2.train=a", ["tasks.sst2.train=a", "a list of texts"]),
        ("task=sst2 tasks.sst2.train=[]", ["tasks.sst2.train=[]"]),
        ("task=sst2 tasks.sst2.seeds=21", ["tasks.sst2.seeds=21", "at most 20"]),
        ("task=sst2 tasks.sst2.encoding=utf9", ["tasks.sst2.encoding", "latin-1"]),
        ("task=sst2 tasks.sst2.metric=pearson", ["metric=pearson", "accuracy", "tasks.sst2"]),
        ("task=sst2 tasks.sst2.text=a", ["glue=sst2", "text=a", "leave one"]),
        ("task=sst2 tasks.sst2.format=csv", ["format=csv", "TSV"]),
        ("task=sst2 tasks.sst2.objective=regression", ["objective=classification"]),
        ("task=stsb tasks.stsb.objective=classification", ["objective=regression"]),
        ("task=wikigold tasks.wikigold.text=a", ["text=a", "objective=tagging"]),
        ("task=wikigold tasks.wikigold.format=csv", ["format=csv", "conll"]),
        ("task=sst2 tasks.sst2.labels=[a]", ["'a'", "needs two"]),
        ("task=sst2 tasks.sst2.labels=[a,b,a]", ["'a'", "twice"]),
        ("task=sst2 tasks.sst2.labels=[a,b] tasks.sst2.positive=c", ["positive=c", "[a,b]"]),
        ("task=squad_v1 tasks.squad_v1.max_length=66", ["max_question_length=64", "raise"]),
        ("task=wikigold tasks.wikigold.overlap=126", ["overlap=126", "126 pieces", "lower"]),
        ("task=sst2 tasks.sst2.freeze_layers=3", ["freeze_layers=3", "model.num_layers=2"]),
        ("finetune.layer_decay=1.5", ["finetune.layer_decay=1.5", "of at most 1"]),
        ("finetune.schedule=wsd", ["finetune.schedule=wsd", "linear, cosine, constant"]),
    ],
)  # fmt: skip
def test_mistakes_name_key_and_mend(overrides: str, words: list[str]) -> None:
    text = message(*overrides.split())
    for word in words:
        assert word in text, text
