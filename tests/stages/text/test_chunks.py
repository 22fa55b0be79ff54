import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.text.chunks import (
    MINIMUM_CUT_TOKENS,
    MINIMUM_HALF_TOKENS,
    Chunks,
    Sentences,
    chunk_ends,
    draw_targets,
    make_chunks,
)
from stages.text.random import Stream
from tests.oracle.pair_corpora import KINDS, from_lengths, made_up


def chunks_of(parts: list[list[int]], room: int, target: int | None = None) -> Chunks:
    targets = np.full(len(parts), room if target is None else target)
    return make_chunks(from_lengths(parts), targets, room)


def bounds(chunks: Chunks) -> list[tuple[int, int, int]]:
    return list(zip(chunks.first.tolist(), chunks.last.tolist(), chunks.cut.tolist(), strict=True))


def test_a_chunk_ends_when_the_target_is_reached() -> None:
    assert bounds(chunks_of([[4, 4, 4, 4, 1, 9]], 10)) == [(0, 3, -1), (3, 6, -1)]


def test_a_lone_sentence_joins_what_it_fits_with() -> None:
    assert bounds(chunks_of([[3, 4, 2]], 10, 6)) == [(0, 3, -1)]  # the chunk before
    assert bounds(chunks_of([[9, 2, 1]], 12, 9)) == [(0, 3, -1)]  # the chunk after
    assert bounds(chunks_of([[5, 5, 5, 5]], 12, 5)) == [(0, 2, -1), (2, 4, -1)]  # its like


def test_a_lone_sentence_borrows_from_a_neighbour_of_three() -> None:
    assert bounds(chunks_of([[4, 4, 4, 9]], 12)) == [(0, 2, -1), (2, 4, -1)]
    assert bounds(chunks_of([[12, 4, 4, 4]], 12)) == [(0, 2, -1), (2, 4, -1)]


def test_a_long_lone_sentence_is_cut_at_the_word_nearest_to_its_middle() -> None:
    shard = from_lengths([[30]])
    shard.word_starts[10:20] = False
    assert bounds(make_chunks(shard, np.array([30]), 30)) == [(0, 1, 20)]
    shard.word_starts[12] = True
    assert bounds(make_chunks(shard, np.array([30]), 30)) == [(0, 1, 12)]


def test_a_short_lone_sentence_is_lost_or_joins_all_the_same() -> None:
    lost = chunks_of([[MINIMUM_CUT_TOKENS - 1], [5, 5]], 20)
    assert bounds(lost) == [(1, 3, -1)] and lost.lost.tolist() == [0]
    assert bounds(chunks_of([[12, 15, 3]], 16)) == [(0, 3, -1)]


def test_a_sentence_of_one_long_word_cannot_be_cut() -> None:
    shard = from_lengths([[40]])
    shard.word_starts[1:] = False
    assert make_chunks(shard, np.array([20]), 20).lost.tolist() == [0]


@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(5, 125), st.floats(0, 1))
def test_every_sentence_is_in_one_chunk_or_lost(
    kind: str, seed: int, room: int, probability: float
) -> None:
    shard = made_up(kind, seed, scale=0.2).without_empty()
    targets = draw_targets(len(shard.origins), room, probability, Stream(seed))
    assert targets.min() >= 2 and targets.max() <= room
    chunks = make_chunks(shard, targets, room)
    inside = [np.arange(a, b) for a, b, _ in bounds(chunks)]
    every = np.concatenate([*inside, chunks.lost])
    assert np.array_equal(np.sort(every), np.arange(len(shard.lengths)))
    owner = shard.document_of
    assert np.array_equal(owner[chunks.first], owner[chunks.last - 1])
    whole = chunks.cut < 0
    assert np.array_equal(whole, chunks.last - chunks.first >= 2)
    alone = chunks.first[~whole]
    cut = chunks.cut[~whole]
    assert np.all(cut - shard.offsets[alone] >= MINIMUM_HALF_TOKENS)
    assert np.all(shard.offsets[alone + 1] - cut >= MINIMUM_HALF_TOKENS)
    assert np.all(shard.word_starts[cut])
    # Only what stands alone in its document is lost.
    sizes = np.diff(shard.documents)[owner[chunks.lost]]
    assert np.all(sizes == 1)


def test_chunk_ends_stop_at_the_document() -> None:
    shard = from_lengths([[3, 3, 3], [], [8, 1]])
    assert chunk_ends(shard, np.array([6, 6, 6])).tolist() == [2, 3, 3, 4, 5]


def test_short_targets_come_as_often_as_asked() -> None:
    targets = draw_targets(20_000, 125, 0.1, Stream(3))
    short = np.count_nonzero(targets < 125)
    assert abs(short / 20_000 - 0.1 * 123 / 124) < 0.008
    assert np.all(draw_targets(100, 125, 0.0, Stream(3)) == 125)
    assert abs(draw_targets(20_000, 125, 1.0, Stream(3)).mean() - 63.5) < 1.0


def test_without_empty_keeps_documents_and_positions() -> None:
    shard = from_lengths([[0, 3, 0], [0], [2]])
    filled = shard.without_empty()
    assert filled.lengths.tolist() == [3, 2]
    assert filled.documents.tolist() == [0, 1, 1, 2]
    assert filled.offsets.tolist() == [0, 3, 5]


@pytest.mark.parametrize(
    "change",
    [
        {"documents": np.array([0, 1])},
        {"documents": np.array([0, 2, 1])},
        {"documents": np.array([0, 3, 2])},
        {"origins": np.array([0])},
        {"lengths": np.array([3, -1])},
        {"word_starts": np.ones(4, dtype=np.bool_)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, np.ndarray]) -> None:
    fine = {
        "lengths": np.array([3, 2]),
        "documents": np.array([0, 1, 2]),
        "origins": np.array([0, 1]),
        "word_starts": np.ones(5, dtype=np.bool_),
    }
    Sentences(**fine)
    with pytest.raises(ValueError):
        Sentences(**{**fine, **change})
