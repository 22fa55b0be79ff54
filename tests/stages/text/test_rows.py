import numpy as np
import pyarrow as pa
import pytest

from stages.text import rows as rows_module
from stages.text.full_sentences import full_sentences
from stages.text.pairing import make_pairs
from stages.text.random import Stream
from stages.text.rows import gather, id_dtype
from tests.oracle.pair_corpora import from_lengths, made_up

CLS, SEP = 60_001, 60_002


def test_rows_are_the_plan_laid_out() -> None:
    shard = made_up("normal", 4)
    plan = make_pairs(shard, max_seq_length=64, stream=Stream(1))
    ids = np.arange(len(shard.word_starts), dtype=np.uint32)
    hashes = pa.array([bytes([d, 255]) for d in range(len(shard.origins))], pa.binary(2))
    table = gather(ids, plan, hashes, cls_id=CLS, sep_id=SEP, vocabulary_size=70_000)
    assert table.schema.types == [pa.list_(pa.uint32()), pa.uint16(), pa.bool_(), pa.binary(2)]
    assert table.column_names == ["input_ids", "a_length", "is_next", "document"]
    for i, row in enumerate(table.to_pylist()):
        (a, b), (c, d) = plan.a[i].tolist(), plan.b[i].tolist()
        assert row["input_ids"] == [CLS, *range(a, b), SEP, *range(c, d), SEP]
        assert row["a_length"] == b - a
        assert row["is_next"] == plan.is_next[i]
        assert row["document"] == bytes([plan.document[i], 255])


def test_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = made_up("normal", 5)
    ids = np.arange(len(shard.word_starts), dtype=np.uint16)
    hashes = pa.array(np.arange(len(shard.origins), dtype=np.uint64))
    for plan in (
        make_pairs(shard, max_seq_length=64, stream=Stream(1)),
        full_sentences(shard, max_seq_length=64, stream=Stream(1), across_documents=True),
    ):

        def part(rows: slice | None, plan: object = plan) -> pa.Table:
            return gather(
                ids,
                plan,
                hashes,
                cls_id=1,
                sep_id=2,
                vocabulary_size=100,
                rows=rows,  # type: ignore[arg-type]
            )

        whole = part(None)
        halves = pa.concat_tables([part(slice(0, 17)), part(slice(17, None))])
        assert halves.combine_chunks().equals(whole.combine_chunks())
        with monkeypatch.context() as patch:
            patch.setattr(rows_module, "BLOCK_ROWS", 5)
            assert part(None).equals(whole)
        assert part(slice(0, 0)).num_rows == 0


def test_ids_take_the_smallest_type() -> None:
    assert id_dtype(2**16) == np.uint16
    assert id_dtype(2**16 + 1) == np.uint32


def test_rows_too_long_for_their_type_are_refused() -> None:
    shard = from_lengths([[70_000]])
    plan = full_sentences(shard, max_seq_length=70_000, stream=Stream(1))
    with pytest.raises(ValueError, match="65535"):
        gather(
            np.zeros(70_000, dtype=np.uint16),
            plan,
            pa.array([1]),
            cls_id=1,
            sep_id=2,
            vocabulary_size=10,
        )
