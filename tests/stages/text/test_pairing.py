import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import exchange, sentence_order
from stages.text.chunks import Sentences
from stages.text.pairing import NoPairsError, PairPlan, SingleOriginError, make_pairs
from stages.text.random import Stream
from tests.oracle import label_leak
from tests.oracle.label_leak import accuracy, labelled
from tests.oracle.pair_corpora import KINDS, from_documents, from_lengths, made_up, real_documents

GOLDEN_ROWS = [
    [68, 76, 25, 28, 0, 4, 1],
    [113, 120, 126, 132, 1, 6, 6],
    [93, 100, 104, 110, 1, 5, 5],
    [38, 44, 44, 50, 1, 2, 2],
    [79, 90, 36, 38, 0, 4, 1],
    [16, 25, 76, 79, 0, 1, 4],
    [53, 60, 62, 68, 1, 3, 3],
    [28, 36, 90, 92, 0, 1, 4],
]


def assert_sound(shard: Sentences, plan: PairPlan, room: int) -> None:
    for tokens, before in ((plan.a, plan.a_before), (plan.b, plan.b_before)):
        assert np.all(before[:, 0] <= tokens[:, 0]) and np.all(tokens[:, 1] <= before[:, 1])
        assert np.all(tokens[:, 0] < tokens[:, 1])
    lengths = np.diff(plan.a, axis=1) + np.diff(plan.b, axis=1)
    assert lengths.max() <= room
    followed = plan.is_next
    assert np.array_equal(plan.a_before[followed, 1], plan.b_before[followed, 0])
    assert np.array_equal(plan.document[followed], plan.partner[followed])
    origins = shard.origins
    assert np.all(origins[plan.document[~followed]] != origins[plan.partner[~followed]])
    token_document = np.repeat(shard.document_of, shard.lengths)
    for owner, spans in ((plan.document, plan.a_before), (plan.partner, plan.b_before)):
        assert np.array_equal(token_document[spans[:, 0]], owner)
        assert np.array_equal(token_document[spans[:, 1] - 1], owner)
    # Sentences begin and end where the shard says, or a cut one ends at a word.
    edges = set(shard.offsets.tolist())
    for spans in (plan.a_before[~plan.is_cut], plan.b_before[~plan.is_cut]):
        assert edges.issuperset(spans.ravel().tolist())
    assert np.all(shard.word_starts[plan.b_before[plan.is_cut, 0]])
    for unit in plan.counts.values():
        assert min(unit.values()) >= 0
        assert unit["in"] == sum(unit.values()) - unit["in"]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 10**6),
    st.sampled_from((8, 16, 64, 128, 512)),
    st.sampled_from((0.0, 0.1, 1.0)),
)
def test_exact_keeps_its_promises(kind: str, seed: int, length: int, short: float) -> None:
    shard = made_up(kind, seed, scale=0.4)
    try:
        plan = make_pairs(
            shard, max_seq_length=length, stream=Stream(seed), short_sequence_probability=short
        )
    except NoPairsError as error:
        assert "objective.nsp: false" in str(error)
        return
    assert_sound(shard, plan, length - 3)
    not_next = int(np.count_nonzero(~plan.is_next))
    assert abs(2 * not_next - len(plan)) <= 1
    for spans in (plan.a_before, plan.b_before):
        assert len(np.unique(spans[:, 0])) == len(plan)
    # A and B of chunks never overlap, so used tokens are exactly those of the rows.
    used = int((np.diff(plan.a, axis=1) + np.diff(plan.b, axis=1)).sum())
    assert plan.counts["tokens"]["used"] == used
    covered = np.zeros(len(shard.word_starts), dtype=np.int64)
    for start, end in np.concatenate([plan.a_before, plan.b_before]).tolist():
        covered[start:end] += 1
    assert covered.max() == 1
    owner = np.repeat(np.arange(len(shard.lengths)), shard.lengths)
    assert plan.counts["sentences"]["used"] == len(np.unique(owner[covered > 0]))
    document = np.repeat(shard.document_of, shard.lengths)
    assert plan.counts["documents"]["used"] == len(np.unique(document[covered > 0]))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from((8, 16, 64, 128)))
def test_reference_keeps_its_promises(kind: str, seed: int, length: int) -> None:
    shard = made_up(kind, seed, scale=0.3)
    try:
        plan = make_pairs(shard, max_seq_length=length, stream=Stream(seed), balance="reference")
    except SingleOriginError:
        return
    assert_sound(shard, plan, length - 3)
    assert plan.counts["sentences"]["used"] == int(np.count_nonzero(shard.lengths))
    assert np.all(~plan.is_next[plan.a_sentences + plan.b_sentences < 2])


