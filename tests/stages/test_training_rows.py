"""Training on what the data stages made: masks drawn at loading, rows of other runs mixed in.

The stages' own code without Ray; training in this process, for a few steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.serial import Chain, config_of, overrides
from pipeline.stage import Node, RawInput, StageError, UserError
from pipeline.store import Artifact, Store
from stages.catalog import CATALOG
from stages.mix import list_mix, open_mix, open_mixed
from stages.pretrain_worker import Plan, train_here
from stages.text.tokenizer_files import vocabulary_digest
from stages.train_config import MixedConfig
from stages.training.row_groups import Limits, count_labels, read_index
from stages.training_rows import check_rows, drawn_masks, indexed_copies, label_counts
from stages.vocabulary_files import load_tokenizer

TEXT = "the cat sat on a mat while rain fell over old town and men went home by the river"
WORDS = TEXT.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FINGERPRINT = "0" * 64


def corpus(path: Path, documents: int, seed: int) -> Path:
    draw = np.random.default_rng(seed)
    with path.open("w") as file:
        for number in range(documents):
            sentences = [
                " ".join(draw.choice(WORDS, draw.integers(3, 12))).capitalize() + "."
                for _ in range(draw.integers(8, 20))
            ]
            file.write(json.dumps({"text": f"Number {number}. " + " ".join(sentences)}) + "\n")
    return path


MORE = ("corpus.validation_share=0.3", "pairs.copies=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The corpus, the vocabulary, and a store with pairs (two copies) and masks."""
    folder = tmp_path_factory.mktemp("rows")
    vocab = folder / "vocab.txt"
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789.")
    entries = [*SPECIAL, *letters, *[f"##{letter}" for letter in letters], *sorted(set(WORDS))]
    vocab.write_text("\n".join(dict.fromkeys(entries)) + "\n")
    text = corpus(folder / "corpus.jsonl", 300, seed=1)
    Chain(text, folder / "store", vocab, *MORE)()
    return text, vocab, folder / "store"


def artifact(store: Path, node: str) -> Artifact:
    found = Store(str(store)).find(node, FINGERPRINT)
    assert found is not None
    return found


def nodes(made: tuple[Path, Path, Path], *more: str) -> dict[str, Node]:
    config = config_of(
        overrides(
            made[0], made[2], *MORE, "model.hidden_size=16", "model.num_layers=1",
            "model.num_heads=2", "train.steps=3", "train.global_batch_size=8",
            "train.precision=float32", "evaluate.max_rows=8", *more,
        )
    )  # fmt: skip
    return {node.name: node for node in CATALOG.nodes(config)}


