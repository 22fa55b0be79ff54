"""Questions and contexts: answers to pieces and back, in windows of every size."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.task_answers import best_answers
from stages.text.task_pieces import IGNORED, Features, joined
from stages.text.task_spans import EXACT, Context, contexts_of, span_features
from stages.text.tasks.rows import Answer, SpanRow
from stages.text.tokenizer_files import write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from tests.oracle.real_text import google_vocab
from tests.oracle.task_data import span_rows
from tests.oracle.unicode_strings import MARKS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), "[", "]", "中", ".", "##ab"],
    Normalisation(),
)
NORMALISATIONS = {
    "uncased": Normalisation(),
    "cased": Normalisation(lowercase=False, strip_accents=False),
    "chinese": Normalisation(),
}
INSIDE = {
    "uncased": {"v1": (0, 1), "v2": (2, 13), "de": (1, 0), "vi": (1, 1), "zh": (0, 0)},
    "cased": {"v1": (0, 1), "v2": (2, 13), "de": (0, 0), "vi": (0, 1), "zh": (0, 0)},
    "chinese": {"v1": (0, 1), "v2": (2, 5), "de": (1, 0), "vi": (1, 1), "zh": (0, 0)},
}
"""Answers of the real sets that begin, or end, inside of a piece ("Japan" of "Japanese")."""

FILES = {
    "v1": ["squad_v1/train-v1.1.json", "squad_v1/dev-v1.1.json"],
    "v2": ["squad_v2/train-v2.0.json", "squad_v2/dev-v2.0.json"],
    **{language: [f"xquad/xquad.{language}.json"] for language in ("de", "vi", "zh")},
}


def real_tokenizer(vocab: str) -> Tokenizer:
    return Tokenizer(google_vocab(vocab), NORMALISATIONS[vocab])


def located(rows: list[SpanRow], tokenizer: Tokenizer) -> Counter[str]:
    """How all answers come back; each that is called exact is looked at."""
    contexts = contexts_of((row.context for row in rows), tokenizer)
    reasons: Counter[str] = Counter()
    for row in rows:
        context = contexts[row.context]
        for answer in row.answers:
            place = context.locate(answer)
            reasons[place.reason] += 1
            start, end = context.pieces.starts[place.first], context.pieces.ends[place.last]
            assert (row.context[start:end] == answer.text) == (place.reason == EXACT)
    return reasons


@pytest.mark.parametrize("vocab", ["uncased", "cased", "chinese"])
def test_real_answers_come_back(vocab: str) -> None:
    tokenizer = real_tokenizer(vocab)
    for name, files in FILES.items():
        rows = [row for file in files for row in span_rows(file)]
        begin, end = INSIDE[vocab][name]
        inside = {"answers_begin_inside_piece": begin, "answers_end_inside_piece": end}
        expected = Counter(inside)
        expected[EXACT] = sum(len(row.answers) for row in rows) - begin - end
        assert located(rows, tokenizer) == expected, name


def rewritten(row: SpanRow, how: str) -> SpanRow:
    """The same row with decomposed accents or full-width characters."""

    def write(text: str) -> str:
        if how == "decomposed":
            return "".join(unicodedata.normalize("NFD", c) for c in text)
        return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)

    answers = (Answer(len(write(row.context[: a.start])), write(a.text)) for a in row.answers)
    return SpanRow(row.id, row.question, write(row.context), tuple(answers), False)


@pytest.mark.parametrize("how", ["decomposed", "full-width"])
def test_answers_in_other_characters_come_back(how: str) -> None:
    rows = [rewritten(row, how) for row in span_rows(FILES["vi"][0])[:300]]
    reasons = located(rows, real_tokenizer("chinese"))
    # Full-width letters give another word, which is spelled in other pieces.
    assert reasons[EXACT] >= 298
    assert sum(reasons.values()) == 300


@pytest.mark.parametrize(
    ("context", "start", "text", "first", "last", "reason"),
    [
        ("cab ba", 0, "cab", 0, 1, EXACT),
        ("cab ba", 2, "b", 1, 1, "answers_begin_inside_piece"),
        ("cab ba", 0, "ca", 0, 1, "answers_end_inside_piece"),
        ("öxöß", 1, "x", 0, 0, "answers_begin_inside_unknown"),
        ("öxöß", 0, "ö", 0, 0, "answers_end_inside_unknown"),
        ("a b ", 1, " b ", 1, 1, "answers_with_outer_space"),
        ("a\u200bb", 1, "\u200bb", 1, 1, "answers_with_outer_characters"),
        ("a \u200b b", 2, "\u200b", -1, -1, "answers_without_piece"),
        # An accent of its own belongs to its letter, and a syllable is not cut.
        ("e\u0301 a", 0, "e\u0301", 0, 0, EXACT),
        ("e\u0301 a", 0, "e", 0, 0, "answers_end_inside_piece"),
        ("a[SEP]b", 1, "[SEP]", 1, 5, EXACT),
    ],
)
def test_located(context: str, start: int, text: str, first: int, last: int, reason: str) -> None:
    found = contexts_of([context], TOKENIZER)[context].locate(Answer(start, text))
    assert (found.first, found.last, found.reason) == (first, last, reason)


CHARACTERS = st.one_of(
    st.sampled_from(
        ["a", "b", "ab", " ", ".", "中", "É", "ß", "가", "\u200b", "\x00", "👩\u200d👩"]
    ),
    st.sampled_from(MARKS),
    st.characters(exclude_categories=("Cs",)),
)


@st.composite
def span_row(draw: st.DrawFn) -> SpanRow:
    context = "".join(draw(st.lists(CHARACTERS, max_size=40)))
    answers = []
    if context and draw(st.booleans()):
        start = draw(st.integers(0, len(context) - 1))
        end = draw(st.integers(start + 1, len(context)))
        answers = [Answer(start, context[start:end])]
    impossible = not answers and draw(st.booleans())
    return SpanRow("", draw(st.text("ab ", max_size=12)), context, tuple(answers), impossible)


@given(
    st.lists(span_row(), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(0, 11),
    st.integers(0, 6),
    st.sampled_from([1, 60, 10**6]),
)
@settings(max_examples=100, deadline=None)
def test_any_rows(
    rows: list[SpanRow], room: int, overlap: int, question: int, chunk_characters: int
) -> None:
    overlap = min(overlap, room - 1)
    max_length = room + question + 3
    parts = span_features(rows, TOKENIZER, max_length, overlap, question, chunk_characters)
    found = joined(parts)
    contexts = contexts_of((row.context for row in rows), TOKENIZER)
    assert found.starts is not None and found.ends is not None
    for number, row in enumerate(rows):
        context = contexts[row.context]
        windows = np.flatnonzero(found.rows == number)
        check_row(found, windows, context)
        reads = [window(found, i) for i in windows]
        labels = {(int(found.starts[i]), int(found.ends[i])) for i in windows}
        if row.is_impossible:
            assert labels == {(0, 0)}
            continue
        place = context.locate(row.answers[0]) if row.answers else None
        if place is None or place.first < 0:
            assert labels == {(IGNORED, IGNORED)}
            continue
        for i, (a_length, start, end) in zip(windows, reads, strict=True):
            inside = start <= place.first and place.last < end
            at = a_length + 2 - start
            expected = (place.first + at, place.last + at) if inside else (0, 0)
            assert (found.starts[i], found.ends[i]) == expected
    counts = found.counts
    assert counts["rows"] == len(rows)
    assert counts["windows"] == len(found)
    reasons = [counts[n] for n in counts if n.startswith("answers_")]
    assert sum(reasons) == counts["answers"] == sum(len(row.answers) for row in rows)


def window(found: Features, i: int) -> tuple[int, int, int]:
    """Pieces of the question, and [start, end) of the context, by what is scored elsewhere."""
    a_length, length = int(found.a_length[i]), int(found.input_ids.lengths[i])
    start = _starts(found)[i]
    return a_length, start, start + length - a_length - 3


def _starts(found: Features) -> list[int]:
    """Where each window begins in its context: own runs lie end to end."""
    assert found.own is not None
    starts, before = [], 0
    for i, offset in enumerate(found.input_ids.offsets[:-1]):
        own = np.flatnonzero(found.own[offset : found.input_ids.offsets[i + 1]])
        before = 0 if i == 0 or found.rows[i] != found.rows[i - 1] else before
        starts.append(before - (int(own[0]) - int(found.a_length[i]) - 2) if len(own) else 0)
        before += len(own)
    return starts


def check_row(found: Features, windows: np.ndarray, context: Context) -> None:
    """Its windows hold the context's pieces and places, and score each of them once."""
    assert found.own is not None and found.char_starts is not None and found.char_ends is not None
    pieces = context.pieces
    scored: list[tuple[int, int, int]] = []
    for i in windows:
        a_length, start, end = window(found, i)
        here = slice(int(found.input_ids.offsets[i]), int(found.input_ids.offsets[i + 1]))
        ids, own = found.input_ids.values[here], found.own[here]
        starts, ends = found.char_starts[here], found.char_ends[here]
        body = slice(a_length + 2, len(ids) - 1)
        assert ids[body].tolist() == pieces.ids[start:end].tolist()
        assert starts[body].tolist() == pieces.starts[start:end].tolist()
        assert ends[body].tolist() == pieces.ends[start:end].tolist()
        assert [ids[0], ids[a_length + 1], ids[-1]] == [2, 3, 3]
        assert (starts[: a_length + 2] == -1).all() and starts[-1] == -1
        scored += zip(ids[own].tolist(), starts[own].tolist(), ends[own].tolist(), strict=True)
    expected = zip(pieces.ids.tolist(), pieces.starts.tolist(), pieces.ends.tolist(), strict=True)
    assert scored == list(expected)


