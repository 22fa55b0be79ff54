"""Model cards, read back by Hugging Face's own reader."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.lineage import Step
from stages.model_card import Card, CardData, CardFigure, data_side, model_card
from stages.model_card_use import PIPELINES, PRETRAINED

hub = pytest.importorskip("huggingface_hub")

LINEAGE = [
    Step("task/mine", "a" * 64, "b" * 64, "here", flow="10 -> 9 rows", inputs={"vocab": "vocab"}),
    Step("vocab", "c" * 64, "d" * 64, "here", inputs={"shard": "shard"}),
    Step("shard", "e" * 64, "f" * 64, "here", raw={"entries": 1234, "digest": "9" * 64}),
]


def card(objective: str = "classification", **changes: Any) -> Card:
    values: dict[str, Any] = {
        "name": "mine",
        "described": {"objective": objective, "max_length": 128, "scheme": "BIO"},
        "shape": {"hidden_size": 128, "vocab_size": 8192},
        "parameters": 1_234_567,
        "labels": ("no", "yes"),
        "data": [
            data_side("train", {"in": 1000, "out": 990, "empty_text": 10, "unknown_label": 0}),
            CardData("dev", ("dev.tsv",), 100, 100, {}, {"no": 60, "yes": 40}),
        ],
        "figures": {
            "accuracy": CardFigure(0.91, 0.88, 0.93, (0.9, 0.91, 0.89), 0.6),
            "f1/macro": CardFigure(0.9),
        },
        "chosen_by": "accuracy",
        "training": {"epochs": 3, "learning_rate": 5e-5, "seeds": {"task": 7}},
        "lineage": LINEAGE,
    }
    return Card(**values | changes)


@pytest.mark.parametrize("objective", PIPELINES)
def test_hugging_face_reads_the_front_matter(objective: str) -> None:
    found = hub.ModelCard(model_card(card(objective)))
    data = found.data.to_dict()
    assert data["library_name"] == "transformers"
    assert data["pipeline_tag"] == PIPELINES[objective]
    assert data["metrics"] == ["accuracy", "f1/macro"]
    results = {r.metric_type: r.metric_value for r in found.data.eval_results}
    assert results == {"accuracy": 0.91, "f1/macro": 0.9}
    assert found.data.model_name == "clozeline-mine"


def test_what_the_manifests_say_stands_in_it() -> None:
    text = model_card(card(onnx=True))
    for said in (
        "into one of 2 classes",
        "1,234,567 parameters: hidden_size 128",
        "| train |  | 1,000 | 990 | 10 empty text |",
        "| dev | dev.tsv | 100 | 100 | none |",
        "| no | 0 | 60 |",
        "| accuracy | 0.91 | 0.88 to 0.93 | 0.9 ± 0.01 (3 seeds) | 0.6 |",
        "| seeds.task | 7 |",
        "chose the epoch (best accuracy)",
        "best of 3 seeds",
        "longer than 128 tokens is cut",
        "language of the text is not recorded",
        f"`{'b' * 16}`",
        "1,234 raw entries, listing `9999999999999999`",
        "model.onnx",
        "clozeline predict classify",
    ):
        assert said in text, said
    assert "unknown_label" not in text


def test_nothing_is_said_of_what_is_not_known() -> None:
    text = model_card(Card("mine", {"objective": PRETRAINED}, {}, 10))
    for heading in ("## Data", "## Figures", "## Training", "## Lineage", "metrics", "datasets"):
        assert heading not in text
    assert "model.onnx" not in text and "fill-mask" in text


def test_text_of_the_data_cannot_break_the_card() -> None:
    nasty = 'a|b\n---\n# "x": [y <script>'
    text = model_card(card(name=nasty, data=[CardData("dev", (nasty,), 1, 1, {}, {nasty: 1})]))
    found = hub.ModelCard(text)
    assert found.data.model_name == f"clozeline-{nasty}"
    assert "<script" not in found.text
    assert "\n---\n#" not in found.text
    (row,) = [line for line in found.text.splitlines() if line.startswith("| dev")]
    assert row.replace("\\|", "").count("|") == 6


def test_many_classes_are_cut_with_their_number() -> None:
    classes = {f"c{i}": 1 for i in range(120)}
    text = model_card(card(data=[CardData("dev", (), 120, 120, {}, classes)]))
    assert "... and 70 more classes" in text and "| c49 |" in text and "| c50 |" not in text
