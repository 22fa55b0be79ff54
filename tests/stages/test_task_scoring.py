"""Scoring on dev: figures, thresholds, tables and predictions from outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.store import Artifact
from stages.task_scoring import Scorer
from stages.text.task_tables import features_of
from tests.oracle.real_text import google_vocab, tasks
from tests.stages.task_runs import run_task, task_config, vocab_artifact
from tests.stages.test_task import CONLL, CSV, SQUAD, table, written


def scorer(tmp_path: Path, text: str, ending: str, task: dict[str, Any]) -> Scorer:
    return Scorer.open(artifact(tmp_path, text, ending, task))


def artifact(tmp_path: Path, text: str, ending: str, task: dict[str, Any]) -> Artifact:
    data = written(tmp_path / "data", **{f"a__{ending}": text})
    file = [str(data / f"a.{ending}")]
    config = task_config("mine", {"train": file, "dev": file, **task})
    return run_task(tmp_path / "store", config, vocab_artifact(tmp_path / "store"))[1]


def one_hot(labels: Any, classes: int, sure: float = 4.0) -> Any:
    return (np.eye(classes, dtype=np.float32) * sure)[np.asarray(labels)]


def test_classification(tmp_path: Path) -> None:
    own = scorer(tmp_path, CSV, "csv", {"objective": "classification", "positive": "no"})
    assert (own.metric, own.higher_is_better, own.classes) == ("accuracy", True, ("no", "yes"))
    right = own.figures(one_hot([1, 0, 1], 2))
    assert right.values["accuracy"] == right.values["matthews"] == 1.0
    outputs = one_hot([0, 0, 1], 2)
    figures = own.figures(outputs).values
    # Of "no": one of two predictions is right, and its one row is found.
    assert (figures["precision"], figures["recall"]) == (0.5, 1.0)
    assert own.value(outputs) == pytest.approx(2 / 3)
    first = next(own.predictions(outputs))
    assert first == {
        "id": "line 2", "text": "A good one", "gold": "yes", "predicted": "no",
        "score": round(1 / (1 + np.exp(-4)), 6),
    }  # fmt: skip
    titles = [found.title for found in own.tables(outputs)]
    assert titles[0] == "Figures" and titles[-1] == "Worst mistakes"
    assert [row[0] for row in own.tables(outputs)[-1].rows] == ["line 2"]
    assert "mine: mistakes on dev" in own.page(outputs) and "A good one" in own.page(outputs)
    assert own.null_threshold(outputs) is None


def test_an_array_that_is_used_again_is_scored_anew(tmp_path: Path) -> None:
    own = scorer(tmp_path, CSV, "csv", {"objective": "classification"})
    outputs = one_hot([1, 0, 1], 2)
    assert own.value(outputs) == 1.0
    outputs[:] = one_hot([0, 1, 0], 2)
    assert own.value(outputs) == 0.0


def test_wrong_outputs(tmp_path: Path) -> None:
    own = scorer(tmp_path, CSV, "csv", {"objective": "classification"})
    with pytest.raises(ValueError, match=r"\(3, 2\) here, not \(3, 1\)"):
        own.figures(np.zeros((3, 1), np.float32))
    with pytest.raises(ValueError, match="not finite"):
        own.figures(np.full((3, 2), np.nan, np.float32))


def test_regression_and_a_metric_that_is_undefined(tmp_path: Path) -> None:
    text = "text,label\na,1\nb,2\nc,4\n"
    own = scorer(tmp_path, text, "csv", {"objective": "regression"})
    figures = own.figures(np.array([[2], [4], [8]], np.float32))
    assert figures.values["pearson"] == pytest.approx(1.0)
    flat = np.ones((3, 1), np.float32)
    assert "pearson" not in own.figures(flat).values and own.value(flat) == -np.inf
    assert next(own.predictions(flat)) == {
        "id": "line 2", "text": "a", "gold": 1.0, "predicted": 1.0, "error": 0.0,
    }  # fmt: skip
    error = scorer(
        tmp_path / "e", text, "csv", {"objective": "regression", "metric": "mean_squared_error"}
    )
    assert not error.higher_is_better
    assert error.value(flat) == pytest.approx((0 + 1 + 9) / 3)


def tag_outputs(made: Artifact, classes: int) -> Any:
    """Gold at the positions that count, class 0 elsewhere."""
    labels = np.asarray(features_of(table(made, "dev.parquet")).labels)
    return one_hot(np.where(labels < 0, 0, labels), classes)


@pytest.mark.parametrize("length", [64, 16])
def test_tagging_through_windows(tmp_path: Path, length: int) -> None:
    text = CONLL + "".join(f"w{i} {'B-LOC' if i % 3 else 'O'}\n" for i in range(20))
    # A word of a control character alone has no piece.
    text += "\n\u0081 O\nBob B-PER\n"
    made = artifact(
        tmp_path, text, "conll", {"objective": "tagging", "max_length": length, "overlap": 4}
    )
    own = Scorer.open(made)
    outputs = tag_outputs(made, len(own.classes))
    figures = own.figures(outputs).values
    assert figures["f1"] == figures["accuracy"] == figures["f1/LOC"] == figures["f1/PER"] == 1.0
    found = list(own.predictions(outputs))
    assert all(row["gold"] == row["predicted"] for row in found)
    assert found[-1]["words"][1] == "Bob"
    assert found[-1]["score"][0] is None and found[-1]["score"][1] > 0.9
    json.dumps(found, allow_nan=False)
    # Everything O: no entity.
    nothing = one_hot(np.full(len(outputs), own.classes.index("O")), len(own.classes))
    assert own.figures(nothing).values["f1"] == 0.0
    assert "Ann Lee (PER)" in own.page(nothing)


def test_plain_tags(tmp_path: Path) -> None:
    own = scorer(tmp_path, "a DET\nb NOUN\n\nc VERB\n", "conll", {"objective": "tagging"})
    labels = np.array([0, 0, 1, 0, 0, 0, 0])  # c is taken for DET
    figures = own.figures(one_hot(labels, 3)).values
    assert own.metric == "accuracy" and figures["accuracy"] == pytest.approx(2 / 3)
    assert "f1/macro" in figures
    assert own.tables(one_hot(labels, 3))[-1].rows[0][2:4] == ["c (VERB)", "c (DET)"]


def span_outputs(made: Artifact) -> Any:
    """The best scores at the answer's ends; [CLS] where a window has none."""
    features = features_of(table(made, "dev.parquet"))
    assert features.starts is not None and features.ends is not None
    offsets = features.input_ids.offsets[:-1]
    outputs = np.zeros((int(features.input_ids.offsets[-1]), 2), np.float32)
    outputs[offsets + features.starts, 0] = 5
    outputs[offsets + features.ends, 1] = 5
    return outputs


