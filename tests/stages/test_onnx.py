"""The ONNX file against the packed model, at every batch size and length."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from model.bert import BertForPreTraining
from model.config import BertConfig
from model.packing import pack, unpack
from stages.onnx import Batch, Kind, PaddedForm, export_onnx, largest_difference

VOCAB = 100
SHAPES = [(2, 8), (1, 1), (3, 17), (1, 64), (5, 2)]


def padded_batch(batch: int, length: int, generator: torch.Generator) -> Batch:
    ids = torch.randint(5, VOCAB, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    columns = torch.arange(length)
    return Batch(ids, (columns < lengths).long(), (columns >= lengths // 2).long())


class Head(nn.Module):
    """Of each kind's signature."""

    def __init__(self, model: BertForPreTraining, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.pooler, self.nsp = model.pooler, model.nsp
        self.scorer = nn.Linear(model.config.hidden_size, 2)

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        if self.kind == "sequence":
            assert self.pooler is not None and self.nsp is not None
            scores: Tensor = self.nsp(self.pooler(hidden.index_select(0, cu_seqlens[:-1])))
        else:
            scores = self.scorer(hidden)
        return scores


@pytest.fixture(scope="module")
def model() -> BertForPreTraining:
    made = BertForPreTraining(BertConfig(vocab_size=VOCAB, max_position_embeddings=64)).eval()
    generator = torch.Generator().manual_seed(1)
    # Biases and norms too: an exporter leaves zeros out and shares what is equal.
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.1, 0.2, generator=generator)
    return made


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_the_padded_form_equals_the_packed_model(model: BertForPreTraining, kind: Kind) -> None:
    generator = torch.Generator().manual_seed(2)
    head = Head(model, kind).eval()
    form = PaddedForm(model.bert, head, kind)
    for shape in SHAPES:
        batch = padded_batch(*shape, generator)
        packed = pack(batch.input_ids, batch.token_type_ids, batch.attention_mask)
        with torch.no_grad():
            expected = head(model.bert(*packed.inputs()), packed.cu_seqlens)
            scores = torch.stack(form(*batch), -1) if kind == "span" else form(*batch)[0]
        if kind != "sequence":
            expected = unpack(expected, packed)
            scores = scores * batch.attention_mask[..., None]
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_file_gives_the_models_scores(model: BertForPreTraining, tmp_path: Path) -> None:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra `onnx` is not installed")
    onnx = pytest.importorskip("onnx")
    generator = torch.Generator().manual_seed(3)
    form = PaddedForm(model.bert, Head(model, "span"), "span")
    path = tmp_path / "model.onnx"
    export_onnx(form, path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    batches = [padded_batch(*shape, generator) for shape in SHAPES]
    assert largest_difference(path, form, batches) < 1e-4
    written = onnx.load(path)
    assert [i.name for i in written.graph.input] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]
    assert [o.name for o in written.graph.output] == ["start_logits", "end_logits"]
    assert str(Path.cwd()).encode() not in path.read_bytes()
