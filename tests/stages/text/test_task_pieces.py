"""Texts and pairs as features, cut as transformers cuts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.task_pieces import (
    IGNORED,
    add_counts,
    chunks,
    joined,
    longest_first,
    sequence_features,
)
from stages.text.tasks.rows import SequenceRow
from stages.text.tokenizer_files import write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from tests.oracle.real_text import google_vocab
from tests.oracle.task_data import sequence_rows

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), "[", "]"], Normalisation()
)


def row(a: str, b: str | None = None, label: str | float | None = None) -> SequenceRow:
    return SequenceRow("7", a, b, label)


@pytest.mark.parametrize(
    ("name", "columns", "max_length"),
    [
        ("sst2/dev.tsv", [0, 1], 16),
        ("qnli/dev.tsv", [1, 2, 3], 41),
        ("qnli/dev.tsv", [2, 1, 3], 64),
    ],
)
def test_equal_to_transformers(
    name: str, columns: list[int], max_length: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    rows = sequence_rows(name, columns)[:400]
    tokenizer = Tokenizer(google_vocab("uncased"), Normalisation())
    write_tokenizer(tmp_path, tokenizer, 512)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        [r.text_a for r in rows],
        None if rows[0].text_b is None else [r.text_b for r in rows],
        truncation=True,
        max_length=max_length,
    )
    classes = sorted({str(r.label) for r in rows})
    found = joined(sequence_features(rows, tokenizer, max_length, classes))
    offsets = found.input_ids.offsets
    ours = np.split(found.input_ids.values, offsets[1:-1])
    assert [ids.tolist() for ids in ours] == theirs["input_ids"]
    segments = [
        [int(i >= a + 2) for i in range(n)]
        for a, n in zip(found.a_length, found.input_ids.lengths, strict=True)
    ]
    assert segments == theirs["token_type_ids"]
    assert found.labels is not None
    assert [classes[i] for i in found.labels] == [r.label for r in rows]
    counts = found.counts
    assert 0 < counts["truncated"] < counts["rows"] == len(rows)
    specials = len(rows) * (2 if rows[0].text_b is None else 3)
    assert offsets[-1] == counts["pieces"] - counts["pieces_cut"] + specials


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
@settings(deadline=None)
def test_longest_first(a: int, b: int, room: int) -> None:
    theirs = tokenizers.Tokenizer(WordLevel({"x": 0, "[UNK]": 1}, unk_token="[UNK]"))
    theirs.pre_tokenizer = WhitespaceSplit()
    theirs.enable_truncation(room, strategy="longest_first")
    types = theirs.encode("x " * a, "x " * b).type_ids
    kept = longest_first(np.array([[a, b]]), np.array([room]))
    assert kept.tolist() == [[len(types) - sum(types), sum(types)]]


def test_special_tokens_in_text_are_characters() -> None:
    (found,) = sequence_features([row("[SEP] a", "[CLS]")], TOKENIZER, 20, None)
    tokens = [TOKENIZER.vocab[i] for i in found.input_ids.values]
    assert tokens == [
        "[CLS]",
        "[",
        "s",
        "##e",
        "##p",
        "]",
        "a",
        "[SEP]",
        "[",
        "c",
        "##l",
        "##s",
        "]",
        "[SEP]",
    ]
    assert found.a_length.tolist() == [6]


def test_mixed_rows_and_counts() -> None:
    rows = [row("ab c", None, "x"), row("", "a"), row("abcdef", "ab", "y"), row("\x00", None)]
    (found,) = sequence_features(rows, TOKENIZER, 8, ["x", "y"])
    assert found.input_ids.lengths.tolist() == [5, 4, 8, 2]
    assert found.a_length.tolist() == [3, 0, 3, 0]
    assert found.labels is not None
    assert found.labels.tolist() == [0, IGNORED, 1, IGNORED]
    assert found.counts == {
        "rows": 4, "truncated": 1, "pieces": 12, "pieces_cut": 3, "without_pieces": 2
    }  # fmt: skip


def test_chunks_do_not_show() -> None:
    rows = [row("ab " * i, "c" * i if i % 2 else None, float(i)) for i in range(40)]
    whole = joined(sequence_features(rows, TOKENIZER, 30, None))
    cut = [rows[i : i + 7] for i in range(0, 40, 7)]
    parts = [joined(sequence_features(part, TOKENIZER, 30, None)) for part in cut]
    assert np.concatenate([p.input_ids.values for p in parts]).tolist() == (
        whole.input_ids.values.tolist()
    )
    assert whole.labels is not None
    assert whole.labels.dtype == np.float32
    assert add_counts(p.counts for p in parts) == whole.counts
    assert [len(c) for c in chunks(["aa"] * 5, len, 36)] == [2, 2, 1]


def test_numbers_without_gold() -> None:
    (found,) = sequence_features([row("a"), row("b", None, 2)], TOKENIZER, 8, None)
    assert found.labels is not None
    assert np.isnan(found.labels[0])
    assert found.labels[1] == 2


@pytest.mark.parametrize(
    ("label", "classes", "max_length", "message"),
    [
        ("z", ["x", "y"], 8, "'z' is none of the classes x, y"),
        ("z", None, 8, "'z' is no number"),
        ("x", ["x"], 3, "max_length=3"),
    ],
)
def test_bad_input(label: str, classes: list[str] | None, max_length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(sequence_features([row("a", None, label)], TOKENIZER, max_length, classes))
