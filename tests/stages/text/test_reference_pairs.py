"""`balance: reference` against the oracle's distribution, and planted faults that must show."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.text import pairing, reference_pairs
from stages.text.pairing import PairPlan, make_pairs
from stages.text.random import Stream
from tests.oracle.compare import p_same_law
from tests.oracle.google_pairs import (
    TOY_VOCABULARY,
    Document,
    make_instances,
    read_documents,
    toy_text,
)
from tests.oracle.pair_corpora import from_documents, real_documents

Features = dict[str, NDArray[np.int64]]

CASES = {
    "toy": (24, 150, 150, 0.1),
    "wikitext2-valid.txt": (128, 2, 4, 0.0),
    "pud-de.txt": (64, 4, 8, 0.1),
}
"""Corpus -> max_seq_length, passes of the oracle, copies of ours, short_sequence_probability.

No short targets for the 60 long documents: one draw there decides over a hundred rows at once,
and the tests take rows to be independent.
"""


def documents_of(name: str) -> list[Document]:
    return read_documents(toy_text()) if name == "toy" else real_documents(name)


def oracle_features(name: str) -> Features:
    length, passes, _, short = CASES[name]
    instances = make_instances(
        documents_of(name),
        TOY_VOCABULARY,
        max_seq_length=length,
        dupe_factor=passes,
        max_predictions=1,
        short_sequence_probability=short,
    )
    rows = np.asarray(
        [
            (
                *(i.a_length, i.b_length, i.a_before, i.b_before),
                *(i.a_front, i.b_front, i.a_sentences, i.b_sentences, i.is_random_next),
            )
            for i in instances
        ]
    ).T
    return derived(*rows)


def derived(
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    a_before: NDArray[np.int64],
    b_before: NDArray[np.int64],
    a_front: NDArray[np.int64],
    b_front: NDArray[np.int64],
    a_sentences: NDArray[np.int64],
    b_sentences: NDArray[np.int64],
    not_next: NDArray[np.int64],
) -> Features:
    random = not_next == 1
    return {
        "a": a,
        "b": b,
        "total": a + b,
        "a_removed": a_before - a,
        "b_removed": b_before - b,
        "a_front": a_front,
        "b_front": b_front,
        "a_sentences": a_sentences,
        "b_sentences": b_sentences,
        "not_next": not_next,
        "a of NotNext": a[random],
        "b of NotNext": b[random],
        "total of IsNext": (a + b)[~random],
        "b_sentences of NotNext": b_sentences[random],
    }


def fast_features(name: str) -> Features:
    length, _, copies, short = CASES[name]
    shard = from_documents(documents_of(name))
    plans = [
        make_pairs(
            shard,
            max_seq_length=length,
            stream=Stream(7, copy),
            balance="reference",
            short_sequence_probability=short,
        )
        for copy in range(copies)
    ]

    def column(take: Callable[[PairPlan], NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate([take(plan) for plan in plans])

    return derived(
        column(lambda p: p.a[:, 1] - p.a[:, 0]),
        column(lambda p: p.b[:, 1] - p.b[:, 0]),
        column(lambda p: p.a_before[:, 1] - p.a_before[:, 0]),
        column(lambda p: p.b_before[:, 1] - p.b_before[:, 0]),
        column(lambda p: p.a[:, 0] - p.a_before[:, 0]),
        column(lambda p: p.b[:, 0] - p.b_before[:, 0]),
        column(lambda p: p.a_sentences),
        column(lambda p: p.b_sentences),
        column(lambda p: (~p.is_next).astype(np.int64)),
    )


@pytest.fixture(scope="module", params=list(CASES))
def oracle(request: pytest.FixtureRequest) -> tuple[str, Features]:
    return request.param, oracle_features(request.param)


def p_values(oracle: tuple[str, Features]) -> dict[str, float]:
    name, features = oracle
    fast = fast_features(name)
    return {key: p_same_law(features[key], fast[key]) for key in features}


def test_the_law_is_the_oracles(oracle: tuple[str, Features]) -> None:
    values = p_values(oracle)
    assert min(values.values()) > 0.001, values


def _keep_all_from_the_front(
    spans: NDArray[np.int64], kept: NDArray[np.int64], stream: Stream
) -> NDArray[np.int64]:
    return np.stack([spans[:, 0], spans[:, 0] + kept], axis=1)


def _shorten_b_first(
    a: NDArray[np.int64], b: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    b_kept = np.maximum(np.minimum(b, room - a), 1)
    return np.minimum(a, room - b_kept), b_kept


class _FirstSentence(reference_pairs._Draws):
    def below(self, bound: int) -> int:
        drawn = super().below(bound)
        return drawn if bound == 2 else 0


class _MoreNotNext(reference_pairs._Draws):
    def below(self, bound: int) -> int:
        drawn = super().below(bound)
        return super().below(2) | drawn if bound == 2 else drawn


@pytest.mark.parametrize(
    ("fault", "shows_in"),
    [
        ((pairing, "truncate_spans", _keep_all_from_the_front), "a_front"),
        ((pairing, "truncated_lengths", _shorten_b_first), "b"),
        ((reference_pairs, "_Draws", _FirstSentence), "a_sentences"),
        ((reference_pairs, "_Draws", _MoreNotNext), "not_next"),
    ],
)
def test_a_planted_fault_shows(
    oracle: tuple[str, Features],
    fault: tuple[object, str, object],
    shows_in: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*fault)
    assert p_values(oracle)[shows_in] < 0.001


def test_partners_are_drawn_uniformly_from_other_origins() -> None:
    documents = [[["x"] * 6] for _ in range(6)]
    shard = from_documents(documents)
    shard.origins[:] = [0, 1, 1, 2, 3, 4]
    counts = np.zeros((6, 6), dtype=np.int64)
    for copy in range(600):
        plan = make_pairs(shard, max_seq_length=16, stream=Stream(2, copy), balance="reference")
        np.add.at(counts, (plan.document, plan.partner), 1)
    allowed = shard.origins[:, np.newaxis] != shard.origins
    assert np.all(counts[~allowed] == 0)
    expected = allowed * 600 / allowed.sum(axis=1, keepdims=True)
    statistic = ((counts - expected)[allowed] ** 2 / expected[allowed]).sum()
    assert statistic < 52.6  # 28 allowed cells less 6 rows: 22 degrees, p = 0.0003
