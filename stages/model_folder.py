"""A fine-tuned model as the files of its folder: what `transformers` loads, and an ONNX file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from model.huggingface_files import CONFIG_FILE, WEIGHTS_FILE
from model.huggingface_tasks import task_config_to_huggingface, task_tensors_to_huggingface
from model.task_heads import BertForTask
from pipeline.stage import Json, StageError
from stages.onnx import Batch, PaddedForm, export_onnx, largest_difference
from stages.text.tokenizer_files import tokenizer_files
from stages.text.wordpiece import Tokenizer

CONFIG_KEY = "clozeline"
"""In config.json and in the ONNX file: the objective and the lengths that a prediction needs."""

ONNX_FILE = "model.onnx"
LARGEST_DIFFERENCE = 1e-4
"""Of a score by ONNX Runtime from the same score by torch."""

Row = tuple[Sequence[int], int]
"""Token ids with [CLS] and [SEP], and `a_length`: how many tokens segment A has between them."""

_CHECKED_ROWS = 12
_ROWS_A_BATCH = 4


def model_files(
    model: BertForTask,
    labels: Sequence[str],
    tokenizer: Tokenizer,
    described: Mapping[str, Json],
) -> dict[str, bytes]:
    """The files of a model's folder by name; AutoModelFor..., AutoTokenizer, pipeline take them.

    Args:
        model: unwrapped, on any device.
        labels: name of each class in order; one for regression, none for answers.
        tokenizer: of its vocabulary. The files say that a row holds at most as many tokens as the
            model has positions, whatever length it was trained at.
        described: "task", "objective", "max_length"...: stands in config.json under `CONFIG_KEY`.

    Raises:
        ValueError: labels that do not fit the model, or a vocabulary that does not.
    """
    if len(tokenizer.vocab) > model.config.vocab_size:
        raise ValueError(
            f"the tokeniser has {len(tokenizer.vocab):,} tokens, the model "
            f"{model.config.vocab_size:,}: they are not of one vocabulary"
        )
    values = task_config_to_huggingface(model, labels) | {CONFIG_KEY: dict(described)}
    return {
        CONFIG_FILE: (json.dumps(values, indent=2, sort_keys=True) + "\n").encode(),
        WEIGHTS_FILE: save(task_tensors_to_huggingface(model), {"format": "pt"}),
        **tokenizer_files(tokenizer, model.config.max_position_embeddings),
    }


def onnx_file(
    model: BertForTask,
    labels: Sequence[str],
    described: Mapping[str, Json],
    rows: Sequence[Row] = (),
) -> bytes:
    """The model as one ONNX file, checked against torch before it is returned.

    Its `metadata_props` hold "labels" and `CONFIG_KEY` as JSON, and each item of `described` under
    its own name.

    Args:
        model: unwrapped, on any device; it is left as it is.
        labels, described: as of `model_files`.
        rows: real rows, of which some are checked; without any, rows of random ids are.

    Raises:
        StageError: the file's scores are not the model's, or it is too large for ONNX (2 GB).
    """
    copy = _on_cpu(model)
    form = PaddedForm(copy.bert, copy.head, model.kind)
    metadata = {"labels": _json(list(labels)), CONFIG_KEY: _json(dict(described))}
    metadata |= {key: v if isinstance(v, str) else _json(v) for key, v in described.items()}
    size = sum(p.numel() * p.element_size() for p in form.parameters())
    if size >= 2**31:
        raise StageError(
            f"the model has {size / 1e9:.1f} GB of weights and one ONNX file holds 2: set "
            "finetune.onnx=false"
        )
    batches = _batches(rows or _random_rows(model), model.config.pad_token_id)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ONNX_FILE
        export_onnx(form, path, metadata)
        difference = largest_difference(path, form, batches)
        if not difference <= LARGEST_DIFFERENCE:
            raise StageError(
                f"the ONNX file's scores differ from the model's by up to {difference:.2g} (at "
                f"most {LARGEST_DIFFERENCE:g} is right), so it is not kept. To go on without it set"
                " finetune.onnx=false, and report the versions of onnx, onnxscript, onnxruntime "
                "and torch"
            )
        return path.read_bytes()


def _on_cpu(model: BertForTask) -> BertForTask:
    """A float32 copy; the model itself may go on training on its device."""
    copy = BertForTask(model.config, model.kind, model.classes, model.head_dropout)
    copy.load_state_dict({name: value.float().cpu() for name, value in model.state_dict().items()})
    return copy


def _batches(rows: Sequence[Row], pad: int) -> list[Batch]:
    """Some rows, short and long, in padded batches."""
    by_length = sorted(rows, key=lambda row: len(row[0]))
    step = max(1, (len(by_length) - 1) // (_CHECKED_ROWS - 1))
    chosen = [*by_length[::step][: _CHECKED_ROWS - 1], by_length[-1]]
    return [
        _padded(chosen[i : i + _ROWS_A_BATCH], pad) for i in range(0, len(chosen), _ROWS_A_BATCH)
    ]


def _padded(rows: Sequence[Row], pad: int) -> Batch:
    length = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), length), pad, dtype=torch.int64)
    mask, segments = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, (tokens, a_length) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(list(tokens))
        mask[i, : len(tokens)] = 1
        segments[i, a_length + 2 : len(tokens)] = 1
    return Batch(ids, mask, segments)


def _random_rows(model: BertForTask) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    longest = model.config.max_position_embeddings
    rows: list[Row] = []
    for length in (3, longest // 3, longest):
        drawn: Tensor = torch.randint(model.config.vocab_size, (length,), generator=generator)
        rows.append((drawn.tolist(), length // 2))
    return rows


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
