from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.cleaning import clean
from stages.text.cuts import Totals, distinct_rows, shard_cuts, shard_number, shard_of
from stages.text.cutting import cut_documents
from stages.text.sentences import sentence_ends
from stages.text.sharding import (
    ROW_SCHEMA,
    SHARD_SCHEMA,
    copies,
    document_hash,
    document_rows,
    is_sampled,
    is_validation,
    merge_rows,
    order_key,
)

WORDS = st.sampled_from(
    [
        "the",
        "rain",
        "fell.",
        "Who",
        "knew?",
        "紅樓夢。",
        "मूलं।",
        "über",
        "😀",
        "a" * 25 + "\n",
        "Mr.",
    ]
)
DOCUMENTS = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)


def rows_of(
    texts: list[str], batch: int, limit: int = 60, seed: int = 7, repeat: int = 1
) -> list[pa.Table]:
    tables = []
    for start in range(0, len(texts), batch):
        column = clean(pa.array(texts[start : start + batch])).texts
        column = column.filter(pc.not_equal(column, ""))
        ids = [str(i) for i in range(len(column))]
        documents = pa.record_batch({"source": ["s"] * len(ids), "id": ids, "text": column})
        tables.append(
            document_rows(
                documents,
                sentence_ends(column),
                seed=seed,
                validation_share=0.2,
                max_document_bytes=limit,
                repeat=repeat,
            )
        )
    return tables


def shards_of(tables: list[pa.Table], shard_bytes: int) -> list[pa.Table]:
    table = pa.concat_tables([ROW_SCHEMA.empty_table(), *tables]).combine_chunks()
    window = distinct_rows(table["key"].to_numpy(), table["size"].to_numpy())
    total = Totals(0, 0).add(window)
    cuts = shard_cuts(lambda: [window], total, shard_number(total, shard_bytes))
    number = shard_of(table["key"].to_numpy(), cuts)
    merged = [merge_rows([table.filter(pa.array(number == i))]) for i in range(len(cuts) + 1)]
    return [m.rows.select(SHARD_SCHEMA.names) for m in merged]


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=12), st.integers(1, 12), st.randoms())
def test_shards_do_not_depend_on_order_batches_or_copies(
    texts: list[str], batch: int, generator: random.Random
) -> None:
    expected = shards_of(rows_of(texts, len(texts)), 100)
    shuffled = texts + generator.sample(texts, len(texts) // 2)
    generator.shuffle(shuffled)
    tables = rows_of(shuffled, batch)
    generator.shuffle(tables)
    found = shards_of(tables, 100)
    assert [t.to_pylist() for t in found] == [t.to_pylist() for t in expected]


def documents_in(table: pa.Table) -> int:
    return sum(part == 0 for part in table["part"].to_pylist())


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENTS, max_size=12), st.randoms())
def test_counts_add_up_and_nothing_but_copies_is_dropped(
    texts: list[str], generator: random.Random
) -> None:
    """All at once, or first in groups and then these."""
    tables = [ROW_SCHEMA.empty_table(), *rows_of(texts, 2)]
    rows_in = sum(t.num_rows for t in tables)
    merged = merge_rows(tables)
    assert rows_in == merged.rows.num_rows + merged.duplicate_rows
    cleaned = {t for t in clean(pa.array(texts, pa.string())).texts.to_pylist() if t}
    assert documents_in(merged.rows) == len(cleaned)
    assert sum(documents_in(t) for t in tables) == len(cleaned) + merged.duplicate_documents
    assert merged.rows.schema.equals(ROW_SCHEMA)
    assert merge_rows(tables, deduplicate=False).rows.num_rows == rows_in
    generator.shuffle(tables)
    middle = len(tables) // 2
    halves = [merge_rows(half) for half in (tables[:middle], tables[middle:]) if half]
    again = merge_rows([half.rows for half in halves])
    assert again.rows.equals(merged.rows)
    dropped = sum(m.duplicate_documents for m in (*halves, again))
    assert dropped == merged.duplicate_documents


def one_document(source: str, repeat: int = 1, share: float = 1e-9) -> pa.Table:
    documents = pa.record_batch({"source": [source], "id": ["1"], "text": ["Same text."]})
    return document_rows(
        documents,
        sentence_ends(documents["text"]),
        seed=1,
        validation_share=share,
        max_document_bytes=100,
        repeat=repeat,
    )


def test_a_copy_kept_is_the_first_by_source_and_id() -> None:
    for order in (["b", "a", "c"], ["c", "b", "a"]):
        assert merge_rows([one_document(s) for s in order]).rows["source"].to_pylist() == ["a"]


