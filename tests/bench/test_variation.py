from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from bench.variation import WORD, Variation
from bench.words import varied_words
from stages.text.words import Normalisation, count_words


def documents(variation: Variation, copy: int) -> list[str]:
    return [json.loads(line)["text"] for line, _ in variation.lines(copy)]


def body(text: str) -> str:
    return text.partition("\n\n")[2]


def test_copies_are_the_same_in_every_process_and_order(texts: list[str]) -> None:
    first, second = Variation(texts), Variation(texts)
    wanted = documents(first, 3)
    documents(second, 7)
    assert documents(second, 3) == wanted
    assert documents(Variation(texts, seed=1), 3) != wanted


def test_the_first_copy_is_the_text_itself(texts: list[str]) -> None:
    assert [body(text) for text in documents(Variation(texts), 0)] == texts


def test_no_two_documents_are_equal(texts: list[str]) -> None:
    variation = Variation([*texts, texts[0]], new_words_per_mb=0)
    made = [text for copy in range(3) for text in documents(variation, copy)]
    assert len(set(made)) == len(made) == 3 * (len(texts) + 1)


def test_only_rare_words_are_respelled(texts: list[str]) -> None:
    variation = Variation(texts, new_words_per_mb=200)
    rarest = max(variation.counts[word] for word in variation.respelled)
    others = set(variation.counts) - set(variation.respelled)
    assert rarest <= min(variation.counts[word] for word in others)
    changed = set(variation.respelled)
    for before, after in zip(texts, documents(variation, 1), strict=True):
        old, new = WORD.split(before), WORD.split(body(after))
        # Words of three letters and less, and all between words, are as they were; and a word
        # that is made of two halves may be of another length, but not of a length below four.
        assert old == new
        for was, now in zip(WORD.findall(before), WORD.findall(body(after)), strict=True):
            assert was == now or (was.lower() in changed and was[0].isupper() == now[0].isupper())


def test_new_words_appear_at_the_rate_that_was_asked_for(texts: list[str]) -> None:
    rate = 800
    variation = Variation(texts, new_words_per_mb=rate)
    seen: set[str] = set()
    for copy in range(4):
        made = documents(variation, copy)
        words, _ = count_words(pa.array(made, pa.large_string()), Normalisation())
        new = set(words.to_pylist()) - seen
        seen |= new
        if copy:
            megabytes = sum(len(text.encode()) for text in made) / 1e6
            # Some halves meet as they did before, or as a word that is there.
            assert 0.8 * rate < len(new) / megabytes < 1.1 * rate


def test_files_hold_what_is_said(texts: list[str], tmp_path: Path) -> None:
    variation = Variation([text + ' \\ "quoted" \x00 \N{SNOWMAN}' for text in texts])
    written = variation.write(tmp_path, 1e6)
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.open(encoding="utf-8")]
    found = [json.loads(line)["text"] for line in lines]
    assert len(found) == written.documents
    assert sum(len(text.encode()) for text in found) == written.bytes
    assert 1e6 <= written.bytes < 1e6 + max(len(text.encode()) for text in found)


def test_varied_words_are_those_of_varied_text(texts: list[str]) -> None:
    words, counts = varied_words(texts, 3000)
    counted = dict(zip(words.to_pylist(), counts.tolist(), strict=True))
    variation = Variation(texts)
    made = [body(text) for copy in range(3) for text in documents(variation, copy)]
    again = count_words(pa.array(made, pa.large_string()), Normalisation())
    real = dict(zip(again[0].to_pylist(), again[1].tolist(), strict=True))
    assert len(words) == 3000
    common = sorted(real, key=lambda word: -real[word])[:20]
    for word in common:
        if word not in variation.counts:
            assert counted[word] >= real[word]


@pytest.mark.parametrize("distinct", [10, 500])
def test_as_many_distinct_words_as_asked_for(texts: list[str], distinct: int) -> None:
    words, counts = varied_words(texts, distinct)
    assert len(words) == len(counts) == distinct
    assert words.to_pylist() == sorted(words.to_pylist())
