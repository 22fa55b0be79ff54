from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.vocabulary import (
    VocabularyTooSmall,
    train,
    train_huggingface,
    word_coverage,
)
from stages.text.wordpiece import SPECIAL_TOKENS
from stages.text.words import Normalisation, count_words
from tests.oracle import plain_wordpiece
from tests.oracle.real_text import paragraphs

ROOT = Path(__file__).resolve().parents[3]
LOOKING_GLASS = """
'Twas brillig, and the slithy toves did gyre and gimble in the wabe: all mimsy were the borogoves,
and the mome raths outgrabe. Beware the Jabberwock, my son! The jaws that bite, the claws that
catch! Beware the Jubjub bird, and shun the frumious Bandersnatch! He took his vorpal sword in hand;
long time the manxome foe he sought. So rested he by the Tumtum tree and stood awhile in thought.
One, two! One, two! And through and through the vorpal blade went snicker-snack! He left it dead,
and with its head he went galumphing back. Banana, bananas, papaya, mississippi, aaa aaaa aaaaa.
"""


def arrays(counts: dict[str, int]) -> tuple[pa.StringArray, np.ndarray]:
    return pa.array(list(counts), pa.string()), np.array(list(counts.values()), np.int64)


def poem() -> tuple[pa.StringArray, np.ndarray]:
    return count_words(pa.array([LOOKING_GLASS]), Normalisation())


def test_a_vocabulary_worked_out_by_hand() -> None:
    # ab: 5+2, ##bc: 5, then "abc" from ("ab", "##c"); "##cd" and "cd" seen less often.
    words, counts = arrays({"abc": 5, "ab": 2, "cd": 1})
    tokens, report = train(words, counts, 100, min_frequency=2)
    assert tokens == [*SPECIAL_TOKENS, "a", "b", "c", "d", "##b", "##c", "##d", "ab", "abc"]
    assert (report.merges, report.last_merge_count, report.word_mass) == (2, 5, 8)


def test_ties_go_by_left_then_right() -> None:
    words, counts = arrays({"zy": 3, "ba": 3, "bc": 3})
    tokens, _ = train(words, counts, 100)
    assert tokens[-3:] == ["ba", "bc", "zy"]


def test_overlapping_runs_merge_from_the_left() -> None:
    words, counts = arrays({"xaaaaa": 2})
    tokens, _ = train(words, counts, 100)
    assert tokens == plain_wordpiece.train({"xaaaaa": 2}, 100)
    assert tokens[-1] == "xaaaaa" and "##aa" in tokens


@pytest.mark.parametrize("size", [45, 80, 120, 1000])
@pytest.mark.parametrize("min_frequency", [1, 2, 4])
def test_equals_the_plain_twin_on_a_poem(size: int, min_frequency: int) -> None:
    words, counts = poem()
    expected = plain_wordpiece.train(
        dict(zip(words.to_pylist(), counts.tolist(), strict=True)), size, 20, min_frequency
    )
    tokens, report = train(words, counts, size, limit_alphabet=20, min_frequency=min_frequency)
    assert tokens == expected
    assert report.merges >= len(tokens) - len(SPECIAL_TOKENS) - 40


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text("abcé", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=30
    ),
    st.integers(14, 60),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_equals_the_plain_twin_where_ties_abound(
    word_counts: dict[str, int], size: int, limit_alphabet: int, min_frequency: int
) -> None:
    expected = plain_wordpiece.train(word_counts, size, limit_alphabet, min_frequency)
    tokens, _ = train(
        *arrays(word_counts), size, limit_alphabet=limit_alphabet, min_frequency=min_frequency
    )
    assert tokens == expected


def test_counts_beyond_31_bits_keep_the_order() -> None:
    small, _ = train(*arrays({"the": 5, "cat": 3, "dog": 2}), 100)
    large, report = train(
        *arrays({"the": 5_000_000_000, "cat": 3_000_000_000, "dog": 2_000_000_000}), 100
    )
    assert large == small
    assert report.word_mass == 10_000_000_000


def test_order_of_words_does_not_matter() -> None:
    words, counts = poem()
    order = np.random.default_rng(1).permutation(len(words))
    assert train(words.take(pa.array(order)), counts[order], 150) == train(words, counts, 150)


