"""Features and rows through Arrow and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.task_pieces import Features, joined, sequence_features
from stages.text.task_spans import span_features
from stages.text.task_tables import feature_table, features_of, row_table, rows_of
from stages.text.task_words import word_features
from stages.text.tasks.rows import Answer, SequenceRow, SpanRow, TokenRow
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

TOKENIZER = Tokenizer([*SPECIAL_TOKENS, *"abc", "##a", "##b", "##c"], Normalisation())
WORD = st.text("abc", min_size=1, max_size=4)
TEXT = st.lists(WORD, min_size=1, max_size=30).map(" ".join)


def same(a: Features, b: Features) -> None:
    for field in fields(Features):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "input_ids":
            assert np.array_equal(left.values, right.values)
            assert np.array_equal(left.offsets, right.offsets)
        elif field.name != "counts":
            assert (left is None) == (right is None)
            if left is not None:
                assert left.dtype == right.dtype and np.array_equal(left, right)


@st.composite
def sets(draw: Any) -> tuple[Any, list[Features], list[Any]]:
    objective = draw(st.sampled_from(["classification", "regression", "tagging", "answers"]))
    count = draw(st.integers(1, 6))
    rows: list[Any] = []
    for number in range(count):
        if objective == "tagging":
            words = draw(st.lists(WORD, min_size=1, max_size=20))
            rows.append(TokenRow(str(number), tuple(words), tuple("OX"[len(w) % 2] for w in words)))
        elif objective == "answers":
            context = draw(TEXT)
            word = context.split()[-1]
            start = len(context) - len(word)
            found = (Answer(start, word),) if draw(st.booleans()) else ()
            rows.append(SpanRow(str(number), draw(TEXT), context, found, not found))
        else:
            label = draw(st.sampled_from([0.5, 2.0] if objective == "regression" else ["x", "y"]))
            pair = draw(st.none() | TEXT)
            rows.append(SequenceRow(str(number), draw(TEXT), pair, label))
    if objective == "tagging":
        parts = list(word_features(rows, TOKENIZER, 12, 4, ["O", "X"], chunk_words=7))
    elif objective == "answers":
        parts = list(span_features(rows, TOKENIZER, 20, 4, 6, chunk_characters=60))
    else:
        classes = None if objective == "regression" else ["x", "y"]
        parts = list(sequence_features(rows, TOKENIZER, 12, classes))
    return objective, parts, rows


@given(sets())
def test_round_trip(made: tuple[Any, list[Features], list[Any]]) -> None:
    objective, parts, rows = made
    tables = [feature_table(part, objective, True, {b"k": b"v"}) for part in parts]
    for part, table in zip(parts, tables, strict=True):
        same(part, features_of(table))
    together = pa.concat_tables(tables)
    same(joined(parts), features_of(together))
    same(joined(parts), features_of(together.combine_chunks()))
    assert rows_of(row_table(rows)) == rows
    plain = feature_table(parts[0], objective, False).column_names
    assert not {"own", "char_start", "char_end"} & set(plain)
