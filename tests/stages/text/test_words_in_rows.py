import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.text.masking import MaskOptions, mask_rows
from stages.text.random import Stream
from stages.text.words_in_rows import Words, choose_spans, choose_words, find_words

LAW = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()


def test_the_law_is_the_papers() -> None:
    # Joshi et al. (2020), section 3.1: p = 0.2, clipped at 10, a mean of 3.8 words.
    options = MaskOptions(2, 3, 4, np.ones(9, np.bool_), np.zeros(9, np.bool_), 20)
    assert np.allclose(options.span_law, LAW)
    assert (LAW * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.005)


def random_words(rng: np.random.Generator, rows: int, longest: int) -> tuple[Words, np.ndarray]:
    sizes, text, continues = [], [], []
    for _ in range(rows):
        length = int(rng.integers(3, longest))
        special = rng.random(length) < 0.1
        special[[0, -1]] = True
        text.append(~special)
        continues.append(rng.random(length) < 0.3)
        sizes.append(length)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    never = rng.random(offsets[-1]) < 0.02
    return find_words(np.concatenate(text), np.concatenate(continues), never, offsets), offsets


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from((0.05, 0.15, 0.6)))
def test_no_quota_is_exceeded(seed: int, rows: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    words, offsets = random_words(rng, rows, 80)
    quota = np.maximum(1, (share * np.diff(offsets)).astype(np.int64))
    keys = Stream(seed).row_keys(np.arange(rows))
    row = np.repeat(np.arange(rows), np.diff(words.first))
    taken = choose_words(words, offsets, keys, quota)
    span = choose_spans(words, keys, quota, LAW)
    for chosen in (taken, span >= 0):
        used = np.bincount(row[chosen], weights=words.sizes[chosen], minlength=rows)
        assert np.all(used <= quota)
        assert np.count_nonzero(words.tokens(chosen, int(offsets[-1]))) == used.sum()
    # Words left out would all exceed what is left of the quota.
    used = np.bincount(row[taken], weights=words.sizes[taken], minlength=rows)
    assert np.all(words.sizes[~taken] > (quota - used)[row[~taken]])
    # A span is one stretch of words, from its own first word on, without a hole in the text.
    for start in np.unique(span[span >= 0]).tolist():
        inside = np.flatnonzero(span == start)
        assert inside[0] == start and np.array_equal(np.diff(inside), np.ones(len(inside) - 1))
        heads, ends = words.heads[inside], words.heads[inside] + words.sizes[inside]
        assert np.array_equal(heads[1:], ends[:-1])
        assert len(np.unique(row[inside])) == 1


def expected_spans(quota: int) -> NDArray[np.float64]:
    """[10] spans of 1..10 words in a row of one-token words: the last one is cut to the quota."""
    counts = np.zeros((quota + 1, 10))
    for left in range(1, quota + 1):
        for words, chance in enumerate(LAW, 1):
            counts[left, min(words, left) - 1] += chance
            if words < left:
                counts[left] += chance * counts[left - words]
    return counts[quota]


@pytest.mark.parametrize(("quota", "fault"), [(77, False), (19, False), (6, False), (19, True)])
def test_lengths_of_spans_follow_the_law(quota: int, fault: bool) -> None:
    rows = 4000 * 19 // quota
    length = round(quota / 0.15)
    offsets = np.arange(rows + 1) * length
    text = np.ones(rows * length, dtype=np.bool_)
    text[offsets[:-1]] = text[offsets[1:] - 1] = False
    words = find_words(text, np.zeros(len(text), dtype=np.bool_), None, offsets)
    law = np.full(10, 0.1) if fault else LAW
    span = choose_spans(words, Stream(3).row_keys(np.arange(rows)), np.full(rows, quota), law)
    _, sizes = np.unique(span[span >= 0], return_counts=True)
    assert sizes.sum() == rows * quota
    observed = np.bincount(sizes, minlength=11)[1:]
    expected = rows * expected_spans(quota)
    used = expected > 20
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    p = stats.chi2.sf(statistic, np.count_nonzero(used) - 1)
    assert (p < 0.001) if fault else (p > 0.001)


def test_a_span_shares_its_fate() -> None:
    rng = np.random.default_rng(1)
    rows, length = 6000, 120
    ids = rng.integers(10, 500, rows * length).astype(np.uint16)
    offsets = np.arange(rows + 1) * length
    ids[offsets[:-1]], ids[offsets[1:] - 1] = 2, 3
    ordinary = np.arange(500) >= 10
    options = MaskOptions(2, 3, 4, ordinary, np.zeros(500, dtype=np.bool_), 18, "span")
    masked = mask_rows(ids, offsets, options, Stream(5))
    words = options.words(ids, offsets)
    keys = Stream(5).row_keys(np.arange(rows))
    span = choose_spans(words, keys, options.quota(np.diff(offsets)), LAW)
    now, was = masked.ids[words.heads], ids[words.heads]
    starts, place = np.unique(span[span >= 0], return_inverse=True)
    hidden, kept = (now == 4)[span >= 0], (now == was)[span >= 0]
    size = np.bincount(place)
    fates = []
    for flag in (hidden, kept, ~hidden & ~kept):
        held = np.bincount(place, weights=flag)
        assert np.all((held == 0) | (held == size))
        fates.append(np.count_nonzero(held))
    for number, share in zip(fates, (0.8, 0.1, 0.1), strict=True):
        error = np.sqrt(share * (1 - share) / len(starts))
        assert abs(number / len(starts) - share) < 3.3 * error
