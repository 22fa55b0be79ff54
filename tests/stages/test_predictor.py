"""Predictions against transformers' own pipelines and heads, and what must hold for any text."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from model.huggingface_files import read_files
from pipeline.stage import StageError, UserError
from stages.prediction_masks import filled
from stages.prediction_tags import Tagged
from stages.predictor import Predictor
from tests.oracle.real_text import paragraphs
from tests.oracle.task_data import span_rows
from tests.stages.prediction_folders import (
    TAGS,
    minilm,
    real_task,
    write_pretrained,
    write_task,
)

TEXTS = [
    "Anna lives in Paris.",
    "The film was very good, and not bad at all!",
    "Where is the river bank?",
    "cold",
    "Bert (who moved to Berlin) was there: 3 times.",
]
CONTEXT = "Anna moved to Paris, and Bert lives in London on a cold river bank."
SLOW = pytest.mark.slow


def close(found: Any, wanted: Any) -> None:
    assert found == pytest.approx(wanted, abs=1e-5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small random models by what they do."""
    at = tmp_path_factory.mktemp("models")
    return {
        "classify": write_task(at / "classify", "sequence", ("no", "maybe", "yes")),
        "value": write_task(at / "value", "sequence", ("score",)),
        "tag": write_task(at / "tag", "token", TAGS),
        "answer": write_task(at / "answer", "span"),
        "fill": write_pretrained(at / "fill"),
    }


def test_classes_and_values_are_those_of_the_pipeline(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["classify"])
    pipe = transformers.pipeline(
        "text-classification", model=str(folders["classify"]), device="cpu", top_k=None
    )
    for mine, theirs in zip(ours.classify(TEXTS), pipe(TEXTS), strict=True):
        close(mine["scores"], {row["label"]: row["score"] for row in theirs})
        assert mine["label"] == theirs[0]["label"] and mine["truncated"] is False
        assert mine["score"] == mine["scores"][mine["label"]]
    pairs = list(itertools.pairwise(TEXTS))
    asked = [{"text": a, "text_pair": b} for a, b in pairs]
    for mine, theirs in zip(ours.pair(pairs), pipe(asked), strict=True):
        close(mine["scores"], {row["label"]: row["score"] for row in theirs})
    assert ours.pair(pairs)[0] != ours.classify(TEXTS[:1])[0]
    values = Predictor.load(folders["value"])
    pipe = transformers.pipeline("text-classification", model=str(folders["value"]), device="cpu")
    scores = [row["score"] for row in pipe(TEXTS, function_to_apply="none")]
    close([row["value"] for row in values.classify(TEXTS)], scores)


