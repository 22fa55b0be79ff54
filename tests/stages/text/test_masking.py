from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.text import masking, random, words_in_rows
from stages.text.masking import Masked, MaskOptions, mask_rows, mask_table, vocabulary_flags
from stages.text.random import Stream
from tests.oracle.compare import p_same_law
from tests.oracle.google_pairs import (
    TOY_VOCABULARY,
    Instance,
    make_instances,
    mask,
    read_documents,
    toy_text,
)
from tests.oracle.pair_corpora import real_documents
from tests.oracle.plain_masking import mask_row

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def options_for(vocabulary: list[str], **change: object) -> MaskOptions:
    ordinary, continuation = vocabulary_flags(vocabulary, SPECIAL)
    options = MaskOptions(
        cls_id=2,
        sep_id=3,
        mask_id=4,
        ordinary=ordinary,
        continuation=continuation,
        max_predictions=20,
    )
    return replace(options, **change)  # type: ignore[arg-type]


TOY = options_for(TOY_VOCABULARY)


def random_rows(
    seed: int, count: int, longest: int = 60, size: int = len(TOY_VOCABULARY)
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Rows of `[CLS] A [SEP] B [SEP]` with a third of `##` pieces."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        a, b = (rng.integers(5, size, rng.integers(1, longest)) for _ in range(2))
        for segment in (a, b):
            pieces = rng.random(len(segment)) < 0.3
            segment[pieces] = rng.integers(45, 47, pieces.sum())
        rows.append(np.concatenate([[2], a, [3], b, [3]]))
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    return np.concatenate([*rows, np.zeros(0)]).astype(np.uint16), offsets


def rows_of(masked: Masked, offsets: NDArray[np.int64]) -> list[tuple[list[int], ...]]:
    rows = []
    for r in range(len(offsets) - 1):
        part = slice(int(masked.offsets[r]), int(masked.offsets[r + 1]))
        rows.append(
            (
                masked.ids[offsets[r] : offsets[r + 1]].tolist(),
                masked.positions[part].tolist(),
                masked.labels[part].tolist(),
            )
        )
    return rows


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 9),
    st.sampled_from((3, 12, 60)),
    st.sampled_from(("per_token", "whole_word", "span")),
    st.sampled_from((0.05, 0.15, 0.5, 0.95)),
    st.sampled_from((1, 4, 200)),
    st.booleans(),
)
def test_rows_are_those_of_the_plain_twin(
    seed: int,
    count: int,
    longest: int,
    strategy: str,
    probability: float,
    cap: int,
    other: bool,
) -> None:
    ids, offsets = random_rows(seed, count, longest)
    options = replace(TOY, strategy=strategy, probability=probability, max_predictions=cap)
    if other:
        never = np.isin(np.arange(len(TOY_VOCABULARY)), [7, 8, 30, 46])
        options = replace(options, never=never, span_together=False, span_words=4)
    stream = Stream(seed, "mask")
    masked = mask_rows(ids, offsets, options, stream)
    for r, row in enumerate(rows_of(masked, offsets)):
        assert row == mask_row(ids[offsets[r] : offsets[r + 1]].tolist(), r, options, stream)