class Quiet:
    """What a run tells the driver, kept."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        if "train/loss" in values:
            self.losses[step] = values["train/loss"]

    def should_stop(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def train(
    made: tuple[Path, Path, Path], node: Node, folder: Path, mixed: tuple[Artifact, ...] = ()
):
    store = made[2]
    settings = json.loads(json.dumps(node.settings))
    settings["train"]["log_every_steps"] = 1
    plan = Plan(
        config=node.config,
        settings=settings,
        rows=artifact(store, node.inputs.get("mask") or node.inputs["pairs"]),
        mixed=mixed,
        heldout=artifact(store, "mask/128-heldout"),
        vocab=artifact(store, "vocab"),
        before=None,
        initial=None,
        output=Store(str(folder)).begin(node.name, FINGERPRINT, "test"),
        fingerprint=FINGERPRINT,
        attempt="test",
        threads=1,
        use_gpu=False,
    )
    heard = Quiet()
    torch.set_num_threads(1)
    outcome = train_here(plan, heard, 0, 0)  # type: ignore[arg-type]
    assert outcome["step"] == 3
    return heard.losses


def test_training_draws_masks_on_pairs(made, tmp_path) -> None:
    node = nodes(made, "mask.when=loading", "mask=whole_word")["pretrain/128"]
    first = train(made, node, tmp_path / "first")
    assert set(first) == {1, 2, 3} and all(np.isfinite(list(first.values())))
    assert train(made, node, tmp_path / "again") == first
    seeds = {**node.config["seeds"], "mask": 99}
    other = replace(node, config={**node.config, "seeds": seeds})
    assert train(made, other, tmp_path / "other") != first


def test_training_mixes_rows_of_another_run(made, tmp_path) -> None:
    other = artifact(made[2], "mask/128")
    mix = f"train.mix=[{{path: {other.path}, weight: 0.25}}]"
    node = nodes(made, mix)["pretrain/128"]
    assert node.raw is not None
    listed = node.raw()
    assert listed.entries == [{"name": "mask/128", "output_digest": other.output_digest}]
    (opened,) = open_mix(node.settings["mix"], listed)
    assert opened.path == other.path
    mixed = train(made, node, tmp_path / "mixed", (opened,))
    assert mixed != train(made, nodes(made)["pretrain/128"], tmp_path / "plain")
    with pytest.raises(StageError, match="changed while this run"):
        open_mix(node.settings["mix"], RawInput([{"output_digest": "other"}], ""))


def test_what_cannot_be_mixed_in(made) -> None:
    store = made[2]
    for node, stage, length, message in (
        ("pairs/128", "mask", 128, "mask.when=ahead rows come from an artifact of mask/128"),
        ("mask/128", "pairs", 128, "mask.when=loading rows come from an artifact of pairs/128"),
        ("mask/128-heldout", "mask", 128, "is of mask/128-heldout"),
        ("mask/128", "mask", 64, "rows of up to 128 tokens, and this phase 64"),
    ):
        mix = [MixedConfig(path=artifact(store, node).path, weight=0.5)]
        with pytest.raises(UserError, match=message):
            list_mix(mix, stage, length)
    with pytest.raises(UserError, match="no finished artifact"):
        open_mixed(str(store / "mask"))
    rows = artifact(store, "mask/128")
    with pytest.raises(StageError, match="ids of another vocabulary"):
        check_rows(rows, "0" * 64, None)


def test_mixed_rows_are_of_this_vocabulary_and_task(made) -> None:
    digest = vocabulary_digest(load_tokenizer(artifact(made[2], "vocab")))
    rows = artifact(made[2], "mask/128")
    check_rows(rows, digest, "next_sentence")
    check_rows(rows, digest, None)
    with pytest.raises(StageError, match=r"objective\.pair=next_sentence, this run learns"):
        check_rows(rows, digest, "sentence_order")


@pytest.mark.parametrize("node", ["mask/128", "pairs/128"])
def test_records_say_what_footers_say(made, node) -> None:
    rows = artifact(made[2], node)
    copies = indexed_copies(rows)
    assert len(copies) == 2
    for copy, files in enumerate(copies):
        assert all(f"/train-c{copy}" in file.path for file in files)
        assert files == read_index(rows.fs, [file.path for file in files])
    # What was written before records held them is read from the files.
    old = [
        {**row, "figures": {k: v for k, v in row.get("figures", {}).items() if k != "row_groups"}}
        for row in rows.manifest["files"]
    ]
    assert indexed_copies(replace(rows, manifest={**rows.manifest, "files": old})) == copies


def test_the_baseline_counts_drawn_masks(made) -> None:
    config = nodes(made, "mask.when=loading")["evaluate"].config
    tokenizer = load_tokenizer(artifact(made[2], "vocab"))
    masks = drawn_masks(config, tokenizer)
    assert masks is not None
    size = len(tokenizer.vocab)
    limits = Limits(size, 128)
    rows = artifact(made[2], "pairs/128")
    drawn = label_counts(rows, size, masks, limits)
    assert drawn.tolist() == count_labels(rows.fs, indexed_copies(rows)[0], limits, masks).tolist()
    stored = label_counts(artifact(made[2], "mask/128"), size)
    assert drawn_masks(nodes(made)["evaluate"].config, tokenizer) is None
    # Both are counts of the same law; the stored ones are of two copies.
    shares = [counts / counts.sum() for counts in (drawn, stored)]
    assert abs(shares[0] - shares[1]).max() < 0.02
