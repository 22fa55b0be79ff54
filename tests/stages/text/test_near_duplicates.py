"""Near duplicates: planted ones are found, others stay, in any order and over any tasks."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.minhash import NearDuplicateOptions
from stages.text.near_duplicates import (
    PAIR_SCHEMA,
    band_rows,
    clusters,
    similar_pairs,
    task_of_key,
)
from stages.text.sharding import document_hash
from tests.oracle import plain_minhash
from tests.oracle.real_text import paragraphs
from tests.stages.text.test_minhash import near

OPTIONS = NearDuplicateOptions()


def dropped(texts: list[str], tasks: int = 1, seed: int = 0) -> dict[bytes, bytes]:
    """Origin -> the one kept, through a shuffle over tasks, batches in another order."""
    column = pa.array(texts)
    origins = document_hash(column)
    batches = [
        band_rows(column[i : i + 7], origins[i : i + 7], OPTIONS) for i in range(0, len(texts), 7)
    ]
    random.Random(seed).shuffle(batches)
    rows = pa.concat_tables(batches)
    task = task_of_key(rows["key"].to_numpy(), tasks)
    parts = [similar_pairs(rows.filter(pa.array(task == i)), OPTIONS) for i in range(tasks)]
    # Joined in a tree, as a driver may do.
    found = clusters(pa.concat_tables([clusters(part) for part in parts]))
    return dict(zip(found["origin"].to_pylist(), found["kept"].to_pylist(), strict=True))


def origin(text: str) -> bytes:
    return document_hash(pa.array([text]))[0].as_py()


def planted() -> tuple[list[str], list[set[str]]]:
    """Texts, and the groups among them whose members are alike."""
    texts, groups = [], []
    for seed in range(20):
        base, copy = near(seed, 400, 4)
        texts += [base, copy]
        groups.append({base, copy})
    for seed in range(100, 140):
        texts += [near(seed, 400, 0)[0], near(seed, 400, 200)[1]]
    random.Random(1).shuffle(texts)
    return texts, groups


def test_planted_ones_are_found_and_nothing_else() -> None:
    texts, groups = planted()
    expected = {}
    for group in groups:
        kept, other = sorted(map(origin, group))
        expected[other] = kept
    assert dropped(texts) == expected


def test_order_batches_and_tasks_make_no_difference() -> None:
    texts, _ = planted()
    first = dropped(texts)
    assert len(first) == 20
    for seed in (1, 2):
        random.Random(seed).shuffle(texts)
        assert dropped(texts, tasks=5 * seed, seed=seed) == first


def test_real_text() -> None:
    """Headings and a word changed: the same book; other chapters are other texts."""
    text = paragraphs("english", 60_000)
    chapters = ["\n\n".join(text[i : i + 20]) for i in range(0, 200, 20)]
    edited = [f"Contents\n\n{chapter.replace('very', 'quite')}" for chapter in chapters]
    alike = [plain_minhash.jaccard(a, b, 5) for a, b in zip(chapters, edited, strict=True)]
    found = dropped(chapters + edited)
    for a, b, similarity in zip(chapters, edited, alike, strict=True):
        together = max(origin(a), origin(b)) in found
        if abs(similarity - OPTIONS.threshold) > 0.12:
            assert together == (similarity > OPTIONS.threshold)
    assert len(found) >= 5


def test_a_shared_key_alone_drops_nothing() -> None:
    rows = band_rows(pa.array(["a b c d e f", "p q r s t u"]), origins(2), OPTIONS)
    forged = rows.set_column(0, rows.schema.field(0), pa.array(np.zeros(rows.num_rows, np.uint64)))
    assert similar_pairs(forged, OPTIONS).num_rows == 0


def test_a_bucket_holds_several_groups() -> None:
    """All rows under one key: what is unlike the first is compared with the next."""
    texts = [text for seed in range(5) for text in near(seed, 200, 1)]
    rows = band_rows(pa.array(texts), document_hash(pa.array(texts)), OPTIONS)
    forged = rows.set_column(0, rows.schema.field(0), pa.array(np.zeros(rows.num_rows, np.uint64)))
    assert clusters(similar_pairs(forged, OPTIONS)).num_rows == 5


def test_texts_without_words_are_not_alike() -> None:
    assert dropped(["...", "!!! ???", "", "—"]) == {}


def test_equal_texts_are_one_document() -> None:
    assert dropped(["the same text twice over again"] * 3) == {}


def origins(number: int) -> pa.Array:
    return pa.array([bytes([i]) * 16 for i in range(number)], pa.binary(16))


NODES = st.integers(0, 12).map(lambda i: bytes([i * 7 % 13]) * 16)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(NODES, NODES), max_size=20))
def test_clusters_equal_the_plain_twin(pairs: list[tuple[bytes, bytes]]) -> None:
    columns = [pa.array([pair[i] for pair in pairs], pa.binary(16)) for i in (0, 1)]
    table = pa.table([*columns, pa.array([0.9] * len(pairs), pa.float32())], schema=PAIR_SCHEMA)
    found = clusters(table)
    plain = plain_minhash.clusters(pairs)
    assert found["origin"].to_pylist() == sorted(plain)
    assert found["kept"].to_pylist() == [plain[node] for node in sorted(plain)]
    assert clusters(found).equals(found)


@pytest.mark.parametrize("tasks", [1, 7, 100])
def test_keys_are_shared_out_evenly(tasks: int) -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64)
    task = task_of_key(np.sort(np.append(keys, [np.uint64(0), np.uint64(2**64 - 1)])), tasks)
    assert (task[0], task[-1]) == (0, tasks - 1)
    assert np.all(np.diff(task) >= 0)
    assert np.bincount(task).max() < 2 * 10_000 / tasks + 20