def test_of_duplicates_the_largest_repeat_counts_and_validation_is_never_repeated() -> None:
    for repeats in ([1, 3, 2], [3, 2, 1]):
        tables = [one_document("abc"[i], repeat) for i, repeat in enumerate(repeats)]
        rows = merge_rows(tables).rows
        assert rows["repeat"].to_pylist() == [3]
        assert [sum(t.num_rows for t in copies([rows], n)) for n in range(4)] == [1, 1, 1, 0]
        # Each row stands for itself where duplicates are kept.
        kept = merge_rows(tables, deduplicate=False).rows
        assert sorted(kept["repeat"].to_pylist()) == [1, 2, 3]
    assert one_document("a", 3, share=1 - 1e-9)["repeat"].to_pylist() == [1]


def test_samples_are_nested_and_follow_the_seed_alone() -> None:
    origin = document_hash(pa.array([str(i) for i in range(4000)]))
    tenth = is_sampled(1, origin, 0.1)
    assert 320 < tenth.sum() < 480
    assert not (tenth & ~is_sampled(1, origin, 0.2)).any()
    assert is_sampled(1, origin, 1.0).all()
    assert not np.array_equal(tenth, is_sampled(2, origin, 0.1))
    assert not np.array_equal(tenth, is_validation(1, origin, 0.1))
    # Independent of the split: 5 standard errors.
    both = (tenth & is_validation(1, origin, 0.1)).sum()
    assert abs(both - 40) < 5 * 6.3


def test_origin_is_the_hash_of_the_text_alone() -> None:
    texts = pa.array(["zero", "one", "two", "one"])
    expected = [hashlib.blake2b(t.encode(), digest_size=16).digest() for t in ["one", "two", "one"]]
    assert document_hash(texts.slice(1)).to_pylist() == expected


def test_seed_changes_order_and_split_apart_from_each_other() -> None:
    origin = document_hash(pa.array([str(i) for i in range(4000)]))
    part = pa.array(np.zeros(4000, np.uint32))
    keys = order_key(1, origin, part)
    assert keys.dtype == np.uint64
    assert not np.array_equal(keys, order_key(2, origin, part))
    assert not np.array_equal(keys, order_key(1, origin, pa.array(np.ones(4000, np.uint32))))
    held = is_validation(1, origin, 0.1)
    assert not np.array_equal(held, is_validation(2, origin, 0.1))
    assert 320 < held.sum() < 480
    # Held-out documents are spread evenly over the order: 5 standard errors.
    spread = keys[held].astype(np.float64).mean() / 2**64
    assert abs(spread - 0.5) < 5 * 0.29 / np.sqrt(held.sum())
    # A larger share holds all of a smaller one's.
    assert not (held & ~is_validation(1, origin, 0.2)).any()


def test_known_keys() -> None:
    """Keys are part of what a seed means: another value here is another corpus for everybody."""
    origin = document_hash(pa.array(["It is a truth universally acknowledged."]))
    assert origin[0].as_py().hex() == "7623576c04629cad0c0abddc453ba9a8"
    assert order_key(12345, origin, pa.array([0], pa.uint32())).tolist() == [16150457340840307334]
    # Of a part of a column, as of the whole.
    more = document_hash(pa.array(["Other.", "It is a truth universally acknowledged.", "More."]))
    assert order_key(12345, more[1:2], pa.array([0], pa.uint32())).tolist() == [
        16150457340840307334
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(DOCUMENTS, max_size=5), st.integers(4, 80))
def test_parts_rejoin_to_the_text(texts: list[str], limit: int) -> None:
    column = clean(pa.array(texts, pa.string())).texts
    column = column.filter(pc.not_equal(column, ""))
    ends = sentence_ends(column)
    parts = cut_documents(column, ends, limit)
    parts.validate(full=True)
    for i, text in enumerate(column.to_pylist()):
        own = [p for p in parts.to_pylist() if p["row"] == i]
        assert [p["part"] for p in own] == list(range(len(own)))
        assert "".join("".join(p["text"] for p in own).split()) == "".join(text.split())
        whole_ends = set()
        for p in own:
            raw = p["text"].encode()
            assert len(raw) <= limit
            assert p["text"] == p["text"].strip()
            assert p["sentence_ends"] == sorted(set(p["sentence_ends"]))
            assert p["sentence_ends"][-1] == len(raw)
            for a, b in zip([0, *p["sentence_ends"]], p["sentence_ends"], strict=False):
                whole_ends.add(raw[a:b].decode().strip())
        if len(text.encode()) <= limit:
            assert len(own) == 1
            assert own[0]["sentence_ends"] == ends[i].as_py()


def test_cut_at_sentence_ends_then_at_white_space_then_at_characters() -> None:
    text = "One two. Three four. Five six seven eight nine. 紅樓夢紅樓夢紅樓夢"
    parts = cut_documents(pa.array([text]), sentence_ends(pa.array([text])), 20)
    assert parts["text"].to_pylist() == [
        "One two. Three four.",
        "Five six seven eight",
        "nine.",
        "紅樓夢紅樓夢",
        "紅樓夢",
    ]
    assert parts["sentence_ends"].to_pylist() == [[8, 20], [20], [5], [18], [9]]
    with pytest.raises(ValueError, match="at least 4"):
        cut_documents(pa.array([text]), sentence_ends(pa.array([text])), 3)