def test_words_have_the_tags_of_their_first_pieces(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["tag"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["tag"])
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(folders["tag"]).eval()
    for text, mine in zip(TEXTS, ours.tag(TEXTS), strict=True):
        encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            shares = theirs(**encoded).logits[0].softmax(-1)
        first: dict[int, int] = {}
        for position, word in enumerate(encoded.word_ids()):
            if word is not None:
                first.setdefault(word, position)
        assert len(first) == len(mine["words"])
        for position, word in zip(first.values(), mine["words"], strict=True):
            assert word["start"] == offsets[position][0]
            assert word["word"] == text[word["start"] : word["end"]]
            assert word["tag"] == TAGS[int(shares[position].argmax())]
            close(word["score"], float(shares[position].max()))
        for entity in mine["entities"]:
            assert entity["text"] == text[entity["start"] : entity["end"]]
    assert any(row["entities"] for row in ours.tag(TEXTS))
    words = ["Anna", "lives", "in", "Paris", "."]
    given, raw = ours.tag([words, "Anna lives in Paris ."])
    assert given == raw


def answers_agree(folder: Path, asked: list[tuple[str, str]], tolerance: float) -> None:
    """By trying all spans on transformers' scores of contexts that fit in one window."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    found = Predictor.load(folder).answer(asked, top=3)
    for (question, context), mine in zip(asked, found, strict=True):
        encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            scores = theirs(**encoded)
        places = [i for i, part in enumerate(encoded.sequence_ids()) if part == 1]
        counted = [0, *places]
        starts, ends = scores.start_logits[0].double(), scores.end_logits[0].double()
        shares = [dict(zip(counted, s[counted].softmax(0), strict=True)) for s in (starts, ends)]
        spans = [(a, b) for a in places for b in places if a <= b < a + 30]
        spans.sort(key=lambda span: -float(starts[span[0]] + ends[span[1]]))
        for listed, (a, b) in zip(mine["answers"], spans, strict=False):
            assert (listed["start"], listed["end"]) == (offsets[a][0], offsets[b][1])
            assert listed["answer"] == context[listed["start"] : listed["end"]]
            share = float(shares[0][a] * shares[1][b])
            assert listed["score"] == pytest.approx(share, abs=tolerance)
        (a, b), *_ = spans
        margin = float(starts[0] + ends[0] - starts[a] - ends[b])
        assert mine["null_margin"] == pytest.approx(margin, abs=tolerance)
        assert {k: mine[k] for k in ("answer", "start", "end", "score")} == mine["answers"][0]


def test_answers_are_the_best_spans_of_the_scores(folders: dict[str, Path]) -> None:
    asked = [(q, CONTEXT) for q in ("Where is Anna?", "who lives in London", "what")]
    answers_agree(folders["answer"], asked, 1e-5)


def test_no_answer_by_the_folders_threshold(tmp_path: Path, folders: dict[str, Path]) -> None:
    asked = [("Where is Anna?", CONTEXT)]
    (free,) = Predictor.load(folders["answer"]).answer(asked)
    for step, is_none in ((-0.01, True), (0.01, False)):
        own = {"null_threshold": free["null_margin"] + step, "max_answer_length": 30}
        (found,) = Predictor.load(write_task(tmp_path, "span", own=own)).answer(asked)
        assert (found["answer"] is None) == is_none
        assert found["null_margin"] == free["null_margin"]


def test_masks_are_filled_as_by_the_pipeline(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["fill"])
    pipe = transformers.pipeline("fill-mask", model=str(folders["fill"]), device="cpu", top_k=40)
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"}
    texts = ["Anna lives in [MASK].", "[MASK]", "the [MASK] was [MASK] cold"]
    for text, mine in zip(texts, ours.fill_mask(texts, top=7), strict=True):
        theirs = pipe(text)
        for mask, offers in zip(mine["masks"], theirs if "was" in text else [theirs], strict=True):
            assert text[mask["start"] : mask["end"]] == "[MASK]"
            kept = [row for row in offers if row["token_str"] not in special][:7]
            assert [row["token"] for row in mask["tokens"]] == [row["token_str"] for row in kept]
            close([row["score"] for row in mask["tokens"]], [row["score"] for row in kept])
    everything = ours.fill_mask(["[MASK]"], top=10_000)[0]["masks"][0]["tokens"]
    assert special.isdisjoint(row["token"] for row in everything)
    assert len(everything) == len(ours.tokenizer.vocab) - len(special)
    assert filled("a [MASK] [MASK] b", ["film", "##s"]) == "a films b"


def test_a_mask_far_into_a_long_text(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["fill"])
    before, after = "the river " * 100, " cold bank" * 100
    (long,) = ours.fill_mask([f"{before}[MASK]{after}"])
    assert long["truncated"] is True
    # What the model reads is the middle: 62 pieces, the mask behind 31 of them.
    middle = f"{'the river ' * 15}"
    (alone,) = ours.fill_mask([f"river {middle}[MASK]{' cold bank' * 15}"])
    assert alone["truncated"] is False
    close(
        [row["score"] for row in long["masks"][0]["tokens"]],
        [row["score"] for row in alone["masks"][0]["tokens"]],
    )


def test_special_tokens_in_a_text_are_characters(folders: dict[str, Path]) -> None:
    tagged = Predictor.load(folders["tag"]).tag(["Anna [SEP] Paris [MASK]"])[0]
    assert [row["word"] for row in tagged["words"]][1:4] == ["[", "SEP", "]"]
    texts = ["good [SEP] bad", "good [ SEP ] bad"]
    whole, apart = Predictor.load(folders["classify"]).classify(texts)
    assert whole == apart
    ours = Predictor.load(folders["fill"])
    whole, apart = ours.fill_mask([f"[MASK] {text}" for text in texts])
    assert whole["masks"] == apart["masks"]


def test_order_reasons_and_what_a_row_is_read_from(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["classify"])
    rows = [
        {"text": "good", "other": 1},
        {"text": "  "},
        {"text": "good", "text_b": "bad"},
        {"text": None},
        {"text": "a\ud800"},
        {"text": 3},
        {"text": "bad"},
    ]
    found = list(ours.predict(rows))
    reasons = [row.get("unusable") for row in found]
    assert reasons == [None, "empty_text", None, "missing_text", "undecodable", "not_text", None]
    assert found[0] == ours.classify(["good"])[0] and found[6] == ours.classify(["bad"])[0]
    assert found[2] == ours.pair([("good", "bad")])[0]
    assert json.loads(json.dumps(found)) == found
    assert list(ours.predict([])) == []
    # Rows are read as they are needed.
    endless = ({"text": "good " * 2000} for _ in itertools.count())
    assert len(list(itertools.islice(ours.predict(endless), 3))) == 3


def test_a_cut_text_says_so(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["classify"])
    assert ours.task.max_length == 64
    texts = ["good " * 62, "good " * 63]
    assert [row["truncated"] for row in ours.classify(texts)] == [False, True]
    assert ours.classify(texts)[0]["scores"] == ours.classify(texts)[1]["scores"]
    pairs = [("good " * 30, "bad " * 31), ("good " * 31, "bad " * 31), ("a", "bad " * 61)]
    assert [row["truncated"] for row in ours.pair(pairs)] == [False, True, True]
    assert [row["truncated"] for row in ours.embed(texts)] == [False, True]
    asks = Predictor.load(folders["answer"])
    assert asks.task.max_question_length == 30
    found = asks.answer([("who " * n, CONTEXT) for n in (30, 31)])
    assert [row["truncated"] for row in found] == [False, True]


@pytest.mark.parametrize("name", ["tag", "answer"])
def test_a_long_text_is_what_its_windows_say(name: str, folders: dict[str, Path]) -> None:
    """A word in the middle of a window: the score of that window alone."""
    ours = Predictor.load(folders[name])
    words = [f"{word}" for word in ("anna", "lives", "in", "paris", "cold", "river") * 40]
    text = " ".join(words)
    if name == "tag":
        (whole,) = ours.tag([text])
        # Windows of 62 pieces share 31: the second one begins at 31 and scores from 47 on.
        (window,) = ours.tag([words[31 : 31 + 62]])
        assert len(whole["words"]) == len(words)
        for i in range(47, 62 + 16):
            assert whole["words"][i]["tag"] == window["words"][i - 31]["tag"]
            close(whole["words"][i]["score"], window["words"][i - 31]["score"])
        return
    (found,) = ours.answer([("who", text)])
    assert found["answer"] == text[found["start"] : found["end"]]
    margins = []
    room, step = 64 - 3 - 1, 64 - 3 - 1 - ours.task.overlap
    for begin in range(0, len(words) - room + step, step):
        (part,) = ours.answer([("who", " ".join(words[begin : begin + room]))])
        margins.append(part)
    assert any(part["answer"] == found["answer"] for part in margins)


def test_a_context_of_five_thousand_words(folders: dict[str, Path]) -> None:
    ours = Predictor.load(folders["answer"])
    context = " ".join(f"{word} {i}" for i, word in enumerate(["river", "Anna's", "Zürich"] * 1667))
    assert len(context.split()) > 10_000
    (found,) = ours.answer([("where is it?", context)])
    assert found["answer"] == context[found["start"] : found["end"]] != ""


HARD = "aé\u0301ßİŉﬁ日本語ㄱ각\u1100\u1161ｆｕ \u3000\t\n\u200b\x00.,-[]😀नमस्ते"
CHARACTERS = st.sampled_from(HARD) | st.characters(exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, min_size=1, max_size=40)


@settings(max_examples=60)
@given(text=TEXT)
def test_places_are_exact_in_any_text(folders: dict[str, Path], text: str) -> None:
    (tagged,) = _TAGGER.setdefault("it", Predictor.load(folders["tag"])).tag([text])
    if "unusable" in tagged:
        assert not text.strip()
        return
    end = 0
    for word in tagged["words"]:
        assert end <= word["start"] < word["end"]
        assert word["word"] == text[word["start"] : word["end"]]
        end = word["end"]
    for entity in tagged["entities"]:
        assert entity["text"] == text[entity["start"] : entity["end"]]
    joined = "".join(word["word"] for word in tagged["words"])
    assert set(text) - set(joined) <= {c for c in text if not c.strip() or not c.isprintable()}


_TAGGER: dict[str, Predictor] = {}


def test_precisions_and_budgets_give_the_same(folders: dict[str, Path]) -> None:
    wanted = [row["scores"]["yes"] for row in Predictor.load(folders["classify"]).classify(TEXTS)]
    small = Predictor.load(folders["classify"], micro_batch_tokens=7).classify(TEXTS)
    close([row["scores"]["yes"] for row in small], wanted)
    half = Predictor.load(folders["classify"], precision="bf16").classify(TEXTS)
    assert [row["scores"]["yes"] for row in half] == pytest.approx(wanted, abs=0.1)
    assert [row["scores"]["yes"] for row in half] != wanted


def test_vectors_are_means_over_all_tokens(folders: dict[str, Path]) -> None:
    for name in ("fill", "tag"):
        ours = Predictor.load(folders[name])
        theirs = transformers.AutoModel.from_pretrained(folders[name]).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders[name])
        for text, row in zip(TEXTS, ours.embed(TEXTS), strict=True):
            with torch.no_grad():
                hidden = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state
            close(row["vector"], hidden[0].mean(0).tolist())
        sizes = [math.hypot(*row["vector"]) for row in ours.embed(TEXTS, normalise=True)]
        assert sizes == pytest.approx([1.0] * len(TEXTS))


def test_a_model_does_what_it_is_for(folders: dict[str, Path]) -> None:
    rows: dict[str, dict[str, str]] = {
        "classify": {"text": "a"},
        "tag": {"text": "a"},
        "answer": {"question": "a", "context": "a"},
        "fill_mask": {"text": "[MASK]"},
    }
    for name, folder in folders.items():
        ours = Predictor.load(folder)
        own = {"value": "classify", "fill": "fill_mask"}.get(name, name)
        for do in rows:
            if do == own:
                assert next(ours.predict([rows[do]])) == next(ours.predict([rows[do]], do))  # type: ignore[arg-type]
            else:
                with pytest.raises(UserError, match=r"it is for clozeline predict"):
                    ours.predict([rows[do]], do)  # type: ignore[arg-type]


def test_weights_that_are_no_numbers_are_said(tmp_path: Path) -> None:
    for kind, labels, row in (
        ("sequence", ("a", "b"), {"text": "a"}),
        ("span", (), {"question": "a", "context": "a"}),
    ):
        folder = write_task(tmp_path / kind, kind, labels)  # type: ignore[arg-type]
        tensors, _ = read_files(folder)
        tensors["bert.embeddings.LayerNorm.weight"][0] = torch.nan
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(StageError, match="not finite"):
            list(Predictor.load(folder).predict([row]))


def test_no_entities_without_a_scheme(tmp_path: Path) -> None:
    ours = Predictor.load(write_task(tmp_path, "token", ("NOUN", "VERB", "ADP")))
    assert ours.task.scheme == "plain"
    (found,) = ours.tag(["Anna lives"])
    assert found["entities"] == [] and {w["tag"] for w in found["words"]} <= {"NOUN", "VERB", "ADP"}
    # Control characters have no piece: the tag is by rule, and no score is made up.
    tagged = Tagged(("a",), np.array([[0, np.nan]], np.float32), TAGS, "BIO")
    assert next(tagged.word_dicts())["score"] is None


@SLOW
def test_memory_of_a_long_text_is_bounded(folders: dict[str, Path]) -> None:
    """CLOZELINE_LONG=3000000 pytest -k memory_of_a_long_text: the whole of it."""
    import os
    import tracemalloc

    ours = Predictor.load(folders["tag"])
    size = int(os.environ.get("CLOZELINE_LONG", "300000"))
    sentence = "Anna lives in Paris, and Bert moved to the cold river bank in London. "
    text = sentence * (size // len(sentence))
    tracemalloc.start()
    try:
        (found,) = ours.outputs([{"text": text}])
        assert isinstance(found, Tagged)
        count = sum(1 for word in found.word_dicts() if word["end"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == len(found.words) > size // 6
    # 50,000 words at a time, and some 30 bytes for each word of the text; not the 300 of a dict.
    assert peak < 60e6 + 40 * count


@SLOW
def test_real_weights_real_text(tmp_path: Path) -> None:
    """MiniLM's encoder with each head, as transformers has them, and its own recipe."""
    texts = [p.strip() for p in paragraphs("english", 20_000) if 20 < len(p) < 600][:20]
    texts += [p.strip() for p in paragraphs("german", 3_000) if 20 < len(p) < 600][:4]
    folder = real_task(tmp_path / "classify", "sequence", ("no", "yes", "maybe"))
    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu", top_k=None)
    wanted = pipe(texts, truncation=True, max_length=128)
    for mine, theirs in zip(Predictor.load(folder).classify(texts), wanted, strict=True):
        assert mine["scores"] == pytest.approx({r["label"]: r["score"] for r in theirs}, abs=1e-4)
    folder = real_task(tmp_path / "tag", "token", TAGS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    for text, mine in zip(texts, Predictor.load(folder).tag(texts), strict=True):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            shares = model(**encoded).logits[0].softmax(-1).numpy()
        words = encoded.word_ids()
        first = [i for i, w in enumerate(words) if w is not None and words[i - 1] != w]
        scores = [word["score"] for word in mine["words"]]
        assert scores == pytest.approx(shares[first].max(1).tolist(), abs=1e-4)
        assert [w["tag"] for w in mine["words"]] == [TAGS[k] for k in shares[first].argmax(1)]
    rows = [row for row in span_rows("squad_v1/dev-v1.1.json") if len(row.context) < 600][::40]
    asked = [(row.question, row.context) for row in rows[:4]]
    answers_agree(real_task(tmp_path / "answer", "span"), asked, 1e-4)
    ours = Predictor.load(minilm())
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    model = transformers.AutoModel.from_pretrained(minilm()).eval()
    encoded = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**encoded).last_hidden_state
    mask = encoded["attention_mask"][:, :, None].float()
    pooled = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), p=2, dim=1)
    vectors = np.array([row["vector"] for row in ours.embed(texts, normalise=True)])
    assert np.abs(vectors - pooled.numpy()).max() < 1e-5
