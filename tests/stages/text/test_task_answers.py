"""The best answers over windows equal those of a text read at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.task_answers import (
    best_answers,
    best_spans,
    fill_class,
    stitched,
)
from stages.text.task_pieces import Features, joined, sequence_features
from stages.text.task_spans import contexts_of, span_features
from stages.text.task_words import word_features
from stages.text.tasks.rows import SequenceRow, SpanRow, TokenRow
from stages.text.windows import longest_whole
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from tests.oracle import plain_windows

TOKENIZER = Tokenizer([*SPECIAL_TOKENS, "a", "b", "##a", "##b", "ᄀ", "##ᅡ"], Normalisation())
FEW_SCORES = st.integers(-3, 3)
"""Few values, so that many are equal."""


def spread(found: Features, scores: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """[T] scores of pieces of contexts, the same in every window; [CLS] counts down by window."""
    assert found.char_starts is not None and found.own is not None
    values = np.full(len(found.char_starts), 99, np.float32)  # never to be looked at
    before = 0
    for i, offset in enumerate(found.input_ids.offsets[:-1].tolist()):
        row = int(found.rows[i])
        before = 0 if i == 0 or found.rows[i - 1] != row else before
        end = int(found.input_ids.offsets[i + 1])
        own = np.flatnonzero(found.own[offset:end])
        first = offset + int(found.a_length[i]) + 2
        start = before - (offset + int(own[0]) - first) if len(own) else 0
        values[first : end - 1] = scores[row][start : start + end - 1 - first]
        values[offset] = -i
        before += len(own)
    return values


@st.composite
def scored_contexts(draw: st.DrawFn) -> list[tuple[str, list[list[int]]]]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        context = draw(st.text("ab 가", max_size=30))
        size = len(contexts_of([context], TOKENIZER)[context].pieces.ids)
        scores = st.lists(FEW_SCORES, min_size=size, max_size=size)
        found.append((context, [draw(scores), draw(scores)]))
    return found


@given(scored_contexts(), st.integers(1, 14), st.integers(0, 13), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_equal_to_the_twin_without_windows(
    contexts: list[tuple[str, list[list[int]]]], room: int, overlap: int, longest: int
) -> None:
    overlap = min(overlap, room - 1)
    longest = min(longest, longest_whole(overlap))
    rows = [SpanRow("", "ab", context, (), False) for context, _ in contexts]
    found = joined(span_features(rows, TOKENIZER, room + 5, overlap, 2))
    starts, ends = (
        spread(found, [np.array(scores[side], np.float32) for _, scores in contexts])
        for side in (0, 1)
    )
    texts = [context for context, _ in contexts]
    answers = list(best_answers(found, starts, ends, texts, longest, n_best=10**4))
    assert [a.row for a in answers] == list(range(len(contexts)))
    for number, (context, scores) in enumerate(contexts):
        pieces = contexts_of([context], TOKENIZER)[context].pieces
        expected: dict[tuple[int, int], float] = {}
        for score, first, last in plain_windows.best_spans(scores[0], scores[1], longest):
            place = int(pieces.starts[first]), int(pieces.ends[last])
            expected[place] = max(score, expected.get(place, -99))
        best = {(found.start, found.end): found.score for found in answers[number].best}
        assert best == expected
        ranked = [-f.score for f in answers[number].best]
        assert ranked == sorted(ranked)
        assert all(f.text == context[f.start : f.end] for f in answers[number].best)
        assert answers[number].null_score == -2 * np.flatnonzero(found.rows == number)[-1]
    few = list(best_answers(found, starts, ends, texts, longest, n_best=1))
    assert [a.best for a in few] == [a.best[:1] for a in answers]


@given(
    st.lists(st.tuples(FEW_SCORES, FEW_SCORES, st.booleans()), min_size=1, max_size=25),
    st.integers(1, 30),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_best_spans(scores: list[tuple[int, int, bool]], longest: int, n_best: int) -> None:
    starts, ends = (np.array([s[i] for s in scores], np.float32) for i in (0, 1))
    places = np.flatnonzero([s[2] for s in scores])
    plain = plain_windows.best_spans(starts.tolist(), ends.tolist(), longest)
    expected = [span for span in plain if span[1] in places][:n_best]
    assert best_spans(starts, ends, places, longest, n_best) == expected


def one_answer(starts: list[float], ends: list[float]) -> Features:
    (found,) = span_features([SpanRow("", "", "a b", (), False)], TOKENIZER, 8, 1, 0)
    assert len(found.input_ids.values) == len(starts) == len(ends) == 5
    return found


def test_no_answer_by_threshold() -> None:
    starts, ends = [2.0, 0, 1, 0, 9], [3.0, 0, 0, 1, 9]
    found = one_answer(starts, ends)
    (answers,) = best_answers(found, np.array(starts), np.array(ends), {0: "a b"})
    assert (answers.null_score, answers.null_margin) == (5, 3)
    best = answers.answer()
    assert best is not None and (best.text, best.start, best.end, best.score) == ("a b", 0, 3, 2)
    assert answers.answer(3) == best
    assert answers.answer(2.5) is None


def test_a_context_without_pieces() -> None:
    (found,) = span_features([SpanRow("", "a", "\u200b", (), False)], TOKENIZER, 8, 1, 1)
    scores = np.zeros(len(found.input_ids.values))
    (answers,) = best_answers(found, scores, scores, ["\u200b"])
    assert answers.best == ()
    assert answers.answer() is None
    assert answers.null_margin == float("inf")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_no_numbers(value: float) -> None:
    found = one_answer([0.0] * 5, [0.0] * 5)
    with pytest.raises(ValueError, match="end scores are not finite"):
        list(best_answers(found, np.zeros(5), np.full(5, value), ["a b"]))
    with pytest.raises(ValueError, match=r"\(4,\) start scores for 5 positions"):
        list(best_answers(found, np.zeros(4), np.zeros(5), ["a b"]))


def test_fill_class() -> None:
    assert fill_class(["B", "O", "I"], {"B": 9}) == 1
    assert fill_class(["x", "y", "z"], {"x": 1, "y": 3, "z": 3}) == 1
    assert fill_class(["x", "y"]) == 0


def test_stitched_keeps_scores_and_fills() -> None:
    rows = [TokenRow("", ("a", "\x00", "ab"), None), TokenRow("", (), None)]
    (found,) = word_features(rows, TOKENIZER, 5, 1, [])
    assert found.own is not None and found.char_starts is not None
    logits = np.stack([found.char_starts, -found.char_starts], axis=1)
    first, second = stitched([(found, logits)], [3, 0], -7)
    assert first.tolist() == [[0, 0], [-7, -7], [2, -2]]
    assert second.shape == (0, 2)


def test_rows_that_are_missing() -> None:
    rows = [TokenRow("", ("a",), None)] * 2
    (found,) = word_features(rows, TOKENIZER, 5, 1, [])
    values = np.zeros(len(found.input_ids.values))
    for sizes, message in (([1], "row 1 instead"), ([1, 1, 1], "no features of row 2")):
        with pytest.raises(ValueError, match=message):
            list(stitched([(found, values)], sizes, 0))
    with pytest.raises(ValueError, match="5 values for 6 positions"):
        list(stitched([(found, values[1:])], [1, 1], 0))
    (texts,) = sequence_features([SequenceRow("", "a", None, None)], TOKENIZER, 5, None)
    with pytest.raises(ValueError, match="classification"):
        list(stitched([(texts, values)], [1], 0))
    with pytest.raises(ValueError, match="classification"):
        list(best_answers(texts, values, values, [""]))
