import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.text.exchange import BLOCK_CHUNKS, DROPPED, _cycles, exchange
from stages.text.random import Stream


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40))
def test_cycles_solve_all_unless_one_origin_holds_more_than_half(origins: list[int]) -> None:
    cycles = _cycles(list(range(len(origins))), origins)
    members = [i for cycle in cycles for i in cycle]
    assert len(members) == len(set(members))
    for cycle in cycles:
        assert 2 <= len(cycle) <= 3
        for i, j in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert origins[i] != origins[j]
    held = max(origins.count(origin) for origin in origins)
    if 2 * held <= len(origins):
        assert len(members) == len(origins)
    else:
        assert len(members) >= 2 * (len(origins) - held)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=150), st.integers(0, 10**6)
)
def test_exchange_keeps_its_promises(chunks: list[tuple[int, int]], seed: int) -> None:
    origins = np.asarray([c[0] for c in chunks], dtype=np.int64)
    kinds = np.asarray([c[1] for c in chunks], dtype=np.int64)
    lengths = np.random.default_rng(seed).integers(0, 9, len(chunks))
    chosen = exchange(kinds, (lengths,), origins, Stream(seed))
    i = np.flatnonzero(chosen != DROPPED)
    j = chosen[i]
    assert len(np.unique(j)) == len(j)
    assert np.array_equal(kinds[i], kinds[j])
    exchanged = i != j
    assert np.all(origins[i[exchanged]] != origins[j[exchanged]])
    assert abs(2 * int(exchanged.sum()) - len(i)) <= 1


def test_nothing_is_dropped_where_partners_abound() -> None:
    for count in (3, 4, 5, 6, 7, 50, 1001):
        origins = np.arange(count)
        chosen = exchange(np.zeros(count, dtype=np.int64), (origins % 5,), origins, Stream(count))
        assert np.all(chosen >= 0)
        assert np.array_equal(np.sort(chosen), origins)


def test_two_chunks_leave_one_row() -> None:
    chosen = exchange(np.zeros(2, dtype=np.int64), (np.arange(2),), np.arange(2), Stream(1))
    assert sorted((chosen == DROPPED).tolist()) == [False, True]


def test_partners_are_alike() -> None:
    rng = np.random.default_rng(3)
    count = 64 * BLOCK_CHUNKS
    lengths = rng.integers(0, 125, count)
    chosen = exchange(np.zeros(count, dtype=np.int64), (lengths,), np.arange(count), Stream(1))
    assert np.mean(np.abs(lengths - lengths[chosen])) < 0.2


def test_the_label_does_not_follow_the_origin() -> None:
    # One origin holds 70 %: what it has too much is dropped, and of the rest half is exchanged.
    rng = np.random.default_rng(4)
    origins = np.where(rng.random(6000) < 0.7, 0, np.arange(6000) + 1)
    chosen = exchange(
        np.zeros(6000, dtype=np.int64), (rng.integers(0, 9, 6000),), origins, Stream(2)
    )
    kept = np.flatnonzero(chosen >= 0)
    exchanged = chosen[kept] != kept
    dominant = origins[kept] == 0
    assert abs(dominant[exchanged].mean() - dominant[~exchanged].mean()) < 0.02
