from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.tasks.rows import Answer, SpanRow, TaskFileError
from stages.text.tasks.spans import read_spans

CONTEXT = "Der Fuchs 🦊 sah süße Trauben und sah weg."


def answer(start: Any, text: Any) -> dict[str, Any]:
    return {"answer_start": start, "text": text}


def write(path: Path, questions: list[Any], context: Any = CONTEXT) -> Path:
    data = {"version": "v2.0", "data": [{"paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(data))
    return path


def question(answers: Any = (), **more: Any) -> dict[str, Any]:
    return {"id": "q", "question": "Was?", "answers": list(answers), **more}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


@st.composite
def rows(draw: st.DrawFn) -> list[SpanRow]:
    found = []
    for i in range(draw(st.integers(1, 4))):
        context = draw(TEXT)
        answers = []
        for _ in range(draw(st.integers(0, 2))):
            start = draw(st.integers(0, len(context) - 1))
            end = draw(st.integers(start + 1, len(context)))
            if context[start:end].strip():
                answers.append(Answer(start, context[start:end]))
        found.append(SpanRow(f"q{i}", draw(TEXT), context, tuple(answers), not answers))
    return found


@settings(max_examples=30, deadline=None)
@given(rows())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[SpanRow]
) -> None:
    paragraphs = [
        {
            "context": row.context,
            "qas": [
                {
                    "id": row.id,
                    "question": row.question,
                    "answers": [answer(a.start, a.text) for a in row.answers],
                    "is_impossible": row.is_impossible,
                }
            ],
        }
        for row in rows
    ]
    path = tmp_path_factory.mktemp("s") / "a.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    found = read_spans([path])
    assert list(found.rows) == rows
    assert found.counts == {"in": len(rows), "rows": len(rows)}
    blank = [SpanRow(r.id, r.question, r.context, (), False) for r in rows]
    assert list(read_spans([path], answers=False).rows) == blank


BAD: list[tuple[str, Any, str]] = [
    ("answer_past_end", question([answer(36, "sah weg.")]), "36 to 44 of a context of 41"),
    ("answer_past_end", question([answer(-2, "Der")]), "answer at -2 to 1"),
    ("answer_not_there", question([answer(0, "sah")]), "not at 0, but at 12"),
    ("answer_not_there", question([answer(29, "sah")]), "not at 29, but at 33"),
    ("answer_not_there", question([answer(15, "sah")]), "count bytes of UTF-8"),
    ("answer_not_there", question([answer(13, "sah")]), "count UTF-16 units"),
    ("answer_not_in_context", question([answer(0, "Igel")]), "not in its context"),
    ("answer_not_in_context", question([answer(12, "sag")]), "not in its context"),
    ("empty_answer", question([answer(3, " ")]), "without text"),
    ("missing_answer", question(), "is it a file to predict?"),
    ("missing_answer", {"id": "q", "question": "Was?"}, "nothing under 'answers'"),
    ("answers_of_impossible", question([answer(0, "Der")], is_impossible=True), "has answers"),
    ("wrong_type", question([answer("0", "Der")]), "'answer_start' holds a string"),
    ("wrong_type", question([answer(True, "er")]), "'answer_start' holds true or false"),
    ("wrong_type", question([answer(0, None)]), "'text' of an answer holds null"),
    ("wrong_type", question([answer(0, "Der"), 7]), "an answer is an object"),
    ("wrong_type", question(is_impossible="no"), "'is_impossible' holds a string"),
    ("wrong_type", {**question(), "answers": {}}, "'answers' holds an object, not a list"),
    ("wrong_type", 7, "an object is expected, not an integer"),
    ("empty", question([answer(0, "Der")], question=" "), "no text in 'question'"),
    ("missing_field", {"answers": [answer(0, "Der")]}, "nothing under 'question'"),
    ("undecodable", question([answer(0, "Der")], question="\ud800"), "surrogate"),
]


@pytest.mark.parametrize(("reason", "bad", "detail"), BAD)
def test_each_bad_question_is_counted(tmp_path: Path, reason: str, bad: Any, detail: str) -> None:
    fine = {**question([answer(12, "sah"), answer(33, "sah")]), "id": "fine"}
    path = write(tmp_path / "a.json", [bad, fine])
    found = read_spans([path])
    assert found.counts == {"in": 2, "rows": 1, reason: 1}
    assert found.rows[0].answers == (Answer(12, "sah"), Answer(33, "sah"))
    (shown,) = found.examples[reason]
    assert shown.startswith(f"{path} data[0].paragraphs[0].qas[0]: ") and detail in shown


def test_pieces_that_hold_no_question_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    good = {"context": CONTEXT, "qas": [question([answer(0, "Der")]), question([answer(0, "D")])]}
    no_id = {"context": CONTEXT, "qas": [{**question([answer(0, "Der")]), "id": None}]}
    paragraphs = [good, {"context": CONTEXT}, {"context": None, "qas": [question()]}, 3, no_id]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}, {"title": "x"}, None]}))
    found = read_spans([path])
    assert found.counts == {
        "in": 8,
        "rows": 2,
        "duplicate_id": 1,
        "missing_field": 3,
        "wrong_type": 2,
    }
    assert [row.id for row in found.rows] == ["q", "data[0].paragraphs[4].qas[0]"]


def test_impossible_questions_need_no_answers_and_two_files_no_ids_of_their_own(
    tmp_path: Path,
) -> None:
    paths = [
        write(tmp_path / name, [{"id": "q", "question": "Was?", "is_impossible": True}])
        for name in ("a.json", "b.json")
    ]
    found = read_spans(paths)
    assert found.rows == (SpanRow("q", "Was?", CONTEXT, (), True),) * 2


def test_compressed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [question([answer(0, "Der")])])
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_spans([packed]).rows == read_spans([path]).rows
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(TaskFileError, match="ends too early"):
        read_spans([packed])


WRONG = {
    "": "is not JSON",
    "{": "is not JSON",
    "[1]": "holds a list. SQuAD is expected",
    '{"rows": []}': "no list 'data' .keys: 'rows'",
    '{"data": {}}': "no list 'data'",
    '{"data": [{"context": "a", "question": "b"}]}': "nothing in 'data' has 'paragraphs'",
    "\ud800": "is not in its encoding",
}


@pytest.mark.parametrize("content", WRONG)
def test_a_file_of_another_layout_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(TaskFileError, match=WRONG[content]) as error:
        read_spans([path])
    assert str(path) in str(error.value)