@pytest.mark.slow
def test_hash_seed_does_not_matter() -> None:
    program = (
        "import pyarrow as pa, hashlib; from stages.text.words import *; "
        "from stages.text.vocabulary import *; "
        f"w, c = count_words(pa.array([{LOOKING_GLASS!r}]), Normalisation()); "
        "print(hashlib.sha256('\\n'.join(train(w, c, 200)[0]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1


def test_too_small_a_vocabulary_says_what_is_needed() -> None:
    words, counts = arrays({"abc": 5, "ab": 2})
    with pytest.raises(
        VocabularyTooSmall, match=r"vocab\.size=9 .* need 10\..*limit_alphabet"
    ) as e:
        train(words, counts, 9)
    assert e.value.needed == 10
    assert len(train(words, counts, 10)[0]) == 10


def test_report_counts_what_becomes_unknown() -> None:
    words, counts = arrays({"ab": 10, "az": 2, "z" * 101: 3, "b": 1})
    tokens, report = train(words, counts, 100, limit_alphabet=2)
    assert tokens == [*SPECIAL_TOKENS, "a", "b", "##b", "ab"]
    assert report.alphabet == 2 and report.dropped_characters == ("z",)
    assert (report.character_mass, report.dropped_character_mass) == (25, 2)
    assert (report.dropped_words, report.dropped_word_mass) == (1, 2)
    assert (report.long_words, report.long_word_mass) == (1, 3)
    assert (report.distinct_words, report.word_mass) == (4, 16)


def test_alphabet_ties_go_by_code_point() -> None:
    words, counts = arrays({"c": 2, "b": 2, "a": 2, "中": 3})
    assert train(words, counts, 8, limit_alphabet=3)[0][5:] == ["a", "b", "中"]


def test_required_tokens_stand_first_and_once() -> None:
    required = [*SPECIAL_TOKENS, "[unused1]", "[unused0]", "abc", "##b"]
    tokens, report = train(*arrays({"abc": 5, "abcd": 2}), 100, special_tokens=required)
    assert tokens == [*required, "a", "b", "c", "d", "##c", "##d", "##bc", "abcd"]
    assert report.merges == 3


def test_required_words_are_never_split_and_teach_nothing() -> None:
    counted = {"covid": 1_000, "covids": 3, "çay": 50, "bid": 4}
    tokens, report = train(*arrays(counted), 40, required=["covid", "çay", "##ids"])
    assert tokens[5:8] == ["covid", "çay", "##ids"]
    # The characters of a required word spell others; what was merged comes from "covids" and "bid".
    assert {"ç", "##y", "##d"} <= set(tokens)
    assert report.last_merge_count <= 7
    coverage = word_coverage(tokens, *arrays({"covid": 1, "çay": 1}))
    assert coverage.single_piece_share == 1
    with pytest.raises(VocabularyTooSmall, match="8 special or required"):
        train(*arrays(counted), 9, required=["covid", "çay", "##ids"])


def test_nothing_to_learn_from() -> None:
    tokens, report = train(pa.array([], pa.string()), np.zeros(0, np.int64), 100)
    assert tokens == list(SPECIAL_TOKENS)
    assert (report.merges, report.last_merge_count) == (0, 0)
    with pytest.raises(ValueError, match="below 1"):
        train(*arrays({"a": 0}), 100)


def test_coverage_is_weighted_by_counts() -> None:
    vocab = [*SPECIAL_TOKENS, "the", "al", "##ice"]
    words, counts = arrays({"the": 6, "alice": 3, "zebra": 1})
    coverage = word_coverage(vocab, words, counts)
    assert coverage.words == 10
    assert coverage.fertility == pytest.approx((6 * 1 + 3 * 2 + 1 * 1) / 10)
    assert coverage.unknown_share == pytest.approx(0.1)
    assert coverage.single_piece_share == pytest.approx(0.6)
    assert word_coverage(vocab, *arrays({})).words == 0


@settings(deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=12), st.integers(1, 9), max_size=20))
def test_coverage_equals_the_plain_twin(word_counts: dict[str, int]) -> None:
    vocab = [*SPECIAL_TOKENS, "a", "b", "##a", "##c", "ab", "##ca"]
    spelled = {w: plain_wordpiece.pieces(w, set(vocab), 8) for w in word_counts}
    coverage = word_coverage(vocab, *arrays(word_counts), max_word_characters=8)
    total = sum(word_counts.values()) or 1
    assert coverage.fertility == pytest.approx(
        sum(len(spelled[w]) * c for w, c in word_counts.items()) / total
    )
    assert coverage.unknown_share == pytest.approx(
        sum(c for w, c in word_counts.items() if spelled[w] == ["[UNK]"]) / total
    )


def test_huggingface_trainer_is_fed_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words, counts = poem()
    ours, _ = train(words, counts, 100)
    theirs = train_huggingface(words, counts, 100)
    assert theirs[:5] == list(SPECIAL_TOKENS) and len(theirs) == len(ours) == 100
    assert len(set(theirs) & set(ours)) > 85
    monkeypatch.setattr("stages.text.vocabulary.HUGGINGFACE_WORDS", 40)
    assert len(train_huggingface(words, counts, 100)) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "size"),
    [("english", 8000), ("german", 8000), ("vietnamese", 4000), ("hindi", 4000), ("chinese", 8000)],
)
def test_held_out_fertility_is_that_of_the_huggingface_trainer(language: str, size: int) -> None:
    texts = paragraphs(language, 1_000_000)
    counted = [
        count_words(pa.array(part), Normalisation())
        for part in (
            [text for i, text in enumerate(texts) if i % 10],
            [text for i, text in enumerate(texts) if i % 10 == 0],
        )
    ]
    ours, report = train(*counted[0], size, limit_alphabet=6000)
    theirs = train_huggingface(*counted[0], size, limit_alphabet=6000)
    assert report.merges > 500
    a, b = word_coverage(ours, *counted[1]), word_coverage(theirs, *counted[1])
    assert a.fertility == pytest.approx(b.fertility, rel=0.005)
    assert a.unknown_share <= b.unknown_share + 0.001
