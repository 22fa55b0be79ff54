from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from stages.text import engines
from stages.text.engines import ENGINES, EngineFailed
from stages.text.parity import (
    HARD_STRINGS,
    SAMPLE_BYTES,
    SAMPLE_TEXTS,
    Wanted,
    choose_engine,
    sample,
)
from stages.text.wordpiece import SPECIAL_TOKENS, Tokenizer
from stages.text.words import Normalisation

pytest.importorskip("nanotoken")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = [*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), "the", "##ing", "[", "]", "|"]


def tokenizer() -> Tokenizer:
    return Tokenizer(VOCAB, Normalisation())


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("auto", "nanotoken"),
        ("nanotoken", "nanotoken"),
        ("dictionary", "dictionary"),
        ("tokenizers", "tokenizers"),
    ],
)
def test_the_fastest_that_was_asked_for(wanted: Wanted, chosen: str) -> None:
    one = tokenizer()
    assert choose_engine(one, wanted, ["the rabbit"]) == []
    assert one.engine == chosen


def test_without_the_library_the_next_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanotoken", None)
    one = tokenizer()
    (note,) = choose_engine(one, "auto", ["the rabbit"])
    assert one.engine == "dictionary"
    assert note.startswith("tokeniser nanotoken is not used") and "ModuleNotFoundError" in note


def test_an_engine_that_differs_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_sentences", lambda data, ends: [b"the"] * len(ends))
    one = tokenizer()
    notes = choose_engine(one, "auto", ["the rabbit", "Alice", "the"])
    # `Plain` reads its sentences the same way, but the reference of the check does not.
    assert one.engine == "dictionary"
    (note,) = notes
    assert f"on {len(HARD_STRINGS) + 2} of {len(HARD_STRINGS) + 3} texts" in note


def test_a_breakdown_in_rust_is_an_error_of_ours() -> None:
    class Panic(BaseException):
        pass

    class Broken:
        def encode_batch(self, *_: object, **__: object) -> None:
            raise Panic("index out of bounds")

    one = tokenizer()
    assert choose_engine(one, "auto", []) == []
    one._encoder("nanotoken")._encoder = Broken()  # type: ignore[attr-defined]
    with pytest.raises(EngineFailed, match=r"index out of bounds.*speed\.tokenizer=dictionary"):
        one.parity_check(["the"])
    (note,) = choose_engine(one, "auto", [])
    assert one.engine == ENGINES[1] and "index out of bounds" in note


def test_a_sample_is_small_and_spread_over_texts_and_within_them() -> None:
    texts = ["é".join(f"{row}:{place}" for place in range(1000)) for row in range(500)]
    pieces = sample(pa.array(texts))
    assert len(pieces) == SAMPLE_TEXTS
    # A cut "é" is left out.
    assert all(SAMPLE_BYTES - 2 <= len(piece.encode()) <= SAMPLE_BYTES for piece in pieces)
    found = [piece.split("é")[1].split(":") for piece in pieces]
    rows, places = ([int(pair[side]) for pair in found] for side in (0, 1))
    assert rows == sorted(rows) and (rows[0], rows[-1]) == (0, 499)
    assert places == sorted(places) and places[0] == 1 and places[-1] > 900
    assert all(piece in texts[row] for piece, row in zip(pieces, rows, strict=True))


def test_a_sample_holds_all_of_a_few_short_texts() -> None:
    texts = ["", "the rabbit", "x" * SAMPLE_BYTES]
    assert sample(pa.array(texts, pa.large_string())) == texts
    assert sample(pa.array([], pa.string())) == []