def test_windows_equal_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    rows = span_rows(FILES["v1"][1])[:60]
    tokenizer = real_tokenizer("uncased")
    write_tokenizer(tmp_path, tokenizer, 512)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        [row.question for row in rows],
        [row.context for row in rows],
        truncation="only_second",
        max_length=110,
        stride=24,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found = joined(span_features(rows, tokenizer, 110, 24, 60))
    offsets = found.input_ids.offsets
    assert found.char_starts is not None and found.char_ends is not None
    assert [ids.tolist() for ids in np.split(found.input_ids.values, offsets[1:-1])] == (
        theirs["input_ids"]
    )
    assert found.rows.tolist() == theirs["overflow_to_sample_mapping"]
    ours = np.stack([found.char_starts, found.char_ends], axis=1)
    flat = np.array([place for row in theirs["offset_mapping"] for place in row])
    assert ours[found.char_starts >= 0].tolist() == flat[found.char_starts >= 0].tolist()


def test_long_questions_are_cut_and_counted() -> None:
    rows = [SpanRow("", "a b c d", "a b", (), True), SpanRow("", "", "", (), False)]
    (found,) = span_features(rows, TOKENIZER, 8, 2, 2)
    assert found.a_length.tolist() == [2, 0]
    assert found.input_ids.lengths.tolist() == [7, 3]
    assert found.starts is not None
    assert found.starts.tolist() == [0, IGNORED]
    counts = {name: count for name, count in found.counts.items() if count}
    assert counts == {
        "rows": 2, "rows_impossible": 1, "rows_without_gold": 1, "questions_truncated": 1,
        "question_pieces_cut": 2, "contexts_without_pieces": 1, "windows": 2,
    }  # fmt: skip


