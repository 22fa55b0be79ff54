"""Stretches and their hashes."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import character_kinds, segments
from stages.text.buffers import text_buffer
from stages.text.segments import CHUNK_BYTES, Hasher, lines, paragraphs, units, words
from tests.oracle import plain_quality

TEXTS = st.lists(
    st.lists(
        st.sampled_from(["a", "bc", "é", " ", "\n", "\n\n", "紅", "ก", "豈", "𠀀"]), max_size=15
    )
    .map("".join)
    .map(lambda text: "\n\n".join(p.strip("\n") for p in text.split("\n\n") if p.strip("\n"))),
    max_size=5,
)


def stretches(kind: object, texts: list[str]) -> list[str]:
    data, offsets = text_buffer(pa.array(texts, pa.string()))
    starts, ends = kind(data, offsets)  # type: ignore[operator]
    assert np.all(np.diff(starts) > 0)
    return [data[a:b].tobytes().decode() for a, b in zip(starts, ends, strict=True)]


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_stretches(texts: list[str]) -> None:
    assert stretches(words, texts) == [word for t in texts for word in t.split()]
    assert stretches(lines, texts) == [line for t in texts for line in t.split("\n") if line]
    assert stretches(paragraphs, texts) == [p for t in texts for p in t.split("\n\n") if p]
    assert stretches(units, texts) == [unit for t in texts for unit in plain_quality.units(t)]


def test_hashes_know_bytes_and_not_places() -> None:
    draw = np.random.default_rng(0)
    data = draw.integers(97, 101, 3 * CHUNK_BYTES, dtype=np.uint8)
    starts = np.sort(draw.integers(0, len(data) - 9, 5000))
    # The longest run over borders of chunks.
    ends = starts + draw.integers(1, 9, 5000)
    starts, ends = np.append(starts, 5), np.append(ends, 2 * CHUNK_BYTES + 77)
    found = Hasher(data)(starts, ends)
    seen: dict[bytes, int] = {}
    for a, b, key in zip(starts, ends, found.tolist(), strict=True):
        assert seen.setdefault(data[a:b].tobytes(), key) == key
    assert len(set(seen.values())) == len(seen)
    moved = np.concatenate((data[:100], data))
    assert np.array_equal(Hasher(moved)(starts + 100, ends + 100), found)


def test_hashes_stay_what_they_are() -> None:
    data = np.frombuffer("The cat. été".encode(), np.uint8)
    found = Hasher(data)(np.array([0, 9]), np.array([7, 14]))
    assert found.tolist() == [16789585282147556998, 7077154950857792300]


def test_no_letter_is_a_symbol() -> None:
    """Nor a digit; and signs of the scripts in use are none of the letters."""
    text = "".join(chr(c) for c in range(0x20, 0x20000) if not 0xD800 <= c < 0xE000)
    data = np.frombuffer(text.encode(), np.uint8)
    kinds = character_kinds.kinds(data)
    kinds = kinds[kinds != character_kinds.CONTINUATION]
    assert len(kinds) == len(text)
    for character, kind in zip(text, kinds.tolist(), strict=True):
        category = unicodedata.category(character)
        if category[0] in "LM":
            assert kind == character_kinds.LETTER, hex(ord(character))
        if kind == character_kinds.DIGIT:
            assert category == "Nd", hex(ord(character))
    common = "0٠०０.,;:!?()[]{}<>«»“”‘’„–—…•§©®°±×÷€£¥₹→←∀∑─█■●☃❤。、，！？：；（）「」『』·।॥؟،"
    data = np.frombuffer(common.encode(), np.uint8)
    assert character_kinds.LETTER not in character_kinds.kinds(data)


def test_rows_with_a_phrase() -> None:
    data, offsets = text_buffer(pa.array(["abc", "", "bcab", "c", "xx abc abc"]))
    assert list(segments.rows_with(data.tobytes(), b"abc", offsets)) == [0, 4]
