"""Rows of span extraction: SQuAD v1.1 and v2.0 (Rajpurkar et al., 2016 and 2018).

One JSON object: `data` -> articles -> `paragraphs` (`context`, `qas`) -> questions (`id`,
`question`, `answers` of `text` and `answer_start`, in v2.0 `is_impossible`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stages.text.listing import COMPRESSIONS, shown
from stages.text.records import Reject, record_id, text_pieces
from stages.text.streams import whole
from stages.text.tasks.rows import Answer, Read, SpanRow, TaskFileError, file_names, gather
from stages.text.tasks.sequences import text_problem
from stages.text.tasks.tables import file_error, json_kind, read_options

MAX_FILE_BYTES = 2_000_000_000

EXPECTED = 'SQuAD is expected: {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}'


def read_spans(
    paths: Sequence[str | Path], answers: bool = True, encoding: str = "utf-8"
) -> Read[SpanRow]:
    """Read the files of a set.

    A question counts as a row; so does a piece of the layout that can hold none. One wrong
    reference costs its question. Reasons: empty, missing_field, wrong_type, undecodable,
    missing_answer, empty_answer, answer_past_end, answer_not_there (the context holds it at another
    place), answer_not_in_context, answers_of_impossible, duplicate_id.

    Args:
        answers: questions without a reference that are not impossible are missing_answer; False
            for files to predict, where what stands under `answers` is not read.
        encoding: a byte order mark wins over it; "detect": by content.

    Raises:
        TaskFileError: a file is not there, damaged, not JSON or of another layout.
    """
    return gather(_found(paths, answers, encoding))


def _found(
    paths: Sequence[str | Path], answers: bool, encoding: str
) -> Iterator[tuple[str, SpanRow | Reject]]:
    for path, name, prefix in file_names(paths):
        seen: set[str] = set()
        for row in _questions(_articles(path, encoding), answers, prefix):
            if isinstance(row, SpanRow) and row.id in seen:
                row = Reject("duplicate_id", f"question {row.id}", "another question has this id")
            elif isinstance(row, SpanRow):
                seen.add(row.id)
            yield name, row


def _articles(path: str, encoding: str) -> list[Any]:
    compression = next((c for end, c in COMPRESSIONS.items() if path.lower().endswith(end)), "")
    options = read_options(path, compression, encoding)
    raw, damage = whole(text_pieces(path, compression, options), MAX_FILE_BYTES)
    if damage:
        raise file_error(path, damage.reason, str(damage))
    if raw is None:
        raise TaskFileError(f"{shown(path)} is longer than {MAX_FILE_BYTES} bytes: cut it")
    try:
        value = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise file_error(path, "undecodable", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise TaskFileError(f"{shown(path)} is not JSON: {error}. {EXPECTED}") from None
    if not isinstance(value, dict):
        raise TaskFileError(f"{shown(path)} holds {json_kind(value)}. {EXPECTED}")
    articles = value.get("data")
    if not isinstance(articles, list):
        keys = ", ".join(map(repr, list(value)[:10])) or "none"
        raise TaskFileError(f"{shown(path)} has no list 'data' (keys: {keys}). {EXPECTED}")
    if articles and not any(isinstance(a, dict) and "paragraphs" in a for a in articles):
        raise TaskFileError(f"{shown(path)}: nothing in 'data' has 'paragraphs'. {EXPECTED}")
    return articles


def _questions(articles: list[Any], answers: bool, prefix: str) -> Iterator[SpanRow | Reject]:
    for i, article in enumerate(articles):
        where = f"data[{i}]"
        paragraphs = _list(article, "paragraphs", where)
        if isinstance(paragraphs, Reject):
            yield paragraphs
            continue
        for j, paragraph in enumerate(paragraphs):
            inside = f"{where}.paragraphs[{j}]"
            questions = _list(paragraph, "qas", inside)
            if isinstance(questions, Reject):
                yield questions
                continue
            for k, question in enumerate(questions):
                place = f"{inside}.qas[{k}]"
                yield _question(paragraph.get("context"), question, place, answers, prefix)


def _list(value: Any, key: str, where: str) -> list[Any] | Reject:
    if not isinstance(value, dict):
        return Reject("wrong_type", where, f"an object is expected, not {json_kind(value)}")
    found = value.get(key)
    if isinstance(found, list):
        return found
    if found is None:
        return Reject("missing_field", where, f"nothing under {key!r}")
    return Reject("wrong_type", where, f"{key!r} holds {json_kind(found)}, not a list")


def _question(context: Any, value: Any, where: str, answers: bool, prefix: str) -> SpanRow | Reject:
    if not isinstance(value, dict):
        return Reject("wrong_type", where, f"an object is expected, not {json_kind(value)}")
    own = record_id(value.get("id"), prefix + where)
    question: Any = value.get("question")
    for text, key in ((context, "context"), (question, "question")):
        if problem := text_problem(text, key):
            return Reject(problem[0], where, problem[1])
    if not answers:
        return SpanRow(own, question, context, (), False)
    impossible = value.get("is_impossible", False)
    if not isinstance(impossible, bool):
        detail = f"'is_impossible' holds {json_kind(impossible)}, not true or false"
        return Reject("wrong_type", where, detail)
    found = _list(value, "answers", where)
    if isinstance(found, Reject):
        if not impossible or value.get("answers") is not None:
            missing = found.reason == "missing_field"
            return found._replace(reason="missing_answer") if missing else found
        found = []
    if impossible and found:
        return Reject("answers_of_impossible", where, "impossible to answer, and has answers")
    if not impossible and not found:
        detail = "no answer, and not 'is_impossible': is it a file to predict?"
        return Reject("missing_answer", where, detail)
    references: list[Answer] = []
    for item in found:
        answer = _answer(item, context, where)
        if isinstance(answer, Reject):
            return answer
        references.append(answer)
    return SpanRow(own, question, context, tuple(references), impossible)


def _answer(value: Any, context: str, where: str) -> Answer | Reject:
    if not isinstance(value, dict):
        return Reject("wrong_type", where, f"an answer is an object, not {json_kind(value)}")
    text, start = value.get("text"), value.get("answer_start")
    if not isinstance(text, str):
        return Reject("wrong_type", where, f"'text' of an answer holds {json_kind(text)}")
    if not isinstance(start, int) or isinstance(start, bool):
        detail = f"'answer_start' holds {json_kind(start)}, not an integer"
        return Reject("wrong_type", where, detail)
    if not text.strip():
        return Reject("empty_answer", where, "an answer without text")
    if start >= 0 and context[start : start + len(text)] == text:
        return Answer(start, text)
    if not 0 <= start <= len(context) - len(text):
        detail = (
            f"answer at {start} to {start + len(text)} of a context of {len(context)} characters"
        )
        reason = "answer_past_end"
    elif text in context:
        detail = f"not at {start}, but at {_nearest(context, text, start)}"
        reason = "answer_not_there"
    else:
        detail, reason = "not in its context", "answer_not_in_context"
    return Reject(reason, where, detail + _other_count(context, text, start), text[:100])


def _nearest(context: str, text: str, start: int) -> int:
    before, behind = context.rfind(text, 0, start + len(text)), context.find(text, start)
    found = [place for place in (before, behind) if place >= 0]
    return min(found, key=lambda place: abs(place - start))


def _other_count(context: str, text: str, start: int) -> str:
    """Offsets of other tools count bytes or UTF-16's units: say so where it would fit."""
    for encoding, unit, name in (("utf-8", 1, "bytes of UTF-8"), ("utf-16-le", 2, "UTF-16 units")):
        raw = context.encode(encoding)
        if start >= 0 and raw[start * unit :].startswith(text.encode(encoding, "surrogatepass")):
            return f" (offsets seem to count {name}; they must count code points)"
    return ""