@pytest.mark.parametrize("balance", ["exact", "reference"])
def test_a_plan_is_a_function_of_seed_and_input(balance: str) -> None:
    shard = made_up("normal", 1)

    def plan(*key: int) -> PairPlan:
        return make_pairs(shard, max_seq_length=64, stream=Stream(*key), balance=balance)

    one, same, other = plan(5, 0), plan(5, 0), plan(5, 1)
    for name in ("a", "b", "is_next", "document", "partner", "a_sentences", "b_sentences"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
    assert not np.array_equal(one.a, other.a)


@pytest.mark.parametrize("partner", ["any", "same_source"])
def test_partners_are_of_the_same_source_if_told(partner: str) -> None:
    shard = made_up("normal", 3)
    shard = replace(shard, sources=np.arange(len(shard.origins)) % 3)
    plan = make_pairs(shard, max_seq_length=64, stream=Stream(2), partner=partner)
    assert_sound(shard, plan, 61)
    assert shard.sources is not None
    same = shard.sources[plan.document] == shard.sources[plan.partner]
    assert np.all(same) == (partner == "same_source")
    assert plan.counts["tokens"]["no_partner"] < 0.1 * plan.counts["tokens"]["in"]
    with pytest.raises(ValueError, match="2 sources"):
        replace(shard, sources=np.arange(2))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from((8, 16, 64, 128, 512)))
def test_sentence_order_keeps_its_promises(kind: str, seed: int, length: int) -> None:
    shard = made_up(kind, seed, scale=0.4)
    try:
        plan = make_pairs(shard, max_seq_length=length, stream=Stream(seed), task="sentence_order")
    except NoPairsError as error:
        assert "objective.nsp: false" in str(error) and "no_partner" not in str(error)
        return
    assert abs(2 * np.count_nonzero(plan.is_next) - len(plan)) <= 1
    assert np.array_equal(plan.document, plan.partner)
    earlier = np.where(plan.is_next[:, np.newaxis], plan.a_before, plan.b_before)
    later = np.where(plan.is_next[:, np.newaxis], plan.b_before, plan.a_before)
    assert np.array_equal(earlier[:, 1], later[:, 0])
    assert (np.diff(plan.a) + np.diff(plan.b)).max() <= length - 3
    token_document = np.repeat(shard.document_of, shard.lengths)
    assert np.array_equal(token_document[earlier[:, 0]], token_document[later[:, 1] - 1])
    assert plan.counts["tokens"]["no_partner"] == 0
    for unit in plan.counts.values():
        assert unit["in"] == sum(unit.values()) - unit["in"]


def test_one_document_is_enough_for_sentence_order() -> None:
    shard = from_lengths([[9, 5, 7, 8, 6, 7, 9, 9]])
    plan = make_pairs(shard, max_seq_length=24, stream=Stream(1), task="sentence_order")
    assert len(plan) >= 2
    with pytest.raises(NoPairsError, match="alone in their document"):
        make_pairs(
            from_lengths([[90], [80]]), max_seq_length=24, stream=Stream(1), task="sentence_order"
        )


def test_copies_of_pairs_are_drawn_anew() -> None:
    shard = made_up("normal", 5, scale=4)
    plans = [
        make_pairs(shard, max_seq_length=64, stream=Stream(5, "pairs", "train-00000.parquet", k))
        for k in range(3)
    ]
    for k in range(3):
        for m in range(k):
            one, other = plans[k], plans[m]
            # The same A in both: labels agree as often as coins, partners hardly ever.
            _, i, j = np.intersect1d(one.a_before[:, 0], other.a_before[:, 0], return_indices=True)
            agree = np.mean(one.is_next[i] == other.is_next[j])
            assert len(i) > 1000 and abs(agree - 0.5) < 3.3 * 0.5 / np.sqrt(len(i))
            both = ~one.is_next[i] & ~other.is_next[j]
            assert np.mean(one.partner[i][both] == other.partner[j][both]) < 0.1
            splits = np.mean(one.a_before[i, 1] == other.a_before[j, 1])
            assert splits < 0.7


def test_exact_plan_is_this_one_for_ever() -> None:
    shard = from_lengths([[5, 7, 4], [9, 3, 8, 2], [6, 6], [5, 7, 6], [8, 3, 7, 4, 2], [20], [22]])
    plan = make_pairs(shard, max_seq_length=16, stream=Stream(12345, "golden"))
    rows = np.column_stack([plan.a, plan.b, plan.is_next, plan.document, plan.partner])
    assert rows.tolist() == GOLDEN_ROWS


