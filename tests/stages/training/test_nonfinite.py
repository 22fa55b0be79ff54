"""Losses and gradients that are not finite: who is told, what is kept, what is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.fs import LocalFileSystem
from torch import Tensor

from model.bert import BertForPreTraining
from stages.training.checkpoint import OPTIMISER
from stages.training.loader import Loader
from stages.training.loop import pretrain
from stages.training.nonfinite import (
    MOST_IN_A_ROW,
    MOST_SAVED,
    NonFiniteError,
    batch_table,
    save_batch,
)
from stages.training.row_groups import Limits, read_index
from stages.training.weights import write_model

LOCAL = LocalFileSystem()
Poison = Callable[[Callable[[BertForPreTraining], Tensor]], str]


@pytest.fixture
def poison(make_job, recorder, tmp_path) -> Poison:
    """Writes first weights of which `place(model)` is NaN."""

    def write(place: Callable[[BertForPreTraining], Tensor]) -> str:
        model = pretrain(make_job(train={"steps": 0}, folder="none"), recorder()).model
        with torch.no_grad():
            place(model).fill_(torch.nan)
        (tmp_path / "poisoned").mkdir()
        return write_model(model, model.config, LOCAL, str(tmp_path / "poisoned"))[0]

    return write


def tokens(model: BertForPreTraining) -> Tensor:
    """A token's vector: its logit spoils each batch."""
    return model.bert.embeddings.token.weight[63]


def test_the_batch_that_did_it_is_kept(make_job, recorder, poison, tmp_path):
    job = make_job(init_from=poison(tokens), nonfinite_folder=str(tmp_path / "bad"))
    said = r"step 1: .*its batch is in (.*)\. Where few batches do this, train\.on_nonfinite=skip"
    with pytest.raises(NonFiniteError, match=said) as caught:
        pretrain(job, recorder())
    path = Path(str(tmp_path / "bad/step-00000001.parquet"))
    assert f"its batch is in {path}. " in str(caught.value)

    kept = pq.read_table(path)
    batch = Loader(job.filesystem, job.copies, job.seed, 16, Limits(64, 40), documents=True).batch(
        0
    )
    assert kept["input_ids"].to_pylist() == [ids.tolist() for ids in rows(batch.input_ids)]
    assert kept["mlm_positions"].to_pylist() == [p.tolist() for p in rows(batch.mlm_positions)]
    assert kept["mlm_labels"].combine_chunks().flatten().to_pylist() == batch.mlm_labels.tolist()
    assert kept["is_next"].to_pylist() == batch.is_next.tolist()
    sources = {
        (tuple(row["mlm_labels"]), tuple(row["input_ids"])): row["document"]
        for file in job.copies[0]
        for row in pq.read_table(file.path).to_pylist()
    }
    for row in kept.to_pylist():
        assert row["document"] == sources[tuple(row["mlm_labels"]), tuple(row["input_ids"])]
    what = json.loads(path.with_suffix(".json").read_text())
    assert what["step"] == 1 and what["mlm_loss"] == "nan" and what["seed"] == 7


def rows(ragged) -> list[np.ndarray]:
    return [ragged[i] for i in range(len(ragged))]


def test_hashes_of_documents_are_kept_as_they_are(rows_maker, tmp_path):
    """The product's are 16 bytes, not numbers."""
    table = rows_maker(20, seed=1)
    hashes = [bytes([n]) * 16 for n in range(20)]
    columns = {name: pa.array(values) for name, values in table.items()}
    columns["document"] = pa.array(hashes, pa.binary(16))
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    files = read_index(LOCAL, [str(tmp_path / "rows.parquet")])
    batch = Loader(LOCAL, (files,), 7, 20, Limits(64, 40), documents=True).batch(0)
    path = save_batch(LOCAL, str(tmp_path / "kept"), 3, lambda: batch_table(batch), {})
    kept = pq.read_table(path)
    assert sorted(kept["document"].to_pylist()) == hashes
    nowhere = save_batch(LOCAL, str(tmp_path / "rows.parquet"), 3, lambda: batch_table(batch), {})
    assert nowhere.startswith("nowhere (")


