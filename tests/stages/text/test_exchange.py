import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.text import exchange as module
from stages.text.chunks import make_chunks
from stages.text.exchange import DROPPED, Exchange, Segments, exchange, match, toss
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
    made = exchange(shard, chunks, groups, room, 0, Stream(seed))
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
    made = exchange(shard, chunks, groups, 125, 0, Stream(2))
    kept = np.flatnonzero(made.chosen >= 0)
    swapped = made.chosen[kept] != kept
    dominant = shard.document_of[chunks.first[kept]] == 0
    assert abs(dominant[swapped].mean() - dominant[~swapped].mean()) < 0.02


def test_groups_never_meet() -> None:
    shard = made_up("normal", 2, scale=4).without_empty()
    chunks = make_chunks(shard, np.full(len(shard.origins), 61), 61)
    groups = shard.document_of[chunks.first] % 3
    made = exchange(shard, chunks, groups, 61, 8, Stream(1))
    used = np.flatnonzero(made.chosen >= 0)
    assert len(used) > 0.9 * len(groups)
    assert np.array_equal(groups[used], groups[made.chosen[used]])


def test_loose_matches_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sentences of 4 and of 40 tokens never match: only what least_matches asks for is left.
    shard = from_lengths([[4] * 400, [40] * 60])
    room = 61
    chunks = make_chunks(shard, np.full(2, room), room)
    groups = np.zeros(len(chunks.first), dtype=np.int64)
    for least in (0, 3):
        made = exchange(shard, chunks, groups, room, least, Stream(1))
        rows = np.count_nonzero(made.chosen >= 0)
        assert rows == 2 * least - least % 2
    monkeypatch.setattr(module, "LOOSE_SHARE", 0.0)
    made, _ = exchanged("normal", 1, 512)
    strict = np.count_nonzero(made.chosen >= 0)
    monkeypatch.undo()
    made, _ = exchanged("normal", 1, 512)
    assert strict <= np.count_nonzero(made.chosen >= 0) <= 1.04 * strict + 1
