"""Entities: against conlleval's own walk, brute force, seqeval, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.metrics.entities import entities, entity_counts, entity_figures, parse_tag
from tests.oracle import plain_metrics as plain

TAGS = ["O", *(f"{p}-{kind}" for p in "BIES" for kind in ("PER", "LOC"))]
sentence_pair = st.integers(1, 9).flatmap(
    lambda n: st.tuples(*[st.lists(st.sampled_from(TAGS), min_size=n, max_size=n)] * 2)
)


def spans(tags: str, strict: str | None = None) -> str:
    return " ".join(f"{a}:{b}:{k}" for a, b, k in entities(tags.split(), strict))  # type: ignore[arg-type]


@settings(deadline=None, max_examples=200)
@given(st.lists(sentence_pair, min_size=1, max_size=3))
def test_counts_equal_a_walk_over_both_sides(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold, predicted = map(list, zip(*pairs, strict=True))
    counts = entity_counts(gold, predicted)
    for row, (true, guess) in enumerate(pairs):
        expected = plain.conlleval_counts(true, guess)
        found = {k: c[row].tolist() for k, c in counts.items() if c[row].any()}
        assert found == expected


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(TAGS), max_size=9))
def test_strict_entities_equal_brute_force(tags: list[str]) -> None:
    assert set(entities(tags, "BIOES")) == plain.strict_entities(tags, "BIOES")
    bio = [t.replace("E-", "I-").replace("S-", "B-") for t in tags]
    assert set(entities(bio, "BIO")) == plain.strict_entities(bio, "BIO")


def test_the_schemes_by_hand() -> None:
    assert spans("I-PER I-PER O I-LOC") == "0:2:PER 3:4:LOC"  # IO
    assert spans("I-PER I-PER B-PER I-LOC") == "0:2:PER 2:3:PER 3:4:LOC"  # IOB1
    assert spans("B-PER I-PER B-PER O") == "0:2:PER 2:3:PER"  # BIO
    assert spans("B-PER E-PER S-PER S-LOC O") == "0:2:PER 2:3:PER 3:4:LOC"  # BIOES
    assert spans("B-PER L-PER U-LOC", "BIOES") == "0:2:PER 2:3:LOC"  # BILOU
    assert spans("PER PER O LOC") == "0:2:PER 3:4:LOC"
    assert spans("B I O I") == "0:2: 3:4:"
    assert spans("O O") == spans("") == ""


def test_what_strict_leaves_out() -> None:
    assert spans("I-PER O B-PER I-LOC", "BIO") == "2:3:PER"
    assert spans("I-PER O B-PER I-LOC") == "0:1:PER 2:3:PER 3:4:LOC"
    assert spans("B-PER I-PER O S-LOC", "BIOES") == "3:4:LOC"
    assert spans("B-PER I-PER O S-LOC") == "0:2:PER 3:4:LOC"


def test_types_keep_their_hyphens() -> None:
    assert parse_tag("B-ORG-part") == ("B", "ORG-part")
    assert parse_tag("X-ray") == ("I", "X-ray")


def test_figures_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"], ["O"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["O", "B-ORG"], ["B-ORG"]]
    figures = entity_figures(gold, predicted)
    assert figures.values["precision"] == 2 / 4
    assert figures.values["recall"] == 2 / 3
    assert figures.values["f1"] == 4 / 7
    assert figures.values["accuracy"] == 5 / 7
    assert (figures.values["f1/PER"], figures.values["recall/LOC"]) == (1, 0)
    assert (figures.values["precision/ORG"], figures.values["f1/ORG"]) == (1 / 3, 1 / 2)
    assert set(figures.notes) == {"precision/LOC"}


def test_sentences_do_not_run_into_each_other() -> None:
    apart = entity_counts([["I-PER"], ["I-PER"]], [["I-PER"], ["I-PER"]])
    np.testing.assert_array_equal(apart["PER"], [[1, 1, 1], [1, 1, 1]])


def test_no_entity_and_nothing_at_all() -> None:
    none = entity_figures([["O", "O"]], [["O", "O"]])
    assert none.values == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}
    assert set(none.notes) == {"precision", "recall", "f1"}
    with pytest.raises(ValueError, match="no rows"):
        entity_figures([], [])
    with pytest.raises(ValueError, match="without a word"):
        entity_figures([[]], [[]])
    with pytest.raises(ValueError, match="sentence 1: 2 gold tags, 1 predicted"):
        entity_figures([["O"], ["O", "O"]], [["O"], ["O"]])


def test_seqeval_agrees() -> None:
    """Its default is conlleval's rule, its strict mode ours; it knows no IO and no BILOU."""
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    scheme = pytest.importorskip("seqeval.scheme")
    rng = np.random.default_rng(5)
    for letters, strict in (("BI", None), ("BIES", None), ("BI", "BIO"), ("BIES", "BIOES")):
        tags = ["O", *(f"{p}-{kind}" for p in letters for kind in ("PER", "LOC"))]
        lengths = rng.integers(1, 12, 300)
        gold, predicted = ([rng.choice(tags, n).tolist() for n in lengths] for _ in range(2))
        predicted = [
            [g if rng.random() < 0.7 else p for g, p in zip(a, b, strict=True)]
            for a, b in zip(gold, predicted, strict=True)
        ]
        options = {}
        if strict:
            schemes = {"BIO": scheme.IOB2, "BIOES": scheme.IOBES}
            options = {"mode": "strict", "scheme": schemes[strict]}
        values = entity_figures(gold, predicted, strict).values  # type: ignore[arg-type]
        report = metrics.classification_report(
            gold, predicted, output_dict=True, zero_division=0, **options
        )
        for name, suffix in (("micro avg", ""), ("PER", "/PER"), ("LOC", "/LOC")):
            assert values[f"precision{suffix}"] == pytest.approx(report[name]["precision"])
            assert values[f"recall{suffix}"] == pytest.approx(report[name]["recall"])
            assert values[f"f1{suffix}"] == pytest.approx(report[name]["f1-score"])
