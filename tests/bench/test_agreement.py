from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.agreement_compare import compared, names, wrong_of
from bench.agreement_tasks import TASKS, Row, Task

CLASSIFIED = {"label": "a", "score": 0.75, "scores": {"a": 0.75, "b": 0.25}}
VALUE = {"value": 2.0}
TAGGED = {
    "words": [{"word": "x", "tag": "O", "score": 0.5}, {"word": "", "tag": "O", "score": None}]
}
ANSWERED = {"answer": "x", "start": 3, "end": 4, "score": 0.5, "null_margin": -1.0}


def _figures(one: Row, other: Row, logits: tuple[float, float] = (0.0, 0.0)) -> Row:
    left, right = (
        {"results": [said], "ids": [[1, 2]], "logits": [[x, 1.0]]}
        for said, x in zip((one, other), logits, strict=True)
    )
    return {"command_says_the_same": True, "pairs": {"left / right": compared(left, right)}}


@pytest.mark.parametrize("result", [CLASSIFIED, VALUE, TAGGED, ANSWERED])
def test_the_same_results_agree(result: Row) -> None:
    figures = _figures(result, result)
    assert set(figures["pairs"]["left / right"]["largest"].values()) == {0.0}
    assert list(wrong_of("t", figures)) == []


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (CLASSIFIED, CLASSIFIED | {"scores": {"a": 0.7502, "b": 0.2498}}, "probability"),
        (VALUE, {"value": 2.0002}, "value"),
        (TAGGED, {"words": [TAGGED["words"][0] | {"score": 0.5002}, TAGGED["words"][1]]}, "prob"),
        (TAGGED, {"words": [TAGGED["words"][0], TAGGED["words"][1] | {"score": 0.5}]}, "prob"),
        (ANSWERED, ANSWERED | {"score": 0.5002}, "probability"),
        (ANSWERED, ANSWERED | {"null_margin": float("nan")}, "null margin"),
    ],
)
def test_a_difference_of_a_number_is_wrong(one: Row, other: Row, kind: str) -> None:
    (line,) = wrong_of("t", _figures(one, other))
    assert kind in line


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CLASSIFIED, CLASSIFIED | {"label": "b"}),
        (TAGGED, {"words": [TAGGED["words"][0] | {"tag": "I-X"}, TAGGED["words"][1]]}),
        (ANSWERED, ANSWERED | {"answer": "y"}),
        (ANSWERED, ANSWERED | {"start": 2}),
    ],
)
def test_another_name_is_wrong(one: Row, other: Row) -> None:
    assert names(one) != names(other)
    (line,) = wrong_of("t", _figures(one, other))
    assert "another label, tag or answer" in line


def test_logits_and_ids_are_compared() -> None:
    (line,) = wrong_of("t", _figures(VALUE, VALUE, (0.0, 0.001)))
    assert "logits differs by 0.001" in line
    (line,) = wrong_of("t", _figures(VALUE, VALUE, (0.0, float("nan"))))
    assert "logits" in line
    left = {"results": [VALUE], "ids": [[1]], "logits": [[1.0]]}
    figures = {
        "command_says_the_same": False,
        "pairs": {"p": compared(left, left | {"ids": [[2]]})},
    }
    assert [line.partition(": ")[2] for line in wrong_of("t", figures)] == [
        "clozeline predict says something else than Predictor", "1 rows have other token ids",
    ]  # fmt: skip


FILES = {
    "sst2/train.tsv": "sentence\tlabel\na b\t1\nc \" d\t0\ne\t1\n",
    "qnli/train.tsv": "index\tquestion\tsentence\n0\tq 1?\ts 1\n1\tq 2?\ts 2\n2\tq\ts\n",
    "med/train.tsv": "sentence1\tsentence2\tgold_label\na\tb\tentailment\nc\td\tneutral\ne\tf\t\n",
    "wikigold/train.conll": "-DOCSTART- O\n\nx O\ny I-A\n\nz O\n\nw O\n",
    "squad_v1/train-v1.1.json": json.dumps({"data": [{"paragraphs": [
        {"context": "c", "qas": [{"question": " q"}]},
        {"context": "d", "qas": [{"question": "r"}, {"question": "s"}]},
        {"context": "e", "qas": [{"question": "t"}]},
    ]}]}),
}  # fmt: skip
ROWS = {
    "sst2": [{"text": "a b"}, {"text": 'c " d'}],
    "qnli": [{"text": "q 1?", "text_b": "s 1"}, {"text": "q 2?", "text_b": "s 2"}],
    "wikigold": [{"words": ["x", "y"]}, {"words": ["z"]}],
    "squad_v1": [{"question": "q", "context": "c"}, {"question": "r", "context": "d"}],
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_files_are_cut_to_whole_rows(task: Task) -> None:
    found = task
    (text,) = (text for name, text in FILES.items() if name.startswith(found.source or found.name))
    cut = found.cut(text, 2)
    if found.objective == "regression":
        rows = [json.loads(line) for line in cut.splitlines()]
        assert rows == [
            {"first": "a", "second": "b", "follows": 1.0},
            {"first": "c", "second": "d", "follows": 0.0},
        ]
    else:
        assert list(found.rows(cut)) == ROWS[found.name]
        assert len(list(found.rows(text))) > 2


def test_files_that_are_not_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"sst2/train\.tsv is not there: --data DIR"):
        TASKS[0].write(tmp_path, tmp_path / "cut")