@pytest.mark.parametrize("strategy", ["per_token", "whole_word", "span"])
def test_batches_do_not_matter(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, offsets = random_rows(1, 500)
    options = replace(TOY, strategy=strategy)
    stream = Stream(3, "mask", 0, 0)
    whole = rows_of(mask_rows(ids, offsets, options, stream), offsets)
    monkeypatch.setattr(masking, "BLOCK_TOKENS", 850)
    assert rows_of(mask_rows(ids, offsets, options, stream), offsets) == whole
    # Rows out of order, as a loader reads them.
    picked = np.array([417, 3, 250])
    parts = [ids[offsets[r] : offsets[r + 1]] for r in picked]
    some = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    again = mask_rows(np.concatenate(parts), some, options, stream, picked)
    assert rows_of(again, some) == [whole[r] for r in picked]
    other = mask_rows(ids, offsets, options, stream.child(1))
    assert rows_of(other, offsets) != whole


@pytest.mark.parametrize(
    ("length", "count"), [(3, 1), (10, 2), (30, 4), (50, 8), (70, 10), (90, 14), (110, 16)]
)
def test_counts_are_the_references_round(length: int, count: int) -> None:
    ids = np.array([2, *[9] * (length - 2), 3], dtype=np.uint16)
    masked = mask_rows(ids, np.array([0, length]), TOY, Stream(1))
    assert len(masked.positions) == count


def test_a_row_gives_no_more_than_it_has() -> None:
    ids = np.array([2, 9, 3, 9, 3, 2, 3, 3, 2, 9, 9, 3], dtype=np.uint16)
    options = replace(TOY, probability=0.99)
    masked = mask_rows(ids, np.array([0, 5, 8, 12]), options, Stream(1))
    assert np.diff(masked.offsets).tolist() == [2, 0, 2]
    assert masked.positions.tolist() == [1, 3, 1, 2]


def test_ties_at_the_threshold_keep_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def few_values(keys: NDArray[np.uint64], width: int) -> NDArray[np.uint32]:
        return np.broadcast_to((np.arange(width) % 3).astype(np.uint32), (len(keys), width)).copy()

    monkeypatch.setattr(masking, "counter_uint32", few_values)
    ids, offsets = random_rows(2, 200)
    masked = mask_rows(ids, offsets, TOY, Stream(1))
    assert np.array_equal(
        np.diff(masked.offsets), TOY.quota(np.diff(offsets)).clip(max=np.diff(offsets) - 3)
    )


def test_positions_follow_each_rows_own_expectation() -> None:
    ids, offsets = random_rows(4, 6000, longest=40)
    lengths = np.diff(offsets)
    masked = mask_rows(ids, offsets, TOY, Stream(5))
    counts = np.diff(masked.offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    column = np.arange(len(ids)) - offsets[row]
    candidate = (ids != 2) & (ids != 3)
    share = (counts / (lengths - 3))[row]
    expected = np.bincount(column[candidate], weights=share[candidate], minlength=90)
    # Drawing without replacement keeps the variance under that of the expected count.
    observed = np.bincount(masked.positions, minlength=90)
    used = expected > 20
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    assert stats.chi2.sf(statistic, used.sum() - 1) > 0.001
    assert observed[0] == 0


def test_shares_are_kept_and_replacements_are_ordinary() -> None:
    vocabulary = [*SPECIAL, *(f"[unused{n}]" for n in range(10)), *(f"w{n}" for n in range(300))]
    options = options_for(vocabulary)
    ids, offsets = random_rows(6, 4000)
    rng = np.random.default_rng(7)
    ordinary = ids >= 5
    ids[ordinary] = rng.integers(15, 315, ordinary.sum())
    ids[rng.random(len(ids)) < 0.02] = 1
    masked = mask_rows(ids, offsets, options, Stream(8))
    at = np.repeat(offsets[:-1], np.diff(masked.offsets)) + masked.positions
    assert np.array_equal(masked.labels, ids[at])
    others = np.ones(len(ids), dtype=np.bool_)
    others[at] = False
    assert np.array_equal(masked.ids[others], ids[others])
    now = masked.ids[at]
    hidden, kept = now == 4, now == masked.labels
    total = len(at)
    for flags, share in ((hidden, 0.8), (kept, 0.1), (~hidden & ~kept, 0.1)):
        assert abs(flags.mean() - share) < 3.3 * np.sqrt(share * (1 - share) / total)
    replaced = now[~hidden & ~kept]
    assert replaced.min() >= 15
    frequencies = np.bincount(replaced - 15, minlength=300)
    expected = len(replaced) / 300
    assert ((frequencies - expected) ** 2 / expected).sum() < 381  # 299 degrees, p = 0.001


def test_all_shares_at_their_ends() -> None:
    ids, offsets = random_rows(3, 50)
    for mask_share, random_share in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):
        options = replace(TOY, mask_share=mask_share, random_share=random_share)
        masked = mask_rows(ids, offsets, options, Stream(1))
        at = np.repeat(offsets[:-1], np.diff(masked.offsets)) + masked.positions
        now = masked.ids[at]
        if mask_share:
            assert np.all(now == 4)
        elif random_share:
            assert np.all(now != masked.labels) and np.all(now >= 5)
        else:
            assert np.array_equal(now, masked.labels)


def test_a_piece_at_the_start_of_a_segment_heads_itself() -> None:
    # [CLS] ##x ##y w [SEP] ##x w [SEP]: words (1 2) (3) (5) (6).
    ids = np.tile(np.array([2, 45, 46, 9, 3, 45, 10, 3], dtype=np.uint16), 2000)
    offsets = np.arange(0, 16_001, 8)
    options = replace(TOY, strategy="whole_word", probability=0.26)
    masked = mask_rows(ids, offsets, options, Stream(1))
    seen = Counter(tuple(row[1]) for row in rows_of(masked, offsets))
    assert set(seen) == {(1, 2), (3, 5), (3, 6), (5, 6)}
    assert min(seen.values()) > 300


def original_rows(instances: list[Instance]) -> list[list[str]]:
    rows = []
    for instance in instances:
        tokens = list(instance.tokens)
        for position, label in zip(instance.positions, instance.labels, strict=True):
            tokens[position] = label
        rows.append(tokens)
    return rows


@pytest.fixture(scope="module", params=["toy", "real"])
def reference_rows(request: pytest.FixtureRequest) -> tuple[list[list[str]], list[str]]:
    """Rows of the oracle on two corpora (words of real text cut in two), and the vocabulary."""
    if request.param == "toy":
        documents = read_documents(toy_text())
        passes, length = 80, 24
    else:
        documents = [
            [
                [p for w in s for p in ([w[:5], "##" + w[5:]] if len(w) > 5 else [w])]
                for s in document
            ]
            for document in real_documents("gum-en.txt")
        ]
        passes, length = 3, 128
    vocabulary = sorted({t for d in documents for s in d for t in s} - set(SPECIAL))
    vocabulary = [*SPECIAL, *vocabulary]
    rows = original_rows(
        make_instances(
            documents, vocabulary, max_seq_length=length, dupe_factor=passes, max_predictions=20
        )
    )
    # Where B starts with a piece the reference joins it to A's last word; we do not.
    return [r for r in rows if not r[r.index("[SEP]") + 1].startswith("##")], vocabulary


def word_features(rows: list[list[str]], chosen: list[list[int]]) -> dict[str, list[float]]:
    """What the law of a mask is: how many, where, and words of what size."""
    features: dict[str, list[float]] = {"count": [], "place": [], "size": [], "gap": []}
    for tokens, positions in zip(rows, chosen, strict=True):
        features["count"].append(len(positions))
        features["place"] += [p / len(tokens) for p in positions]
        features["gap"] += np.diff(positions).tolist()
        for p in positions:
            if not tokens[p].startswith("##"):
                end = p + 1
                while tokens[end].startswith("##"):
                    end += 1
                features["size"].append(end - p)
    return features


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("fault", [None, "all words alike", "first columns only"])
def test_positions_follow_the_oracles_law(
    reference_rows: tuple[list[list[str]], list[str]],
    whole_word: bool,
    fault: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, vocabulary = reference_rows
    rng = Random(1)
    oracle = [mask(row, vocabulary, 0.15, 20, whole_word, rng)[1] for row in rows]
    options = options_for(vocabulary, strategy="whole_word" if whole_word else "per_token")
    if fault == "all words alike":
        options = replace(options, strategy="per_token" if whole_word else "whole_word")
    elif fault == "first columns only":
        true_lots = random.counter_uint32

        def biased(keys: NDArray[np.uint64], width: int) -> NDArray[np.uint32]:
            lots = true_lots(keys, width)
            lots[:, width // 2 :] |= np.uint32(1 << 30)
            return lots

        monkeypatch.setattr(masking, "counter_uint32", biased)
        monkeypatch.setattr(words_in_rows, "counter_uint32", biased)
    place = {token: i for i, token in enumerate(vocabulary)}
    ids = np.array([place[token] for row in rows for token in row], dtype=np.uint16)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    fast = [row[1] for row in rows_of(mask_rows(ids, offsets, options, Stream(4)), offsets)]
    if not whole_word and fault is None:
        assert [len(p) for p in fast] == [len(p) for p in oracle]
    if whole_word and fault is None:
        for tokens, positions in zip(rows, fast, strict=True):
            chosen = set(positions)
            for p in range(2, len(tokens)):
                if tokens[p].startswith("##") and tokens[p - 1] not in ("[CLS]", "[SEP]"):
                    assert (p in chosen) == (p - 1 in chosen)
    ours, theirs = word_features(rows, fast), word_features(rows, oracle)
    values = {name: p_same_law(theirs[name], ours[name]) for name in ours}
    if fault is None:
        assert min(values.values()) > 0.001, values
    else:
        assert min(values.values()) < 0.001, values


def shown(
    rows: list[list[str]], now: list[list[str]], chosen: list[list[int]]
) -> NDArray[np.int64]:
    """How many chosen positions show [MASK], their own token, or another one."""
    counts = Counter(
        "mask" if new[p] == "[MASK]" else "own" if new[p] == old[p] else "other"
        for old, new, positions in zip(rows, now, chosen, strict=True)
        for p in positions
    )
    return np.array([counts["mask"], counts["own"], counts["other"]])


@pytest.mark.parametrize("fault", [None, "mask_share", "random_share"])
def test_shares_follow_the_oracles(
    reference_rows: tuple[list[list[str]], list[str]], fault: str | None
) -> None:
    rows, vocabulary = reference_rows
    rng = Random(2)
    theirs = [mask(row, vocabulary, 0.15, 20, False, rng) for row in rows]
    options = options_for(vocabulary)
    if fault:
        options = replace(options, **{fault: getattr(options, fault) - 0.04})
    place = {token: i for i, token in enumerate(vocabulary)}
    ids = np.array([place[token] for row in rows for token in row], dtype=np.uint16)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    ours = rows_of(mask_rows(ids, offsets, options, Stream(6)), offsets)
    table = np.stack(
        [
            shown(rows, [m[0] for m in theirs], [m[1] for m in theirs]),
            shown(rows, [[vocabulary[i] for i in r[0]] for r in ours], [r[1] for r in ours]),
        ]
    )
    # The reference's random token may be the own one: in 1 of so many draws.
    table[0, 1:] += np.array([-1, 1]) * round(0.1 * table[0].sum() / len(vocabulary))
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    p = stats.chi2_contingency(table)[1]
    assert (p < 0.001) if fault else (p > 0.001), table


@pytest.mark.parametrize("strategy", ["per_token", "whole_word", "span"])
def test_some_tokens_are_never_masked_nor_drawn(strategy: str) -> None:
    ids, offsets = random_rows(3, 3000)
    never = np.isin(np.arange(len(TOY_VOCABULARY)), [9, 12, 46])
    options = replace(TOY, strategy=strategy, never=never, ordinary=TOY.ordinary & ~never)
    masked = mask_rows(ids, offsets, options, Stream(2))
    assert not np.any(never[masked.labels])
    at = np.repeat(offsets[:-1], np.diff(masked.offsets)) + masked.positions
    changed = masked.ids[at] != masked.labels
    assert not np.any(never[masked.ids[at][changed]])
    others = ~never & (np.arange(len(never)) >= 5)
    assert np.all(np.bincount(masked.labels, minlength=len(never))[others] > 0)
    if strategy == "per_token":
        candidates = np.add.reduceat((~never[ids] & (ids >= 5)).astype(int), offsets[:-1])
        quota = np.minimum(options.quota(np.diff(offsets)), candidates)
        assert np.array_equal(np.diff(masked.offsets), quota)
    else:
        # A word that holds such a piece is left alone as a whole.
        continues = options.continuation[ids] & np.append(False, ids[:-1] >= 5)
        word = np.cumsum(~continues)
        assert not np.any(np.isin(word[at], word[never[ids]]))


def test_copies_are_independent() -> None:
    # Copy k of the pairs and copy m of the masks are parts of the name: as far apart as seeds.
    ids, offsets = random_rows(1, 4000, longest=40)
    lengths = np.diff(offsets)
    chosen = {}
    for name in ("train-c0-00000.parquet", "train-c1-00000.parquet"):
        for copy in range(2):
            masked = mask_rows(ids, offsets, TOY, Stream(7, "mask", name, copy))
            flags = np.zeros(len(ids), dtype=np.bool_)
            flags[np.repeat(offsets[:-1], np.diff(masked.offsets)) + masked.positions] = True
            chosen[name, copy] = flags
    share = np.repeat(TOY.quota(lengths) / (lengths - 3), lengths)[ids >= 5]
    flags = [f[ids >= 5] for f in chosen.values()]
    for k in range(4):
        for m in range(k):
            both = np.count_nonzero(flags[k] & flags[m])
            expected, variance = (share**2).sum(), (share**2 * (1 - share**2)).sum()
            assert abs(both - expected) < 3.5 * np.sqrt(variance)


def test_table_keeps_what_it_does_not_change() -> None:
    ids, offsets = random_rows(9, 40)
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))
    table = pa.table(
        {
            "input_ids": pa.chunked_array([lists[:11], lists[11:]]),
            "a_length": pa.array(np.arange(40), pa.uint16()),
        }
    ).replace_schema_metadata({"vocabulary": "digest"})
    masked = mask_table(table, TOY, Stream(1))
    assert masked.column_names == ["input_ids", "a_length", "mlm_positions", "mlm_labels"]
    assert masked.schema.types == [
        pa.list_(pa.uint16()),
        pa.uint16(),
        pa.list_(pa.uint16()),
        pa.list_(pa.uint16()),
    ]
    assert masked.schema.metadata == {b"vocabulary": b"digest"}
    flat = rows_of(mask_rows(ids, offsets, TOY, Stream(1)), offsets)
    rows = [(r["input_ids"], r["mlm_positions"], r["mlm_labels"]) for r in masked.to_pylist()]
    assert rows == flat
    part = mask_table(table.slice(5, 20), TOY, Stream(1), np.arange(5, 25))
    assert part.to_pylist() == masked.slice(5, 20).to_pylist()
    assert mask_table(table.slice(0, 0), TOY, Stream(1)).num_rows == 0


def test_vocabulary_flags() -> None:
    ordinary, pieces = vocabulary_flags(
        ["[PAD]", "[unused0]", "[unused]", "a", "##b", "[MASK]"], SPECIAL
    )
    assert ordinary.tolist() == [False, False, True, True, True, False]
    assert pieces.tolist() == [False, False, False, False, True, False]


@pytest.mark.parametrize(
    "change",
    [
        {"probability": 0.0},
        {"max_predictions": 0},
        {"mask_share": 0.8, "random_share": 0.3},
        {"random_share": -0.1},
        {"ordinary": np.zeros(47, dtype=np.bool_)},
        {"continuation": np.zeros(46, dtype=np.bool_)},
        {"never": np.zeros(46, dtype=np.bool_)},
        {"span_probability": 1.0},
        {"span_words": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(TOY, **change)  # type: ignore[arg-type]