def test_a_skipped_step_counts_and_changes_nothing(make_job, recorder, poison, tmp_path):
    """Only long rows look up the spoilt position, so that some batches are well and some not."""
    path = poison(lambda model: model.bert.embeddings.position.weight[33])
    bad, hooks = tmp_path / "bad", recorder()
    train = {"steps": 12, "on_nonfinite": "skip", "checkpoint_every_steps": 1}
    train |= {"keep_checkpoints": 99}
    job = make_job(train=train, init_from=path, nonfinite_folder=str(bad))
    outcome = pretrain(job, hooks)
    loader = Loader(LOCAL, job.copies, job.seed, 16, Limits(64, 40))
    lost = [s + 1 for s in range(12) if loader.batch(s).input_ids.lengths.max() > 33]
    assert 0 < len(lost) < 12 and outcome.step == 12
    counts = [sum(s <= step for s in lost) for step in range(1, 13)]
    assert [hooks.values[s]["train/skipped_steps"] for s in range(1, 13)] == counts
    assert [s for s in range(1, 13) if "train/loss" not in hooks.values[s]] == lost
    assert [int(n.split()[1].rstrip(":")) for n in hooks.notices] == lost
    kept = sorted(int(p.stem.split("-")[1]) for p in bad.glob("*.parquet"))
    assert kept == lost[:MOST_SAVED]

    def state(step: int) -> list[bytes]:
        folder = Path(job.checkpoint_folder) / f"step-{step:08d}"
        return [(folder / name).read_bytes() for name in ("weights.safetensors", OPTIMISER)]

    assert [s for s in range(2, 13) if state(s) == state(s - 1)] == [s for s in lost if s > 1]

    # Resumed in the middle, it counts on, and comes to the same.
    for step in range(8, 13):
        shutil.rmtree(Path(job.checkpoint_folder) / f"step-{step:08d}")
    again = recorder()
    rest = pretrain(replace(job, attempt="second"), again)
    assert rest.resumed_from == 7 and again.values[12].keys() == hooks.values[12].keys()
    assert again.values[12]["train/skipped_steps"] == counts[-1]
    assert again.losses() == {s: v for s, v in hooks.losses().items() if s > 7}


def test_a_run_that_ended_goes_on_with_skip(make_job, recorder, poison):
    """From its last checkpoint, and comes to what one that skipped from the beginning came to."""
    path = poison(lambda model: model.bert.embeddings.position.weight[33])
    train = {"steps": 12, "checkpoint_every_steps": 1, "keep_checkpoints": 99}
    seen = recorder()
    pretrain(make_job(train=train | {"on_nonfinite": "skip"}, init_from=path, folder="all"), seen)
    job = make_job(train=train, init_from=path, folder="ended")
    with pytest.raises(NonFiniteError, match=r"train\.on_nonfinite=skip leaves") as caught:
        pretrain(job, recorder())
    hooks = recorder()
    skips = replace(job.train, on_nonfinite="skip")
    outcome = pretrain(replace(job, train=skips, attempt="second"), hooks)
    first = caught.value.step
    assert outcome.resumed_from == first - 1 and outcome.step == 12
    assert hooks.losses() == {s: v for s, v in seen.losses().items() if s >= first}


def test_too_many_in_a_row_end_the_run(make_job, recorder, poison, tmp_path):
    hooks = recorder()
    job = make_job(
        train={"on_nonfinite": "skip"},
        init_from=poison(tokens),
        nonfinite_folder=str(tmp_path / "bad"),
    )
    with pytest.raises(NonFiniteError, match=rf"^step {MOST_IN_A_ROW}: .*in a row") as caught:
        pretrain(job, hooks)
    assert caught.value.step == MOST_IN_A_ROW and len(hooks.notices) == MOST_IN_A_ROW - 1
    assert len(list((tmp_path / "bad").glob("*.parquet"))) == MOST_SAVED
    assert not Path(job.checkpoint_folder).exists()
