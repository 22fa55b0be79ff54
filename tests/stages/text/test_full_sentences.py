import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.chunks import Sentences
from stages.text.full_sentences import full_sentences
from stages.text.pairing import NoPairsError
from stages.text.random import Stream
from stages.text.rows import gather
from tests.oracle.pair_corpora import KINDS, from_lengths, made_up

CLS, SEP = -1, -2


def plain_rows(shard: Sentences, length: int, across: bool) -> list[list[int]]:
    """Twin: sentences appended one by one; tokens are their positions."""
    rows: list[list[int]] = []
    row: list[int] = []
    document = -1
    for s, owner in enumerate(shard.document_of.tolist()):
        start, end = int(shard.offsets[s]), int(shard.offsets[s + 1])
        while start < end:
            stop = end
            if end - start > length - 2:
                words = [p for p in range(start + 1, start + length - 1) if shard.word_starts[p]]
                stop = words[-1] if words else start + length - 2
            between = [SEP] if row and owner != document else []
            full = len(row) + len(between) + stop - start > length - 2
            if row and (full or (between and not across)):
                rows.append(row)
                row, between = [], []
            row = [*row, *between, *range(start, stop)]
            document = owner
            start = stop
    return [[CLS, *r, SEP] for r in [*rows, *([row] if row else [])]]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from((8, 32, 128)), st.booleans())
def test_rows_are_those_of_the_plain_twin(kind: str, seed: int, length: int, across: bool) -> None:
    shard = made_up(kind, seed, scale=0.2)
    plan = full_sentences(
        shard, max_seq_length=length, stream=Stream(seed), across_documents=across
    )
    total = len(shard.word_starts)
    table = gather(
        np.arange(total, dtype=np.uint32),
        plan,
        pa.array(np.arange(len(shard.origins))),
        cls_id=total,
        sep_id=total + 1,
        vocabulary_size=2**17,
    )
    names = {total: CLS, total + 1: SEP}
    rows = [[names.get(t, t) for t in row] for row in table["input_ids"].to_pylist()]
    assert sorted(rows, key=lambda r: r[1]) == plain_rows(shard, length, across)
    assert max(map(len, rows)) <= length
    assert table["a_length"].to_pylist() == [len(row) - 2 for row in rows]
    assert table["is_next"].null_count == table.num_rows
    token_document = np.repeat(shard.document_of, shard.lengths)
    assert table["document"].to_pylist() == [token_document[row[1]] for row in rows]
    for unit in plan.counts.values():
        assert unit["in"] == sum(unit.values()) - unit["in"]


def test_rows_are_shuffled_by_the_stream() -> None:
    shard = made_up("normal", 1)
    one, same, other = (
        full_sentences(shard, max_seq_length=32, stream=Stream(s)).segments for s in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, one[np.argsort(one[:, 0])])


def test_no_tokens_is_an_error() -> None:
    with pytest.raises(NoPairsError, match="no tokens"):
        full_sentences(from_lengths([[], [0]]), max_seq_length=32, stream=Stream(1))
