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
from stages.text.cutting import cut_documents
from stages.text.sentences import sentence_ends
from stages.text.sharding import (
    PROVENANCE_SCHEMA,
    ROW_SCHEMA,
    SHARD_SCHEMA,
    document_hash,
    document_rows,
    is_validation,
    merge_shard,
    order_key,
    shard_cuts,
    shard_of,
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


def rows_of(texts: list[str], batch: int, limit: int = 60, seed: int = 7) -> list[pa.Table]:
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
            )
        )
    return tables


def shards_of(tables: list[pa.Table], shard_bytes: int) -> list[pa.Table]:
    table = pa.concat_tables([ROW_SCHEMA.empty_table(), *tables]).combine_chunks()
    keys = table["key"].to_numpy()
    cuts = shard_cuts(keys, pc.binary_length(table["text"]).to_numpy(), shard_bytes)
    number = shard_of(keys, cuts)
    return [merge_shard([table.filter(pa.array(number == i))]).rows for i in range(len(cuts) + 1)]


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


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENTS, max_size=12))
def test_counts_add_up_and_nothing_but_copies_is_dropped(texts: list[str]) -> None:
    tables = rows_of(texts, 4)
    shard = merge_shard(tables)
    c = shard.counts
    assert c["rows_in"] == sum(t.num_rows for t in tables)
    assert c["rows_in"] == c["rows"] + c["duplicate_rows"]
    assert c["documents_in"] == c["documents"] + c["duplicate_documents"]
    cleaned = {t for t in clean(pa.array(texts, pa.string())).texts.to_pylist() if t}
    assert c["documents"] == len(cleaned)
    assert shard.rows.schema.equals(SHARD_SCHEMA)
    assert shard.provenance.schema.equals(PROVENANCE_SCHEMA)
    assert shard.rows["document"].equals(shard.provenance["document"])
    everything = merge_shard(tables, deduplicate=False)
    assert everything.counts["rows"] == c["rows_in"]


def test_a_copy_kept_is_the_first_by_source_and_id() -> None:
    def table(source: str) -> pa.Table:
        documents = pa.record_batch({"source": [source], "id": ["1"], "text": ["Same text."]})
        return document_rows(
            documents,
            sentence_ends(documents["text"]),
            seed=1,
            validation_share=0.1,
            max_document_bytes=100,
        )

    for order in (["b", "a", "c"], ["c", "b", "a"]):
        assert merge_shard([table(s) for s in order]).provenance["source"].to_pylist() == ["a"]


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


def test_shards_are_equal_to_five_percent_when_documents_are_small() -> None:
    generator = np.random.default_rng(5)
    keys = generator.integers(0, 2**64, 20_000, np.uint64)
    sizes = generator.integers(1, 2_000, 20_000)
    cuts = shard_cuts(keys, sizes, 1_000_000)
    held = np.bincount(shard_of(keys, cuts), weights=sizes)
    assert len(held) == -(-int(sizes.sum()) // 1_000_000)
    assert held.max() / held.mean() < 1.05
    assert held.min() / held.mean() > 0.95


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 1000)), min_size=1, max_size=40),
    st.integers(1, 60),
    st.randoms(),
)
def test_cuts_leave_no_shard_empty_and_count_duplicates_once(
    rows: list[tuple[int, int]], shards: int, generator: random.Random
) -> None:
    rows = list(dict(rows).items())
    keys = np.array([k for k, _ in rows], np.uint64)
    sizes = np.array([s for _, s in rows])
    cuts = shard_cuts(keys, sizes, 1, shards)
    assert cuts.dtype == np.uint64
    assert len(cuts) + 1 == min(shards, len(rows))
    assert len(np.unique(shard_of(keys, cuts))) == len(cuts) + 1
    again = rows + generator.choices(rows, k=10)
    generator.shuffle(again)
    same = shard_cuts(
        np.array([k for k, _ in again], np.uint64), np.array([s for _, s in again]), 1, shards
    )
    assert same.tolist() == cuts.tolist()


def test_no_rows_make_one_empty_shard() -> None:
    cuts = shard_cuts(np.zeros(0, np.uint64), np.zeros(0, np.int64), 100)
    assert len(cuts) == 0
    assert merge_shard([]).rows.num_rows == 0
