"""A fine-tuned model's folder, opened by transformers and ONNX Runtime with no code of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stages.model_folder
import stages.onnx_extra
from model.bert import init_weights
from model.config import BertConfig
from model.packing import pack
from model.task_heads import BertForTask
from pipeline.stage import StageError, UserError
from stages.model_folder import model_files, onnx_file
from stages.onnx_extra import check_onnx_installed
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

transformers = pytest.importorskip("transformers")

OBJECTIVES: dict[str, tuple[Any, tuple[str, ...], Any, str]] = {
    "classification": (
        "sequence",
        ("schlecht", "gut", "weiß nicht"),
        transformers.AutoModelForSequenceClassification,
        "text-classification",
    ),
    "regression": (
        "sequence",
        ("similarity",),
        transformers.AutoModelForSequenceClassification,
        "text-classification",
    ),
    "tagging": (
        "token",
        ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        transformers.AutoModelForTokenClassification,
        "token-classification",
    ),
    "answers": (
        "span",
        (),
        transformers.AutoModelForQuestionAnswering,
        "",
    ),
}
TEXT = "Dr. Müller (Köln) said: “it's [MASK] fine”, 東京, naïve—twice!"


def tokenizer() -> Tokenizer:
    """Every character as a piece, alone and inside of words, and some words."""
    characters = sorted(set(TEXT) - {" "} | set("abcdefghijklmnopqrstuvwxyz.?"))
    vocab = [*SPECIAL_TOKENS, *characters, *(f"##{c}" for c in characters), "said", "fine"]
    return Tokenizer(vocab, Normalisation(False, False, True))


def build(objective: str, positions: int = 64) -> BertForTask:
    kind, labels, *_ = OBJECTIVES[objective]
    config = BertConfig(
        vocab_size=len(tokenizer().vocab),
        hidden_size=32,
        num_heads=2,
        num_layers=2,
        max_position_embeddings=positions,
    )
    model = BertForTask(config, kind, len(labels) or 2)
    generator = torch.Generator().manual_seed(1)
    init_weights(model, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def described(objective: str) -> dict[str, Any]:
    return {
        "task": "mine",
        "objective": objective,
        "max_length": 48,
        "overlap": 16,
        "null_threshold": -1.25,
        "scheme": "BIO" if objective == "tagging" else None,
    }


def write(folder: Path, objective: str) -> BertForTask:
    model = build(objective)
    labels = OBJECTIVES[objective][1]
    files = model_files(model, labels, tokenizer(), described(objective))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return model


def scores_of(model: BertForTask, encoded: Any) -> torch.Tensor:
    names = ("input_ids", "token_type_ids", "attention_mask")
    with torch.no_grad():
        scores: torch.Tensor = model(*pack(*(encoded[name] for name in names)).inputs())
    return scores


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_transformers_opens_the_folder_and_scores_the_same(tmp_path: Path, objective: str) -> None:
    model = write(tmp_path, objective)
    _, labels, auto, _ = OBJECTIVES[objective]
    theirs = auto.from_pretrained(tmp_path).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokens.model_max_length == 64
    encoded = tokens("said fine", TEXT, return_tensors="pt", truncation=True)
    with torch.no_grad():
        out = theirs(**encoded)
    got = (
        torch.stack([out.start_logits, out.end_logits], -1)
        if objective == "answers"
        else out.logits
    )
    torch.testing.assert_close(
        got.reshape(-1, got.shape[-1]), scores_of(model, encoded), atol=1e-5, rtol=0
    )
    if labels:
        assert theirs.config.id2label == dict(enumerate(labels))
        assert theirs.config.label2id == {label: i for i, label in enumerate(labels)}
    assert theirs.config.clozeline == described(objective)
    # What transformers saves again still says how the model is to be used.
    theirs.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text("utf-8"))
    assert again["clozeline"] == described(objective)


# transformers 5 has no pipeline for answers: the model with its tokeniser is what it offers.
@pytest.mark.parametrize("objective", ["classification", "regression", "tagging"])
def test_pipelines_answer_with_our_labels(tmp_path: Path, objective: str) -> None:
    write(tmp_path, objective)
    _, labels, _, task = OBJECTIVES[objective]
    answer = transformers.pipeline(task, model=str(tmp_path))
    found = answer(TEXT)
    names = [row.get("label", row.get("entity")) for row in found]
    assert names and set(names) <= set(labels)
    if objective == "classification":
        every = answer(TEXT, top_k=None)
        assert {row["label"] for row in every} == set(labels)
        assert sum(row["score"] for row in every) == pytest.approx(1)


def test_a_vocabulary_that_is_larger_than_the_model_is_refused() -> None:
    model = build("classification")
    larger = Tokenizer([*tokenizer().vocab, "more"], Normalisation(False, False, True))
    with pytest.raises(ValueError, match="not of one vocabulary"):
        model_files(model, OBJECTIVES["classification"][1], larger, {})


def test_the_same_model_gives_the_same_bytes() -> None:
    labels = OBJECTIVES["tagging"][1]
    first, second = (
        model_files(build("tagging"), labels, tokenizer(), described("tagging")) for _ in range(2)
    )
    assert first == second


def onnx_extra() -> Any:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra `onnx` is not installed")
    return pytest.importorskip("onnxruntime")


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["classification", "tagging", "answers"])
def test_the_onnx_file_says_what_it_is_and_scores_the_same(tmp_path: Path, objective: str) -> None:
    runtime = onnx_extra()
    model = build(objective)
    model.train()
    labels = OBJECTIVES[objective][1]
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_file(model, labels, described(objective)))
    assert model.training
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map
    assert json.loads(found["labels"]) == list(labels)
    assert json.loads(found["clozeline"]) == described(objective)
    assert (found["objective"], found["max_length"]) == (objective, "48")
    write(tmp_path, objective)
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        "said fine", TEXT, return_tensors="pt", truncation=True
    )
    fed = {item.name: encoded[item.name].numpy() for item in session.get_inputs()}
    out = session.run(None, fed)
    got = np.stack(out, -1) if objective == "answers" else out[0]
    expected = scores_of(model.eval(), encoded).numpy()
    np.testing.assert_allclose(got.reshape(-1, got.shape[-1]), expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_an_onnx_file_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_extra()
    monkeypatch.setattr(stages.model_folder, "LARGEST_DIFFERENCE", -1.0)
    labels = OBJECTIVES["regression"][1]
    rows = [([2, 7, 9, 3, 8, 3], 2), ([2, 7, 3], 1)]
    with pytest.raises(StageError, match="differ from the model's by up to"):
        onnx_file(build("regression"), labels, described("regression"), rows)


def test_the_missing_extra_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages.onnx_extra, "PACKAGES", ("json", "no_such_package"))
    with pytest.raises(UserError, match=r"needs no_such_package.*pip install 'clozeline\[onnx\]'"):
        check_onnx_installed()
