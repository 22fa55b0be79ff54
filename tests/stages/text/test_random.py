import hashlib

import numpy as np
import pytest

from stages.text.random import Stream, counter_bits, counter_uint32, mix64

GOLDEN_64 = [9682810887992345319, 12569759670055477465]
GOLDEN_32 = [2405689950, 997538918, 2161008247]
GOLDEN_UNIFORM = [0.35184145751380846, 0.9838931987297785]
GOLDEN_BELOW = [1, 0, 1486362378, 8]
GOLDEN_ORDER = [2, 3, 0, 4, 1, 5]
GOLDEN_BINOMIAL = [0, 1, 31, 499]
GOLDEN_KEYS = [7849923724519501469, 7721039204757579134, 508403796176294300]
GOLDEN_COUNTER = [6821347091903357510, 7024573493832661293]


def test_draws_are_these_for_ever() -> None:
    stream = Stream(12345, "pairs", 7, 0)
    assert stream.uint64(2).tolist() == GOLDEN_64
    assert stream.uint32(3).tolist() == GOLDEN_32
    assert stream.uniform(2).tolist() == GOLDEN_UNIFORM
    assert stream.below(np.array([10, 1, 2**32, 1000])).tolist() == GOLDEN_BELOW
    assert stream.permutation(6).tolist() == GOLDEN_ORDER
    assert stream.binomial_half(np.array([0, 3, 64, 1000])).tolist() == GOLDEN_BINOMIAL
    assert stream.row_keys(np.array([0, 1, 10**9])).tolist() == GOLDEN_KEYS
    assert counter_bits(stream.row_keys(np.array([5])), np.array([0, 2**32])).tolist() == (
        GOLDEN_COUNTER
    )


def test_splitmix_is_the_published_one() -> None:
    # First output of SplitMix64 seeded with 0, from Vigna's splitmix64.c.
    assert int(counter_bits(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.int64))[0]) == (
        0xE220A8397B1DCDAF
    )
    assert int(mix64(np.zeros(1, dtype=np.uint64))[0]) == 0


def test_names_are_not_confused() -> None:
    firsts = {
        int(stream.uint64(1)[0])
        for stream in (
            Stream(1, "a", "b"),
            Stream(1, "ab"),
            Stream(1, "a", 1),
            Stream(1, "a", "1"),
            Stream(2, "a", "b"),
            Stream(1, "a"),
            Stream(1),
        )
    }
    assert len(firsts) == 7
    assert Stream(1, "a").child("b").uint64(3).tolist() == Stream(1, "a", "b").uint64(3).tolist()


def test_integer_types_of_the_key_do_not_matter() -> None:
    assert Stream(3, np.int64(4)).name == Stream(3, 4).name  # type: ignore[arg-type]


def test_below_is_uniform_and_bounded() -> None:
    stream = Stream(1, "below")
    counts = np.bincount(stream.below(7, 70_000), minlength=7)
    assert len(counts) == 7
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # chi-square, 6 degrees, p = 0.001
    large = stream.below(2**32, 1000)
    assert large.min() >= 0 and large.max() < 2**32 and large.max() > 2**31
    for bounds in (0, 2**32 + 1):
        with pytest.raises(ValueError, match="bounds"):
            stream.below(bounds, 1)


def test_below_is_the_upper_part_of_the_product() -> None:
    bounds = np.array([3, 10**9 + 7, 2**32, 2**32 - 1] * 50)
    words = Stream(9).uint64(200).tolist()
    exact = [(word * bound) >> 64 for word, bound in zip(words, bounds.tolist(), strict=True)]
    assert Stream(9).below(bounds).tolist() == exact


def test_binomial_half_has_its_moments() -> None:
    for trials in (1, 5, 64, 65, 300):
        draws = Stream(2, trials).binomial_half(np.full(20_000, trials))
        assert draws.min() >= 0 and draws.max() <= trials
        assert abs(draws.mean() - trials / 2) < 4 * np.sqrt(trials / 4 / 20_000)
        assert abs(draws.var() / (trials / 4) - 1) < 0.06
    assert Stream(2).binomial_half(np.zeros(0, dtype=np.int64)).tolist() == []


def test_uniform_halves_and_order() -> None:
    stream = Stream(4)
    values = stream.uniform(50_000)
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 50_000)
    words = Stream(4).uint64(2)
    halves = [int(w) >> shift & 0xFFFFFFFF for w in words for shift in (0, 32)]
    assert Stream(4).uint32(3).tolist() == halves[:3]
    assert sorted(stream.permutation(100).tolist()) == list(range(100))


def test_row_bits_depend_on_row_and_column_alone() -> None:
    stream = Stream(8, "mask")
    rows = np.arange(1000)
    whole = counter_uint32(stream.row_keys(rows), 33)
    stream.uint64(5)
    some = counter_uint32(stream.row_keys(rows[[900, 3, 44]]), 20)
    assert np.array_equal(some, whole[[900, 3, 44], :20])
    assert len(np.unique(stream.row_keys(rows))) == 1000
    counts = np.bincount(whole.ravel() >> 28, minlength=16)
    expected = whole.size / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # 15 degrees, p = 0.001


def test_the_key_is_sha256_of_the_name() -> None:
    digest = hashlib.sha256(b'[7, "x", 2]').digest()
    philox = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
    assert Stream(7, "x", 2).uint64(4).tolist() == philox.random_raw(4).tolist()
