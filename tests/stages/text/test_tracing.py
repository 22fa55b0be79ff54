"""Ten thousand finished rows, masked, traced back to the text they were made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stages.text.masking import MaskOptions, mask_table
from stages.text.pairing import make_pairs
from stages.text.random import Stream
from stages.text.rows import gather
from tests.oracle.pair_corpora import from_documents, real_documents

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LENGTH, COPIES = 64, 4


def places(needle: str, text: str) -> list[tuple[int, int]]:
    """Where `needle` stands in `text`, both of tokens between spaces."""
    found, start = [], text.find(needle)
    while start >= 0:
        found.append((start, start + len(needle)))
        start = text.find(needle, start + 1)
    return found


def spelled(tokens: list[str]) -> str:
    return " " + " ".join(tokens) + " "


@pytest.mark.slow
@pytest.mark.parametrize("task", ["next_sentence", "sentence_order"])
@pytest.mark.parametrize("fault", [None, "labels", "partner"])
def test_rows_come_from_the_text(task: str, fault: str | None) -> None:
    documents = real_documents("wikitext2-valid.txt")
    # Words longer than six are two pieces, so that there is something to keep whole.
    documents = [
        [[p for w in s for p in ([w[:6], "##" + w[6:]] if len(w) > 6 else [w])] for s in document]
        for document in documents
    ]
    vocabulary = [*SPECIAL, *sorted({t for d in documents for s in d for t in s})]
    place = {token: i for i, token in enumerate(vocabulary)}
    # In the text "[MASK]" or "<unk>" are words like others.
    ids = np.array([place[t] for d in documents for s in d for t in s], dtype=np.uint16)
    shard = from_documents(documents)
    names = pa.array([f"document {d}" for d in range(len(documents))])
    options = MaskOptions(
        cls_id=2,
        sep_id=3,
        mask_id=4,
        ordinary=np.arange(len(vocabulary)) >= 5,
        continuation=np.array([t.startswith("##") for t in vocabulary]),
        max_predictions=10,
        strategy="whole_word",
    )
    texts = {f"document {d}": spelled([t for s in d_ for t in s]) for d, d_ in enumerate(documents)}
    whole = "\n".join(texts.values())
    ends = {f"document {d}": sentence_ends(d_) for d, d_ in enumerate(documents)}
    traced = labels = 0
    wrong: list[str] = []
    for copy in range(1 if fault else COPIES):
        plan = make_pairs(shard, max_seq_length=LENGTH, stream=Stream(3, copy), task=task)
        rows = gather(ids, plan, names, cls_id=2, sep_id=3, vocabulary_size=len(vocabulary))
        for row in mask_table(rows, options, Stream(4, copy)).to_pylist():
            tokens = [vocabulary[i] for i in row["input_ids"]]
            for position, label in zip(row["mlm_positions"], row["mlm_labels"], strict=True):
                tokens[position] = vocabulary[label - (fault == "labels")]
            labels += len(row["mlm_labels"])
            middle = row["a_length"] + 1
            assert (tokens[0], tokens[middle], tokens[-1]) == ("[CLS]", "[SEP]", "[SEP]")
            a, b = spelled(tokens[1:middle]), spelled(tokens[middle + 1 : -1])
            own = row["document"]
            is_next = row["is_next"] ^ (fault == "partner")
            full = len(tokens) == LENGTH
            if not sound(a, b, is_next, full, texts[own], ends[own], whole, task):
                wrong.append(f"{is_next} {own}: {a} | {b}")
            traced += 1
    # A NotNext B of a few words may stand in A's document too, by chance.
    if fault:
        assert len(wrong) > 1000
    else:
        assert traced >= 10_000 and labels > 50_000
        assert len(wrong) <= 0.002 * traced, wrong[:3]


def sentence_ends(document: list[list[str]]) -> set[int]:
    """Places in the spelled document where a sentence ends (the space after it)."""
    return set(np.cumsum([len(" ".join(s)) + 1 for s in document]).tolist())


def sound(
    a: str, b: str, is_next: bool, full: bool, own: str, ends: set[int], whole: str, task: str
) -> bool:
    """Whether a row may carry its label."""
    if not is_next and task == "sentence_order":
        a, b, is_next = b, a, True
    if not is_next:
        return bool(places(a, own)) and bool(places(b, whole)) and not places(b, own)
    # What was cut off may lie between A and B; where nothing was, they touch at a sentence's end,
    # or are halves of one sentence.
    return any(
        a_end - 1 <= b_start
        if full
        else a_end - 1 == b_start
        and (b_start in ends or ends.isdisjoint(range(a_start + 1, b_end - 1)))
        for a_start, a_end in places(a, own)
        for b_start, b_end in places(b, own)
    )
