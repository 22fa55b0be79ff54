from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.word_counts import (
    Counted,
    add_up,
    merge_counts,
    merge_most_frequent,
    most_frequent,
)

Part = dict[str, int]
parts_of_counts = st.lists(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 5)), max_size=6
)


def counted(part: Part) -> Counted:
    return pa.array(list(part), pa.string()), np.array(list(part.values()), np.int64)


def plain(one: Counted) -> Part:
    return dict(zip(one[0].to_pylist(), one[1].tolist(), strict=True))


def test_most_frequent_words_stay_in_order() -> None:
    words, counts = pa.array(["a", "b", "c", "d"]), np.array([2, 5, 2, 1])
    kept, left = most_frequent(words, counts, 2)
    assert (kept.to_pylist(), left.tolist()) == (["a", "b"], [2, 5])
    assert most_frequent(words, counts, 4)[0] is words


@settings(deadline=None)
@given(parts_of_counts)
def test_adding_up_with_a_limit_keeps_the_most_frequent(parts: list[Part]) -> None:
    arrays = [counted(part) for part in parts]
    exact = plain(merge_counts(arrays))
    for limit in (1, 3, 100):
        kept = plain(merge_most_frequent(arrays, limit))
        assert kept.items() <= exact.items()
        assert min(limit // 2, len(exact)) <= len(kept) <= limit
        rarest_kept = min(kept.values(), default=0)
        assert all(exact[word] <= rarest_kept for word in exact.keys() - kept.keys()) or not kept
        if limit == 100 and len(exact) <= 100:
            assert kept == exact


@settings(deadline=None)
@given(parts_of_counts, st.integers(0, 8))
def test_adding_up_is_exact_below_the_limit(parts: list[Part], most_rows: int) -> None:
    expected: Counter[str] = Counter()
    for part in parts:
        expected.update(part)
    (words, counts), mass = add_up(map(counted, parts), len(expected) + 1, most_rows)
    assert list(zip(words.to_pylist(), counts.tolist(), strict=True)) == sorted(expected.items())
    assert mass == sum(expected.values())


def test_beyond_the_limit_the_rarest_are_forgotten_and_still_weighed() -> None:
    parts = [{"the": 1000, **{f"rare{i}-{j}": 1 for j in range(50)}} for i in range(20)]
    parts[0]["of"] = 400
    added, mass = add_up(map(counted, parts), limit=10, most_rows=20)
    found = plain(added)
    assert found["the"] == 20_000 and found["of"] == 400
    assert len(found) <= 10 + 51 and list(found) == sorted(found)
    assert mass == 20 * 1050 + 400
