"""Signatures against datasketch and against the true similarity; bands."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import minhash
from stages.text.minhash import (
    NearDuplicateOptions,
    band_keys,
    band_shape,
    estimated_similarity,
    permutations,
    signatures,
    sketches,
)
from stages.text.random import mix64
from stages.text.segments import Hasher
from tests.oracle import plain_minhash

OPTIONS = NearDuplicateOptions()
WORDS = [f"w{i}" for i in range(3000)]
TEXTS = st.lists(
    st.lists(
        st.sampled_from(
            ["one", "Two,", "(three)", "“vier”", "紅樓夢", "é…", "5", "\n", "-", "ไทย"]
        ),
        max_size=25,
    ).map(" ".join),
    min_size=1,
    max_size=6,
)


def near(seed: int, words: int, changed: int) -> tuple[str, str]:
    """A random text, and one with some of its words replaced."""
    draw = random.Random(seed)
    left = [draw.choice(WORDS) for _ in range(words)]
    right = list(left)
    for at in draw.sample(range(words), changed):
        right[at] = draw.choice(WORDS)
    return " ".join(left), " ".join(right)


def shingle_hash(shingle: tuple[str, ...]) -> int:
    found = np.zeros(1, np.uint64)
    for i, word in enumerate(shingle):
        data = np.frombuffer(word.encode(), np.uint8)
        unit = Hasher(data)(np.array([0]), np.array([len(data)]))
        found = unit if i == 0 else mix64(found * minhash._NEXT + unit)
    return int(mix64(found)[0] >> np.uint64(32))


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_the_same_as_datasketch_of_the_same_hashes(texts: list[str]) -> None:
    datasketch = pytest.importorskip("datasketch")

    def unmixed(value: bytes) -> int:
        return int(struct.unpack("<I", value)[0])

    multipliers, summands = permutations(128)
    found = signatures(pa.array(texts), OPTIONS)
    for row, text in zip(found, texts, strict=True):
        peer = datasketch.MinHash(
            128, scheme="affine32", hashfunc=unmixed, permutations=(multipliers, summands)
        )
        hashes = [shingle_hash(s) for s in plain_minhash.shingles(text, 5)]
        # It mixes what it is given; ours is mixed already, so that is undone first.
        peer.update_batch([struct.pack("<I", _unmix(value)) for value in hashes])
        assert row.tolist() == peer.hashvalues.tolist()


def _unmix(value: int) -> int:
    """The inverse of MurmurHash3's 32-bit finaliser."""
    value ^= value >> 16
    value = value * pow(0xC2B2AE35, -1, 2**32) % 2**32
    value ^= value >> 13 ^ value >> 26
    value = value * pow(0x85EBCA6B, -1, 2**32) % 2**32
    return value ^ value >> 16


def test_the_estimate_has_no_bias() -> None:
    """Over 300 pairs the mean error is within 4 standard errors of 0, as the variance of J says."""
    texts, true = [], []
    for seed in range(300):
        pair = near(seed, 200, seed % 60)
        texts += pair
        true.append(plain_minhash.jaccard(*pair, 5))
    sketch = sketches(signatures(pa.array(texts), OPTIONS))
    estimate = estimated_similarity(sketch[::2], sketch[1::2])
    similarity = np.array(true)
    error = np.sqrt(np.sum(similarity * (1 - similarity) / 128 + 0.004 / 128)) / len(true)
    assert abs(float(np.mean(estimate - similarity))) < 4 * error
    assert float(np.max(np.abs(estimate - similarity))) < 0.2


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_neighbours_make_no_difference(texts: list[str]) -> None:
    whole = signatures(pa.array(texts), OPTIONS)
    alone = [signatures(pa.array([text]), OPTIONS)[0] for text in texts]
    assert np.array_equal(whole, np.stack(alone))


def test_pieces_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces lose the few shingles that run across their borders, and nothing else."""
    long, _ = near(1, 3000, 0)
    texts = pa.array(["short text of a few words", long, "x" * 3000, "é" * 2000, ""])
    whole = signatures(texts, OPTIONS)
    monkeypatch.setattr(minhash, "BLOCK_BYTES", 1000)
    parts = signatures(texts, OPTIONS)
    assert np.array_equal(parts[[0, 4]], whole[[0, 4]])
    assert np.mean(parts[1] == whole[1]) > 0.95
    assert np.all(parts[2] < 2**32 - 1)


def test_case_and_punctuation_make_no_difference() -> None:
    found = signatures(
        pa.array(["The cat (a tabby) sat: there.", "the cat A TABBY sat “there”", "a cat"]), OPTIONS
    )
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_signatures_stay_what_they_are() -> None:
    """Sketches of a run that was killed are read by the next one, on another machine too."""
    found = signatures(pa.array(["The quick brown fox jumps over the lazy dog."]), OPTIONS)
    assert found[0, :3].tolist() == [50331891, 151556570, 2387141072]


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9])
def test_bands_are_datasketchs_optimum(threshold: float) -> None:
    lsh = pytest.importorskip("datasketch.lsh")
    options = NearDuplicateOptions(threshold=threshold, permutations=64)
    expected = lsh._optimal_param(threshold, 64, minhash.MISTAKES, minhash.MISSES)
    assert band_shape(options) == expected


def test_keys_are_equal_where_bands_are() -> None:
    bands, rows = band_shape(OPTIONS)
    found = np.tile(np.arange(128, dtype=np.uint32), (3, 1))
    found[1, rows] = 7  # of the second band
    keys = band_keys(found, OPTIONS)
    assert keys.shape == (3, bands)
    assert np.array_equal(keys[0], keys[2])
    assert (keys[0] != keys[1]).tolist() == [i == 1 for i in range(bands)]
    assert len(np.unique(band_keys(np.zeros((1, 128), np.uint32), OPTIONS))) == bands
