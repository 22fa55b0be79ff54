"""A fine-tuned model as one ONNX file that takes padded batches of any size and length.

Needs the extra `onnx` (onnx, onnxscript; onnxruntime for the check). The encoder's own modules are
traced, with the padding masked in place of packed away, so there is no second model to keep equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.attention import AttentionPlan
from model.bert import BertModel
from model.packing import PaddedLayout

Kind = Literal["sequence", "token", "span"]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = {
    "sequence": ("logits",),
    "token": ("logits",),
    "span": ("start_logits", "end_logits"),
}
"""Names as transformers and optimum have them."""

OPSET = 18
# Any but 0 and 1, which torch.export takes for constants.
EXAMPLE_SHAPE = (2, 8)


class PaddedForm(nn.Module):
    """An encoder and a task's head over padded batches; in evaluation mode.

    Args:
        bert: the encoder.
        head: takes hidden states [T, d] and int `cu_seqlens` [B + 1]; gives [B, K] ("sequence"),
            [T, K] ("token") or [T, 2] ("span").
        kind: which of these.
    """

    def __init__(self, bert: BertModel, head: nn.Module, kind: Kind) -> None:
        super().__init__()
        self.bert = bert
        self.head = head
        self.kind = kind
        self.eval()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Score a batch.

        Args:
            input_ids: int64 [B, S].
            attention_mask: int64 [B, S], 0 where there is padding, at the right. Each row needs a
                token.
            token_type_ids: int64 [B, S].

        Returns:
            "sequence": logits [B, K]; "token": logits [B, S, K]; "span": start and end, [B, S]
            each. What stands at padding means nothing.
        """
        batch, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device).expand(batch, length)
        starts = torch.arange(batch + 1, device=input_ids.device) * length
        # Every column counts as a token, so that nothing has to be moved; the mask hides padding.
        layout = PaddedLayout(batch, length, None, attention_mask.ne(0)[:, None, None, :])
        hidden = self.bert.embeddings(
            input_ids.flatten(), token_type_ids.flatten(), positions.flatten()
        )
        hidden = self.bert.encoder(hidden, AttentionPlan(starts, length, "sdpa", layout))
        scores: Tensor = self.head(hidden, starts)
        if self.kind == "sequence":
            return (scores,)
        scores = scores.view(batch, length, -1)
        return (scores,) if self.kind == "token" else (scores[..., 0], scores[..., 1])


class Batch(NamedTuple):
    """A padded batch; int64 [B, S] each, as `PaddedForm.forward` takes them."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor


def export_onnx(form: PaddedForm, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write one file with weights, for float32 models on CPU up to 2 GB.

    Input longer than the position table is an error of the runtime that reads the file.

    Args:
        form: its parameters lie on CPU, in float32.
        path: of the file; its folder must be there.
        metadata: stands in the file's `metadata_props`.
    """
    # A tensor each: torch.export takes one tensor that is given twice for one input.
    example = Batch(*(torch.ones(EXAMPLE_SHAPE, dtype=torch.int64) for _ in INPUTS))
    with torch.no_grad():
        program = torch.onnx.export(
            form,
            tuple(example),
            input_names=INPUTS,
            output_names=OUTPUTS[form.kind],
            dynamic_shapes={name: {0: "batch", 1: "length"} for name in INPUTS},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    # Traces name folders of the machine that exported, and differ between machines.
    for node in program.model.graph:
        node.metadata_props.clear()
    program.model.metadata_props.clear()
    program.model.metadata_props.update(metadata or {})
    program.save(path)


def largest_difference(path: Path, form: PaddedForm, batches: list[Batch]) -> float:
    """How far the file's outputs (by onnxruntime, on CPU) are from the model's, padding aside."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    largest = 0.0
    for batch in batches:
        fed = {name: value.numpy() for name, value in batch._asdict().items()}
        theirs: list[NDArray[np.float32]] = session.run(None, fed)
        with torch.no_grad():
            ours = form(*batch)
        for a, b in zip(ours, theirs, strict=True):
            difference = np.abs(a.numpy() - b)
            if form.kind != "sequence":
                difference = difference[batch.attention_mask.numpy() != 0]
            largest = max(largest, float(difference.max()))
    return largest