def test_most_of_a_normal_corpus_is_used() -> None:
    shard = made_up("normal", 2)
    plan = make_pairs(shard, max_seq_length=128, stream=Stream(1))
    tokens = plan.counts["tokens"]
    assert tokens["used"] + tokens["truncated"] > 0.97 * tokens["in"]
    assert tokens["used"] > 0.85 * tokens["in"]


def test_kind_does_not_tell_the_label() -> None:
    shard = made_up("short", 3, scale=20)
    plan = make_pairs(shard, max_seq_length=128, stream=Stream(1))
    assert np.count_nonzero(plan.is_cut) > 500
    assert abs(np.mean(plan.is_next[plan.is_cut]) - 0.5) < 0.002


def test_one_origin_is_an_error_that_says_what_to_do() -> None:
    parts = from_lengths([[9, 9, 9], [8, 8], []], np.array([4, 4, 5]))
    for balance in ("exact", "reference"):
        with pytest.raises(SingleOriginError, match=r"objective\.nsp: false") as caught:
            make_pairs(parts, max_seq_length=32, stream=Stream(1), balance=balance)
        assert caught.value.counts["documents"] == {
            "in": 3,
            "used": 0,
            "empty": 1,
            "single_sentence": 0,
            "no_partner": 2,
        }


def test_short_single_sentences_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NoPairsError, match=r"objective\.nsp: false") as caught:
        make_pairs(from_lengths([[4], [6], [5]]), max_seq_length=32, stream=Stream(1))
    assert caught.value.counts["sentences"]["single_sentence"] == 3
    with pytest.raises(NoPairsError, match="no tokens"):
        make_pairs(from_lengths([[0], []]), max_seq_length=32, stream=Stream(1))


# The standard error of 8,000 rows is 0.006: fewer would fail by chance. All kinds and lengths, by
# 40,000 rows each: tests/oracle/label_leak.py.
ROWS = 8000
SMALL = [("two small", 128), ("two small unlike", 512)]
LARGE = itertools.product(("two unlike", "short", "giant", "normal"), (64, 128, 512))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "length"), [*SMALL, *LARGE])
def test_lengths_do_not_tell_the_label(kind: str, length: int) -> None:
    shards = label_leak.shards_of(kind, length, seed=1)
    assert accuracy(labelled(shards, length, least_rows=ROWS), folds=2).mean <= 0.53


@pytest.mark.slow
@pytest.mark.parametrize("name", label_leak.REAL)
def test_lengths_do_not_tell_the_label_on_real_text(name: str) -> None:
    shard = from_documents(real_documents(name))
    seen = labelled([shard], 128, copies=12, stretch=label_leak.STRETCH)
    assert accuracy(seen, folds=2).mean <= 0.53


@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 128])
def test_lengths_do_not_tell_the_order(length: int) -> None:
    for kind in ("normal", "two unlike"):
        shards = label_leak.shards_of(kind, length, seed=1)
        seen = labelled(shards, length, least_rows=ROWS, task="sentence_order")
        assert accuracy(seen, folds=2).mean <= 0.53


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reference", "any partner", "unlike partners", "forwards only"])
def test_the_measure_sees_what_gives_labels_away(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(kind: str, length: int, **options: str) -> float:
        shards = label_leak.shards_of(kind, length, seed=1)
        return accuracy(labelled(shards, length, least_rows=ROWS, **options), folds=2).mean

    if fault == "reference":
        # One-sentence chunks are always NotNext there.
        assert seen("short", 128, balance="reference") > 0.55
    elif fault == "any partner":

        def any_two(seen: exchange.Segments, room: int, tolerance: float, stream: Stream) -> object:
            return exchange.match_loosely(replace(seen, b=0 * seen.b), 10**6, stream)

        monkeypatch.setattr(exchange, "match", any_two)
        assert seen("two styles", 128) > 0.55
    elif fault == "unlike partners":
        monkeypatch.setattr(exchange, "LEAST_MATCHES", 8)
        assert seen("two small unlike", 512) > 0.55
    else:

        def forwards(sentences: Sentences, targets: np.ndarray, stream: Stream) -> tuple:
            documents = sentences.documents
            return documents, np.arange(len(documents) - 1), np.zeros(len(documents) - 1, bool)

        monkeypatch.setattr(sentence_order, "_walks", forwards)
        assert seen("normal", 64, task="sentence_order") > 0.55
