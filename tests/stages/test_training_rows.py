"""Training on what the data stages made: masks drawn at loading, rows of other runs mixed in.

The stages' own code without Ray; training in this process, for a few steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bench.serial import Chain, config_of, overrides
from pipeline.stage import Context, Granted, Node, RawInput, StageError, UserError
from pipeline.stop import StopSignal
from pipeline.store import Artifact, Store
from pipeline.tracking import NoMetrics
from stages import pretrain
from stages.catalog import CATALOG
from stages.mix import list_mix, open_mix, open_mixed
from stages.pretrain_worker import mean_row_tokens, model_config, seed_of, train_here
from stages.text.tokenizer_files import read_vocab, vocabulary_digest
from stages.train_config import MixedConfig
from stages.training.row_groups import Limits, count_labels, read_index
from stages.training.start import drawn_weights
from stages.training_rows import (
    check_own_rows,
    check_rows,
    drawn_masks,
    indexed_copies,
    label_counts,
)
from stages.vocabulary_files import load_tokenizer

TEXT = "the cat sat on a mat while rain fell over old town and men went home by the river"
WORDS = TEXT.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FINGERPRINT = "0" * 64

Made = tuple[Path, Path, Path]


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
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
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


def nodes(made: Made, *more: str) -> dict[str, Node]:
    config = config_of(
        overrides(
            made[0], made[2], *MORE, "model.hidden_size=16", "model.num_layers=1",
            "model.num_heads=2", "train.steps=3", "train.global_batch_size=8",
            "train.precision=float32", "evaluate.max_rows=8", *more,
        )
    )  # fmt: skip
    return {node.name: node for node in CATALOG.nodes(config)}


class Heard:
    """What a run tells the driver, kept."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.notes: list[str] = []

    def log(self, values: Mapping[str, float], step: int) -> None:
        if "train/loss" in values:
            self.losses[step] = values["train/loss"]

    def note(self, text: str) -> None:
        self.notes.append(text)

    def should_stop(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def context(made: Made, node: Node, folder: Path) -> Context:
    """As the runner gives it to the stage."""
    settings = json.loads(json.dumps(node.settings))
    settings["train"]["log_every_steps"] = 1
    rows = node.inputs.get("mask") or node.inputs["pairs"]
    role = "mask" if "mask" in node.inputs else "pairs"
    return Context(
        node=replace(node, settings=settings),
        inputs={
            role: artifact(made[2], rows),
            "heldout": artifact(made[2], "mask/128-heldout"),
            "vocab": artifact(made[2], "vocab"),
        },
        output=Store(str(folder)).begin(node.name, FINGERPRINT, "test"),
        fingerprint=FINGERPRINT,
        attempt="test",
        granted=Granted(1, 0),
        progress=Heard(),
        metrics=NoMetrics(),
        stop=StopSignal(),
        raw=None if node.raw is None else node.raw(),
    )


def train(made: Made, node: Node, folder: Path, **changes: Any) -> Heard:
    """What the stage does, in this process: `changes` are of what it hands to a worker."""
    given = context(made, node, folder)
    pretrain._check_rows(given)
    plan = pretrain._plan(given, pretrain._initial(given), threads=1, use_gpu=False)
    heard = Heard()
    torch.set_num_threads(1)
    outcome = train_here(replace(plan, **changes), heard, 0, 0)  # type: ignore[arg-type]
    assert outcome["step"] == 3
    return heard


def test_training_draws_masks_on_pairs(made, tmp_path) -> None:
    node = nodes(made, "mask.when=loading", "mask=whole_word")["pretrain/128"]
    first = train(made, node, tmp_path / "first").losses
    assert set(first) == {1, 2, 3} and all(np.isfinite(list(first.values())))
    assert train(made, node, tmp_path / "again").losses == first
    seeds = {**node.config["seeds"], "mask": 99}
    other = replace(node, config={**node.config, "seeds": seeds})
    assert train(made, other, tmp_path / "other").losses != first


def mix_of(made: Made) -> str:
    return f"train.mix=[{{path: {artifact(made[2], 'mask/128').path}, weight: 0.25}}]"


def test_training_mixes_rows_of_another_run(made, tmp_path) -> None:
    other = artifact(made[2], "mask/128")
    node = nodes(made, mix_of(made))["pretrain/128"]
    assert node.raw is not None
    listed = node.raw()
    assert listed.entries == [{"name": "mask/128", "output_digest": other.output_digest}]
    (opened,) = open_mix(node.settings["mix"], listed)
    assert opened.path == other.path
    plain = train(made, nodes(made)["pretrain/128"], tmp_path / "plain").losses
    assert train(made, node, tmp_path / "mixed").losses != plain
    with pytest.raises(StageError, match="changed while this run"):
        open_mix(node.settings["mix"], RawInput([{"output_digest": "other"}], ""))


def test_mixed_rows_with_given_weights(made, tmp_path) -> None:
    """Both take effect, each as it does alone."""
    mixed = nodes(made, mix_of(made))["pretrain/128"]
    train(made, nodes(made)["pretrain/128"], tmp_path / "trained")
    trained = tmp_path / "trained/pretrain/128" / FINGERPRINT / "data"
    drawn = tmp_path / "drawn"
    shutil.copytree(trained, drawn)
    tokens = read_vocab((drawn / "vocab.txt").read_bytes())
    config = mixed.config
    weights = drawn_weights(model_config(config, tokens), seed_of(config))
    save_file(weights, drawn / "weights.safetensors")

    def both(given: Path, *more: str) -> Node:
        words = (f"train.init_from={given}", f"vocab.from={given}", *more)
        return nodes(made, mix_of(made), *words)["pretrain/128"]

    node = both(drawn)
    assert node.raw is not None
    # Weights first: `open_mix` takes the last entries.
    assert [entry["name"] for entry in node.raw().entries] == ["weights", "mask/128"]
    alone = train(made, mixed, tmp_path / "mixed").losses
    assert train(made, node, tmp_path / "same").losses == alone
    # A copy: where it was made here, no manifest says that it is finished.
    given = tmp_path / "given"
    shutil.copytree(trained, given)
    assert train(made, both(given), tmp_path / "both").losses != alone
    other = "train.mix=[]"
    unmixed = train(made, both(drawn, other), tmp_path / "unmixed").losses
    assert unmixed != alone
    phases = nodes(made, mix_of(made), f"train.init_from={drawn}", f"vocab.from={drawn}",
                   "phases=[{max_seq_length: 64, mix: []}, {max_seq_length: 128}]")  # fmt: skip
    first, second = phases["pretrain/64"].raw, phases["pretrain/128"].raw
    assert first is not None and second is not None
    assert [entry["name"] for entry in first().entries] == ["weights"]
    assert [entry["name"] for entry in second().entries] == ["mask/128"]


def test_budgets_in_tokens_count_mixed_rows(made, tmp_path) -> None:
    """A row of the mix is as long as its sources' rows are, each with its share."""
    rows = artifact(made[2], "mask/128")
    files = [
        {**row, "figures": {**row["figures"], "tokens": 3 * row["figures"]["tokens"]}}
        for row in rows.manifest["files"]
        if "tokens" in row.get("figures", {})
    ]
    longer = replace(rows, manifest={**rows.manifest, "files": files})
    own = mean_row_tokens(rows)
    assert mean_row_tokens(longer) == pytest.approx(3 * own)
    mean = 0.75 * own + 0.25 * 3 * own
    words = (f"train.tokens={round(3 * 8 * mean)}", f"train.global_batch_tokens={round(8 * mean)}")
    words += ("train.steps=null", "train.global_batch_size=null")
    node = nodes(made, mix_of(made), *words)["pretrain/128"]
    said, held_out, *_ = train(made, node, tmp_path, mixed=(longer,)).notes
    assert held_out.startswith("step 3, held out: ")
    assert "8 examples" in said and "3 steps" in said
    assert said.endswith(f"a training row has {mean:.1f} tokens in the mean")


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
    with pytest.raises(StageError, match=r"ids of another vocabulary .*: vocab\.from="):
        check_rows(rows, "0" * 64, None)


def test_mixed_rows_are_of_this_vocabulary_and_task(made) -> None:
    digest = vocabulary_digest(load_tokenizer(artifact(made[2], "vocab")))
    rows = artifact(made[2], "mask/128")
    check_rows(rows, digest, "next_sentence")
    check_rows(rows, digest, None)
    inputs = {"vocab": artifact(made[2], "vocab"), "heldout": artifact(made[2], "mask/128-heldout")}
    check_own_rows({"mask": rows, **inputs}, digest)
    with pytest.raises(StageError, match=r"train-\S+ holds ids of another .* than \S+/vocab.txt"):
        check_own_rows({"mask": rows, **inputs}, "0" * 64)
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
