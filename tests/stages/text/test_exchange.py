import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.text import exchange as module
from stages.text.chunks import make_chunks
from stages.text.exchange import (
    DROPPED,
    Exchange,
    Segments,
    exchange,
    match,
    match_one_of_each,
    toss,
)
from stages.text.random import Stream
from stages.text.truncation import truncated_lengths
from tests.oracle.pair_corpora import from_lengths, made_up

ROOM = 61


def segments(rng: np.random.Generator, count: int, origins: int) -> Segments:
    return Segments(
        groups=rng.integers(0, 2, count),
        origins=rng.integers(0, origins, count),
        a=rng.integers(1, 70, count),
        b=rng.integers(1, 70, count),
        b_sentences=rng.integers(1, 4, count),
    )


@given(st.integers(0, 10**6), st.integers(2, 200), st.integers(1, 6), st.sampled_from((0.0, 0.2)))
def test_matches_are_alike(seed: int, count: int, origins: int, tolerance: float) -> None:
    s = segments(np.random.default_rng(seed), count, origins)
    found = match(s, ROOM, tolerance, Stream(seed))
    assert len(np.unique(found)) == found.size
    kept = np.stack(truncated_lengths(s.a, s.b, ROOM))
    for i, j in found.tolist() + found[:, ::-1].tolist():
        assert s.groups[i] == s.groups[j] and s.origins[i] != s.origins[j]
        assert s.b_sentences[i] == s.b_sentences[j]
        new = np.stack(truncated_lengths(s.a[i : i + 1], s.b[j : j + 1], ROOM))[:, 0]
        limit = tolerance * min(kept[1, i], kept[1, j]) / np.sqrt(s.b_sentences[i])
        assert np.all(np.abs(new - kept[:, i]) <= limit)
        assert (new.sum() == ROOM) == (kept[:, i].sum() == ROOM)


@given(st.integers(0, 60), st.integers(0, 10**6))
def test_half_of_the_matches_swap(count: int, seed: int) -> None:
    matches = np.random.default_rng(seed).permutation(2 * count + 3)[: 2 * count].reshape(-1, 2)
    chosen = toss(matches, 2 * count + 3, Stream(seed))
    i = np.flatnonzero(chosen != DROPPED)
    j = chosen[i]
    assert len(np.unique(j)) == len(j)
    assert len(i) == 2 * count - count % 2
    assert abs(2 * np.count_nonzero(i != j) - len(i)) <= 1
    for one, other in matches.tolist():
        assert chosen[one] in (one, other, DROPPED) and chosen[other] in (one, other, DROPPED)


def exchanged(kind: str, seed: int, length: int) -> tuple[Exchange, np.ndarray]:
    shard = made_up(kind, seed, scale=4).without_empty()
    room = length - 3
    chunks = make_chunks(shard, np.full(len(shard.origins), room), room)
    groups = np.zeros(len(chunks.first), dtype=np.int64)
    made = exchange(shard, chunks, groups, room, Stream(seed))
    return made, shard.origins[shard.document_of[chunks.first]]


def test_most_chunks_find_a_partner() -> None:
    for length in (64, 128, 512):
        made, _ = exchanged("normal", 1, length)
        assert np.mean(made.chosen == DROPPED) < 0.04


def test_who_dominates_is_used_as_far_as_others_go() -> None:
    made, origins = exchanged("giant", 3, 128)
    giant = origins == np.bincount(origins).argmax()
    used = made.chosen != DROPPED
    assert giant.mean() > 0.6
    assert np.mean(used[~giant]) > 0.8
    assert abs(used[giant].sum() - used[~giant].sum()) <= 1


def test_the_label_does_not_follow_the_origin() -> None:
    rng = np.random.default_rng(4)
    shard = from_lengths([rng.integers(5, 40, n).tolist() for n in (6000, *[6] * 600)])
    chunks = make_chunks(shard, np.full(len(shard.origins), 125), 125)
    groups = np.zeros(len(chunks.first), dtype=np.int64)
    made = exchange(shard, chunks, groups, 125, Stream(2))
    kept = np.flatnonzero(made.chosen >= 0)
    swapped = made.chosen[kept] != kept
    dominant = shard.document_of[chunks.first[kept]] == 0
    assert abs(dominant[swapped].mean() - dominant[~swapped].mean()) < 0.02


def test_groups_never_meet() -> None:
    shard = made_up("normal", 2, scale=4).without_empty()
    chunks = make_chunks(shard, np.full(len(shard.origins), 61), 61)
    groups = shard.document_of[chunks.first] % 3
    made = exchange(shard, chunks, groups, 61, Stream(1))
    used = np.flatnonzero(made.chosen >= 0)
    assert len(used) > 0.9 * len(groups)
    assert np.array_equal(groups[used], groups[made.chosen[used]])


def test_what_is_not_alike_matches_in_a_toy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sentences of 4 and of 40 tokens never match.
    shard = from_lengths([[4] * 400, [40] * 60])
    room = 61
    chunks = make_chunks(shard, np.full(2, room), room)
    groups = np.zeros(len(chunks.first), dtype=np.int64)
    for least in (0, 2, 3):
        monkeypatch.setattr(module, "LEAST_MATCHES", least)
        made = exchange(shard, chunks, groups, room, Stream(1))
        assert np.count_nonzero(made.chosen >= 0) == 2 * least - least % 2


@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(2, 6))
def test_of_all_splits_of_a_chunk_one_matches(seed: int, count: int, origins: int) -> None:
    rng = np.random.default_rng(seed)
    one = segments(rng, count, origins)
    of = np.sort(rng.integers(0, count, 4 * count))
    s = Segments(one.groups[of], one.origins[of], *rng.integers(1, 9, (3, len(of))))
    found = match_one_of_each(s, of, ROOM, 0.2, Stream(seed))
    assert len(np.unique(of[found])) == found.size
    i, j = found.T
    assert np.all(s.groups[i] == s.groups[j]) and np.all(s.origins[i] != s.origins[j])
    assert np.all(s.b_sentences[i] == s.b_sentences[j])
    assert np.all(np.abs(s.b[i] - s.b[j]) <= 0.2 * np.minimum(s.b[i], s.b[j]))


def test_all_splits_are_searched_for_chunks_of_two_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of some 20 splits of each chunk one or two are like one of the other document's.
    rng = np.random.default_rng(3)
    parts = [np.maximum(1, rng.lognormal(np.log(m), 0.5, 5120 // m)).astype(int) for m in (14, 28)]
    shard = from_lengths([part.tolist() for part in parts])
    chunks = make_chunks(shard, np.full(2, 509), 509)
    groups = np.zeros(len(chunks.first), dtype=np.int64)

    def rows() -> float:
        made = [exchange(shard, chunks, groups, 509, Stream(seed)) for seed in range(20)]
        return float(np.mean([np.count_nonzero(m.chosen >= 0) for m in made]))

    searched = rows()
    monkeypatch.setattr(module, "SEARCH", 0)
    assert searched > 1.5 * rows()
