import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.chunks import draw_targets
from stages.text.random import Stream
from stages.text.sentence_order import ordered_chunks
from tests.oracle.pair_corpora import KINDS, from_lengths, made_up


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from((8, 64, 512)))
def test_chunks_tile_the_documents(kind: str, seed: int, length: int) -> None:
    shard = made_up(kind, seed, scale=0.5).without_empty()
    room = length - 3
    stream = Stream(seed)
    chunks = ordered_chunks(
        shard, draw_targets(len(shard.origins), room, 0.1, stream), room, stream
    )
    assert np.all(chunks.first < chunks.middle) and np.all(chunks.middle < chunks.last)
    assert np.array_equal(shard.document_of[chunks.first], shard.document_of[chunks.last - 1])
    covered = np.zeros(len(shard.lengths) + 1, dtype=np.int64)
    np.add.at(covered, chunks.first, 1)
    np.add.at(covered, chunks.last, -1)
    covered = np.cumsum(covered)[:-1]
    covered[chunks.lost] += 1
    assert np.all(covered == 1)
    assert abs(2 * np.count_nonzero(chunks.swapped) - len(chunks.first)) <= 1


def test_walks_go_both_ways() -> None:
    # A walk ends in the sentence that fills the chunk: forwards in the last one, backwards in the
    # first one; without the latter these would be the longer ones.
    rng = np.random.default_rng(1)
    for sizes in ([40_000], [12] * 3000):
        shard = from_lengths([rng.geometric(0.05, n).tolist() for n in sizes])
        targets = np.full(len(sizes), 125)
        chunks = ordered_chunks(shard, targets, 125, Stream(1))
        first = shard.lengths[chunks.first]
        last = shard.lengths[chunks.last - 1]
        assert abs(first.mean() / last.mean() - 1) < 0.05
