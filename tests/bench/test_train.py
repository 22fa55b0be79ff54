from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bench.learning_overlap import overlap
from bench.train import checked, main
from bench.train_examples import fitting, load, random, save
from bench.train_measure import RANDOM_ROWS, compare
from bench.train_report import lines
from bench.train_settings import Switches, TrainSettings
from bench.train_sides import IGNORED, Ours, Theirs, pad, rows_of
from model.config import BertConfig
from pipeline.stage import UserError
from stages.training.examples import Examples

CPU = torch.device("cpu")
CONFIG = BertConfig(
    vocab_size=90, hidden_size=32, num_layers=2, hidden_dropout=0.0, attention_dropout=0.0
)


@pytest.fixture(scope="module")
def examples() -> Examples:
    return random(40, 24, 90, seed=1)


def _ours(examples: Examples, switches: Switches) -> Ours:
    return Ours(CONFIG, examples, 8, 24, CPU, switches)


def test_both_sides_and_each_switch_make_the_same_steps(examples: Examples) -> None:
    pytest.importorskip("transformers")
    theirs = Theirs(CONFIG, examples, 8, 24, CPU, "float32").steps(range(4))
    for switches in (
        Switches(precision="float32"),
        Switches(precision="float32", gathered=False, fused=False, checkpointing=True),
    ):
        ours = _ours(examples, switches).steps(range(4))
        assert [float(x) for x in ours] == pytest.approx([float(x) for x in theirs], rel=2e-5)


def test_each_side_in_its_process_and_the_table() -> None:
    pytest.importorskip("transformers")
    settings = TrainSettings(rounds=2, rows=2, steps=1, entries=90, threads=1)
    figures = compare(settings, "mini")
    examples = random(RANDOM_ROWS, 128, 90, seed=1)
    assert figures["tokens"] == [rows_of(examples, step, 2).tokens for step in (2, 3)]
    losses = figures["first_losses"]
    assert losses["clozeline"] == pytest.approx(losses["transformers"], abs=0.3)
    assert 0 < figures["padding_share"] < 0.9
    assert min(figures["memory"].values()) > 1e8
    assert any("times as fast" in line for line in lines("mini", figures))


def test_rows_are_padded_as_they_are_packed(examples: Examples) -> None:
    padded = pad(examples, 24, 0)
    real = padded["attention_mask"].bool()
    assert padded["input_ids"][real].tolist() == examples.input_ids.values.tolist()
    labels = padded["labels"]
    assert labels[labels != IGNORED].tolist() == examples.mlm_labels.tolist()
    b_tokens = examples.input_ids.lengths - examples.a_length - 2
    assert padded["token_type_ids"].sum(1).tolist() == b_tokens.tolist()


def test_examples_survive_their_file(examples: Examples, tmp_path: Path) -> None:
    table = pa.table(
        {
            "input_ids": [examples.input_ids[i].astype("u2") for i in range(40)],
            "a_length": pa.array(examples.a_length, pa.uint16()),
            "is_next": examples.is_next,
            "mlm_positions": [examples.mlm_positions[i].astype("u2") for i in range(40)],
            "mlm_labels": np.split(
                examples.mlm_labels.astype("u2"), examples.mlm_positions.offsets[1:-1]
            ),
        }
    )
    pq.write_table(table, tmp_path / "shard.parquet")
    with pytest.raises(ValueError, match="--entries"):
        load(tmp_path / "shard.parquet", 24)
    save([tmp_path / "shard.parquet"], 90, tmp_path / "examples.parquet")
    loaded, entries = load(tmp_path / "examples.parquet", 24)
    assert entries == 90
    assert loaded.input_ids.values.tolist() == examples.input_ids.values.tolist()
    assert loaded.mlm_labels.tolist() == examples.mlm_labels.tolist()


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    good = TrainSettings()
    assert checked([], good) == ["mini", "base"]
    assert checked([], replace(good, device="cuda")) == ["mini", "base", "ladder"]
    for parts, settings in (
        (["huge"], good),
        (["ladder"], good),
        ([], replace(good, rounds=0)),
        ([], replace(good, dropout=1.0)),
        ([], replace(good, examples=(str(tmp_path / "none"),))),
    ):
        with pytest.raises(UserError, match="bench train"):
            checked(parts, settings)
    assert main(["huge", "--device", "cpu"]) == 2


def test_rows_of_128_say_nothing_of_512(tmp_path: Path) -> None:
    files = {}
    for longest in (90, 128, 500):
        files[longest] = str(tmp_path / f"{longest}.parquet")
        pq.write_table(pa.table({"input_ids": [[1] * longest, [1] * 9]}), files[longest])
    both = (files[128], files[500])
    assert [fitting(both, length).stem for length in (128, 512)] == ["128", "500"]
    for given, length in (((files[128],), 512), ((files[90],), 128), ((files[500],), 128)):
        with pytest.raises(ValueError, match=rf"rows of up to {length} tokens .*--length {length}"):
            fitting(given, length)
    gpu = TrainSettings(device="cuda", examples=both)
    assert gpu.lengths(["mini", "ladder"]) == [128, 512] and gpu.lengths(["base"]) == [128]
    assert checked(["ladder"], gpu) == ["ladder"]
    with pytest.raises(UserError, match="rows of up to 512"):
        checked(["ladder"], replace(gpu, examples=(files[128],)))


def test_overlap_of_thirteen_words_and_not_of_twelve() -> None:
    words = [f"w{i}" for i in range(30)]
    training = [" ".join(words[:20]), "short"]
    assert overlap(training, [" ".join(words[5:18])]) == (1, 1)
    assert overlap(training, [" ".join([*words[5:17], "x"])]) == (0, 1)
    assert overlap(training, [" ".join(words[10:25])]) == (0, 3)
    assert overlap(training, [" ".join(words[17:4:-1]), "a few words"]) == (0, 1)