def test_answers_and_a_threshold_that_is_tuned(tmp_path: Path) -> None:
    task = {"objective": "answers", "max_length": 60, "overlap": 10, "max_question_length": 10}
    made = artifact(tmp_path, json.dumps(SQUAD), "json", task)
    own = Scorer.open(made)
    outputs = span_outputs(made)
    figures = own.figures(outputs)
    assert figures.values["f1"] == figures.values["no_answer/f1"] == 1.0
    assert "tuned on these same rows" in figures.notes["f1"]
    threshold = own.null_threshold(outputs)
    assert threshold is not None
    answered, silent = own.predictions(outputs)
    assert answered["predicted"] == "Bob" and answered["null_margin"] <= threshold
    assert answered["context"][answered["start"] : answered["end"]] == "Bob"
    assert (silent["predicted"], silent["start"]) == ("", None)
    assert silent["null_margin"] > threshold
    assert [row[0] for row in own.tables(outputs)[1].rows] == ["answer", "no answer"]


def test_without_answerless_questions_there_is_no_threshold(tmp_path: Path) -> None:
    squad = json.loads(json.dumps(SQUAD))
    del squad["data"][0]["paragraphs"][0]["qas"][1]
    made = artifact(tmp_path, json.dumps(squad), "json", {"objective": "answers"})
    own = Scorer.open(made)
    outputs = span_outputs(made)
    assert own.null_threshold(outputs) is None
    assert own.figures(outputs).values == {"exact": 1.0, "f1": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squad_v1", "squad_v2", "wikigold"])
def test_gold_outputs_of_real_sets_score_full_marks(tmp_path: Path, name: str) -> None:
    """But for answers that pieces cannot give back."""
    from pipeline.config import compose
    from stages.config import Config

    config = compose([f"task={name}", f"finetune.data='{tasks()}'"], None, Config).config
    assert isinstance(config, Config)
    vocab = vocab_artifact(tmp_path / "store", google_vocab("uncased"))
    made = run_task(tmp_path / "store", config, vocab)[1]
    own = Scorer.open(made)
    if name == "wikigold":
        assert own.figures(tag_outputs(made, len(own.classes))).values["f1"] == 1.0
        return
    outputs = span_outputs(made)
    figures = own.figures(outputs).values
    assert figures["exact"] > 0.99 and figures["f1"] > 0.995
    assert (
        len(list(own.predictions(outputs)))
        == json.loads(made.read_bytes("task.json"))["dev"]["rows"]
    )