def test_an_answer_longer_than_every_window_is_counted() -> None:
    rows = [SpanRow("", "a", "a b a b a b", (Answer(0, "a b a b a"),), False)]
    (found,) = span_features(rows, TOKENIZER, 8, 1, 1)
    assert found.counts["rows_answer_in_no_window"] == 1
    assert found.starts is not None
    assert found.starts.tolist() == [0, 0]


def test_a_context_of_five_thousand_words() -> None:
    paragraphs = dict.fromkeys(row.context for row in span_rows(FILES["v1"][0]))
    text = " ".join(paragraphs)
    text = " ".join(text.split(" ")[:5000])
    tokenizer = real_tokenizer("uncased")
    rows = []
    for row in span_rows(FILES["v1"][0]):
        at = text.find(row.context)
        if at >= 0:
            answers = tuple(Answer(a.start + at, a.text) for a in row.answers)
            rows.append(SpanRow(row.id, row.question, text, answers, False))
    rows = rows[:: len(rows) // 12]
    found = joined(span_features(rows, tokenizer, 384, 128))
    assert len(found) > 20 * len(rows)
    assert found.starts is not None and found.ends is not None
    # A model that is sure of the gold places, and of [CLS] where there is none.
    gold = np.zeros((2, len(found.input_ids.values)), np.float32)
    for scores, places in zip(gold, (found.starts, found.ends), strict=True):
        scores[found.input_ids.offsets[:-1] + places] = np.where(places > 0, 9, 5)
    answers = list(best_answers(found, gold[0], gold[1], [text] * len(rows), 60))
    for row, answer in zip(rows, answers, strict=True):
        best = answer.answer()
        assert best is not None
        assert (best.start, best.text) == (row.answers[0].start, row.answers[0].text)


@pytest.mark.parametrize(
    ("row", "arguments", "message"),
    [
        (SpanRow("", "a", "ab", (Answer(1, "a"),), False), (20, 2, 5), "'a' is not at 1"),
        (SpanRow("", "a", "ab", (Answer(-1, "b"),), False), (20, 2, 5), "'b' is not at -1"),
        (SpanRow("", "a", "ab", (), True), (10, 2, 5), "leaves 2 pieces"),
    ],
)
def test_bad_input(row: SpanRow, arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(span_features([row], TOKENIZER, *arguments))
