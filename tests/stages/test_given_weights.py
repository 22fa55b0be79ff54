"""Weights that a run starts from: what is taken, what is refused, what is fingerprinted."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.huggingface import write_folder
from pipeline.stage import RawInput, StageError, UserError
from pipeline.store import Store
from stages.catalog import CATALOG
from stages.config import Config
from stages.given_weights import find_weights
from stages.initial_weights import initial_weights
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.training.start import drawn_weights
from stages.training.weights import weights_of

TOKENS = (*SPECIAL_TOKENS, *"abcdefghij")
SHAPE = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 128}
BERT = BertConfig(vocab_size=len(TOKENS), **SHAPE)


def write_vocab(folder: Path, tokens: tuple[str, ...] = TOKENS) -> None:
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


@pytest.fixture
def model() -> BertForPreTraining:
    made = BertForPreTraining(BERT)
    init_weights(made, torch.Generator().manual_seed(1))
    return made


@pytest.fixture
def folder(tmp_path: Path, model: BertForPreTraining) -> Path:
    """As transformers and our export write it."""
    write_folder(tmp_path / "bert", model)
    write_vocab(tmp_path / "bert")
    return tmp_path / "bert"


def rewritten(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})
    return folder


def listed(folder: Path, **changes: Any) -> RawInput:
    values: dict[str, Any] = {
        "corpus": {"kind": "python_docs"}, "model": SHAPE,
        "train": {"init_from": str(folder)}, "vocab": {"from": str(folder)},
        "phases": [{"max_seq_length": 64}, {"max_seq_length": 128}], **changes,
    }  # fmt: skip
    nodes = {n.name: n for n in CATALOG.nodes(Config.model_validate(values))}
    assert nodes["pretrain/128"].raw is None
    assert nodes["pretrain/64"].config["train"]["init_from"] == "listed"
    assert "carry_moments" not in nodes["pretrain/64"].config["train"]
    assert nodes["pretrain/128"].config["train"]["carry_moments"] is True
    listing = nodes["pretrain/64"].raw
    assert listing is not None
    return listing()


def start(folder: Path, config: BertConfig = BERT) -> tuple[dict[str, torch.Tensor], list[str]]:
    return initial_weights(str(folder), Path("/"), config, TOKENS, seed=3)


def test_content_counts_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    first = listed(folder).entries
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    os.utime(copy / "model.safetensors", (1, 1))
    assert listed(copy).entries == first

    def one_number(tensors: dict[str, Any]) -> dict[str, Any]:
        tensors["bert.embeddings.word_embeddings.weight"][3, 3] += 1
        return tensors

    assert listed(rewritten(copy, one_number)).entries != first


def test_each_layout_gives_the_same_weights(folder: Path, tmp_path: Path, model: Any) -> None:
    wanted = weights_of(model)
    ours = tmp_path / "store" / "data"
    ours.mkdir(parents=True)
    save_file(wanted, ours / "weights.safetensors")
    (ours / "model.json").write_text(json.dumps(dataclasses.asdict(BERT)))
    write_vocab(ours)
    (ours.parent / "manifest.json").write_text('{"generation": "data"}')
    with pytest.raises(UserError, match=f"lie in {ours}: name it"):
        listed(ours.parent, vocab={"from": str(folder)})
    for given in (folder, ours):
        weights, notices = start(given)
        assert not notices and weights.keys() == wanted.keys()
        assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
        assert listed(given).entries

    bare = rewritten(
        folder,
        lambda t: {n.removeprefix("bert."): v for n, v in t.items() if n.startswith("bert.")},
    )
    weights, notices = start(bare)
    drawn = drawn_weights(BERT, 3)
    for name, tensor in weights.items():
        head = name.startswith(("mlm.", "nsp."))
        assert torch.equal(tensor, (drawn if head else wanted)[name]), name
    assert len(notices) == 1 and "drawn from the seed" in notices[0] and "mlm.bias" in notices[0]


def test_a_run_without_next_sentences_leaves_their_head(folder: Path) -> None:
    weights, notices = start(folder, dataclasses.replace(BERT, nsp=False))
    assert "pooler.dense.weight" not in weights
    assert len(notices) == 1 and "left out" in notices[0]


def test_an_unfinished_training_is_refused(folder: Path, tmp_path: Path) -> None:
    writer = Store(str(tmp_path / "store")).begin("finetune/x", "f" * 64, "a")
    data = Path(writer.data)
    shutil.copytree(folder, data)
    link = tmp_path / "link"
    link.symlink_to(data)
    for given in (data, data.parent, link):
        with pytest.raises(UserError, match="finetune/x is not finished there; clozeline run"):
            find_weights(str(given), Path("/"))
    assert find_weights(str(shutil.copytree(data, tmp_path / "copy")), Path("/")).tokens == TOKENS
    (data.parent / "manifest.json").write_text('{"generation": "data"}')
    assert find_weights(str(data), Path("/")).tokens == TOKENS

    # Made anew beside it: the old result stays one.
    attempt = {"attempt": "b", "generation": "data-1"}
    (data.parent / "attempt.json").write_text(json.dumps(attempt))
    again = shutil.copytree(folder, data.parent / "data-1")
    assert find_weights(str(data), Path("/")).tokens == TOKENS
    with pytest.raises(UserError, match="finetune/x is not finished there"):
        find_weights(str(again), Path("/"))


def test_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is pickled.*save_pretrained"):
        listed(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    for disguised in (b"PK\x03\x04\x00\x00\x08\x08", b"\x80\x02\x8a\nl\xfc\x9cF", b"\x80\x05N."):
        (folder / "model.safetensors").write_bytes(disguised)
        with pytest.raises(UserError, match=r"is a pickle under the name.*save_pretrained"):
            listed(folder)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: (f / "config.json").unlink(), "does not hold config.json and model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "vocab.txt").unlink(), "put its vocab.txt"),
    ],
)
def test_what_is_not_there_is_named(folder: Path, tmp_path: Path, break_it: Any, said: str) -> None:
    write_vocab(tmp_path)
    break_it(folder)
    with pytest.raises(UserError) as caught:
        listed(folder, vocab={"from": str(tmp_path)})
    assert said in str(caught.value) and "train.init_from=" in str(caught.value)


def test_another_shape_says_what_to_set(folder: Path) -> None:
    with pytest.raises(UserError, match=r"set model\.num_layers=2 model\.num_heads=2$"):
        listed(folder, model={**SHAPE, "num_layers": 3, "num_heads": 4})


def test_another_vocabulary_says_what_to_set(folder: Path, tmp_path: Path) -> None:
    other = (*TOKENS[:-2], "j", "i")
    write_vocab(tmp_path, other)
    with pytest.raises(UserError, match=r"entry 13 is 'i' there and 'j' here.*set vocab\.from="):
        listed(folder, vocab={"from": str(tmp_path)})
    with pytest.raises(UserError, match="another vocabulary"):
        initial_weights(str(folder), Path("/"), BERT, other, seed=3)
    with pytest.raises(ValidationError, match=r"set vocab\.from="):
        listed(folder, vocab={})


def test_tensors_of_another_shape_than_their_own_config(folder: Path) -> None:
    def shorter(tensors: dict[str, Any]) -> dict[str, Any]:
        name = "bert.embeddings.position_embeddings.weight"
        return tensors | {name: tensors[name][:64].clone()}

    with pytest.raises(StageError, match="do not belong together"):
        start(rewritten(folder, shorter))
    assert "init_from" not in json.dumps(dict(_plain_pretrain().config))


def _plain_pretrain() -> Any:
    config = Config.model_validate({"corpus": {"kind": "python_docs"}})
    return next(n for n in CATALOG.nodes(config) if n.name == "pretrain/128")
