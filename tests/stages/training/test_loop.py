"""The loop: what a step's loss is, resuming to the bit, stopping, and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pyarrow.fs import LocalFileSystem

from model.bert import BertForPreTraining
from model.losses import mlm_loss_sum, nsp_loss_sum
from stages.training.checkpoint import CheckpointMismatchError
from stages.training.job import Validation
from stages.training.loader import Loader
from stages.training.loop import pretrain
from stages.training.nonfinite import NonFiniteError
from stages.training.packing import pack
from stages.training.row_groups import DataError, Limits
from stages.training.tensor_files import read_tensors, write_tensors
from stages.training.weights import weights_of, write_model

ROOT = Path(__file__).parents[3]
WITHOUT_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def same_weights(left: BertForPreTraining, right: BertForPreTraining) -> bool:
    ours, theirs = weights_of(left), weights_of(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_it_learns(make_job, recorder):
    hooks = recorder()
    train = {"steps": 150, "learning_rate": 6e-3}
    outcome = pretrain(make_job(train=train, model=WITHOUT_DROPOUT), hooks)
    losses = hooks.losses()
    assert not outcome.stopped
    assert outcome.step == 150 and list(losses) == list(range(1, 151))
    assert hooks.checkpoints == [150]
    late = [hooks.values[step]["train/mlm_loss"] for step in range(141, 151)]
    assert hooks.values[1]["train/mlm_loss"] > 4.0
    assert sum(late) / 10 < 3.4


def test_the_loss_of_a_step_is_that_of_the_whole_global_batch(make_job, recorder):
    """Cut into micro-batches or not, each masked position weighs the same."""
    job = make_job(train={"steps": 1}, model=WITHOUT_DROPOUT)
    hooks = recorder()
    weights = pretrain(make_job(train={"steps": 0}, folder="none"), recorder()).model
    pretrain(job, hooks)

    limits = Limits(job.model.vocab_size, 40)
    batch = Loader(job.filesystem, job.copies, job.seed, 16, limits).batch(0)
    whole = pack(batch, nsp=True)
    with torch.no_grad():
        output = weights.eval()(*whole.inputs())
        mlm = mlm_loss_sum(output.mlm_logits, whole.mlm_labels) / batch.masked
        nsp = nsp_loss_sum(output.nsp_logits, whole.is_next) / len(batch)
    assert hooks.values[1]["train/mlm_loss"] == pytest.approx(float(mlm), rel=1e-6)
    assert hooks.values[1]["train/nsp_loss"] == pytest.approx(float(nsp), rel=1e-6)
    assert hooks.values[1]["train/loss"] == pytest.approx(float(mlm + nsp), rel=1e-6)
    assert hooks.values[1]["train/tokens_seen"] == batch.tokens


# An epoch is 390 rows, 24.4 batches: step 10 lies in epoch 1, step 35 in epoch 2, and
# a batch that straddles both epochs lies between.
@pytest.mark.parametrize(("broken_at", "bins"), [(13, None), (24, None), (38, None), (38, 4)])
def test_a_resumed_run_equals_an_undisturbed_one_to_the_bit(make_job, recorder, broken_at, bins):
    train = {"steps": 60, "checkpoint_every_steps": 7, "length_bins": bins, "max_seq_length": 40}
    undisturbed, broken, resumed = recorder(), recorder(break_at=broken_at), recorder()
    whole = pretrain(make_job(train=train, folder="whole"), undisturbed)

    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=train), broken)
    rest = pretrain(make_job(train=train, attempt="second", prefetch_batches=0), resumed)

    assert rest.resumed_from == broken_at // 7 * 7 > 0
    assert list(resumed.losses()) == list(range(rest.resumed_from + 1, 61))
    for step, loss in resumed.losses().items():
        assert loss == undisturbed.losses()[step], step
    assert same_weights(whole.model, rest.model)
    assert rest.tokens_seen == whole.tokens_seen
    said = [f"goes on from the checkpoint of step {rest.resumed_from}"]
    assert [n.split(":")[0] for n in resumed.notices] == said + ["length bins"] * bool(bins)


def test_two_phases_killed_in_the_second_equal_undisturbed_ones(make_job, recorder, tmp_path):
    """The second phase has its own schedule and goes on with the moments of the first."""
    first = pretrain(make_job(train={"steps": 12}, folder="first"), recorder())
    (tmp_path / "phase").mkdir()
    weights, _ = write_model(
        first.model, first.model.config, LocalFileSystem(), f"{tmp_path}/phase"
    )
    moments = f"{tmp_path}/phase/optimiser.safetensors"
    with Path(moments).open("wb") as stream:
        write_tensors(stream, first.moments)
    train = {"steps": 40, "checkpoint_every_steps": 7, "learning_rate": 1e-3}
    second = {"train": train, "seed": 8, "init_from": weights, "init_moments": moments}

    undisturbed, broken, resumed = recorder(), recorder(break_at=31), recorder()
    whole = pretrain(make_job(**second, folder="whole"), undisturbed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(**second), broken)
    rest = pretrain(make_job(**second, attempt="second"), resumed)
    assert rest.resumed_from == 28
    assert resumed.losses() == {s: v for s, v in undisturbed.losses().items() if s > 28}
    assert same_weights(whole.model, rest.model)

    # AdamW's own count of steps goes on; without it the first steps would be corrected twice.
    assert whole.moments["step/mlm.bias"] == 12 + 40
    without = recorder()
    pretrain(make_job(**{**second, "init_moments": None}, folder="without"), without)
    assert without.losses()[1] == undisturbed.losses()[1]
    assert without.losses()[2] != undisturbed.losses()[2]


def test_a_machine_that_leaves_is_told_in_time(make_job, recorder):
    class Leaving(recorder):
        def should_save(self) -> bool:
            return len(self.values) == 4

    hooks = Leaving()
    with pytest.raises(KeyboardInterrupt):
        hooks._break_at = 9
        pretrain(make_job(), hooks)
    assert hooks.checkpoints == [5]
    assert pretrain(make_job(train={"steps": 50}), recorder()).resumed_from == 5


def test_dropout_is_part_of_what_is_resumed(make_job, recorder):
    """Without the same dropout the comparison above could not fail."""
    one, other = recorder(), recorder()
    pretrain(make_job(train={"steps": 3}, folder="one"), one)
    pretrain(make_job(train={"steps": 3}, model=WITHOUT_DROPOUT, folder="other"), other)
    assert one.losses()[1] != other.losses()[1]


def test_stopping_writes_a_checkpoint_and_ends(make_job, recorder):
    undisturbed = recorder()
    whole = pretrain(make_job(folder="whole"), undisturbed)
    hooks = recorder(stop_at=11)
    outcome = pretrain(make_job(), hooks)
    assert outcome.stopped and outcome.step == 11
    assert hooks.checkpoints == [11]

    resumed = recorder()
    rest = pretrain(make_job(attempt="second"), resumed)
    assert not rest.stopped and rest.resumed_from == 11
    assert resumed.losses()[12] == undisturbed.losses()[12]
    assert same_weights(whole.model, rest.model)


def test_a_finished_run_is_not_trained_again(make_job, recorder):
    first = pretrain(make_job(train={"steps": 5}), recorder())
    hooks = recorder()
    again = pretrain(make_job(train={"steps": 5}, attempt="second"), hooks)
    assert again.step == 5 and not hooks.values
    assert same_weights(first.model, again.model)


def test_a_changed_fingerprint_is_refused_with_the_difference(make_job, recorder):
    pretrain(make_job(train={"steps": 3}), recorder())
    changed = make_job(train={"steps": 3, "learning_rate": 5e-3}, fingerprint="e" * 64)
    with pytest.raises(
        CheckpointMismatchError, match=r"train\.learning_rate was 0\.002, is 0\.005"
    ):
        pretrain(changed, recorder())


def test_other_rounding_is_named(make_job, recorder):
    train = {"steps": 6, "checkpoint_every_steps": 3}
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=train), recorder(break_at=5))
    hooks = recorder()
    pretrain(make_job(train=train, rounding={"micro_batch_tokens": 99}), hooks)
    assert len(hooks.notices) == 1
    assert "micro_batch_tokens was 200, is 99" in hooks.notices[0]
    assert "workers" not in hooks.notices[0]


def test_a_torn_checkpoint_is_skipped(make_job, recorder):
    train = {"steps": 20, "checkpoint_every_steps": 5, "keep_checkpoints": 3}
    undisturbed = recorder()
    pretrain(make_job(train=train, folder="whole"), undisturbed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_job(train=train), recorder(break_at=12))
    job = make_job(train=train, attempt="second")
    torn = Path(job.checkpoint_folder) / "step-00000010" / "optimiser.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])

    hooks = recorder()
    outcome = pretrain(job, hooks)
    assert outcome.resumed_from == 5
    assert "step-00000010 is damaged" in hooks.notices[0]
    assert hooks.losses()[20] == undisturbed.losses()[20]
    assert hooks.checkpoints == [10, 15, 20]


def test_a_diverging_run_stops_before_its_weights_are_lost(make_job, recorder):
    train = {"steps": 9, "learning_rate": 1e38, "checkpoint_every_steps": 1}
    hooks = recorder()
    with pytest.raises(
        NonFiniteError, match=r"^step 2: MLM loss nan.*train\.learning_rate"
    ) as caught:
        pretrain(make_job(train=train), hooks)
    assert caught.value.step == 2
    assert hooks.checkpoints == [1] and list(hooks.losses()) == [1]


def test_nan_in_a_weight_stops_at_the_first_step(make_job, recorder, tmp_path):
    model = pretrain(make_job(train={"steps": 0}), recorder()).model
    with torch.no_grad():
        next(model.parameters())[5, 0] = float("nan")
    path, _ = write_model(model, model.config, LocalFileSystem(), str(tmp_path))
    job = make_job(init_from=path, folder="other")
    with pytest.raises(NonFiniteError, match=r"^step 1: "):
        pretrain(job, recorder())
    assert not Path(job.checkpoint_folder).exists()


def test_training_without_next_sentence_prediction(
    make_job, recorder, rows_maker, shard_writer, tmp_path
):
    rows = rows_maker(100, seed=1)
    rows["is_next"] = [None] * 100
    files = (shard_writer(tmp_path / "text.parquet", rows, 40),)
    hooks = recorder()
    pretrain(make_job(train={"steps": 3}, model={"nsp": False}, copies=(files,)), hooks)
    assert "train/nsp_loss" not in hooks.values[3]
    with pytest.raises(ValueError, match=r"objective\.nsp=false"):
        pretrain(make_job(train={"steps": 3}, copies=(files,), folder="other"), recorder())


def test_errors_of_the_data_name_the_place(make_job, rows_maker, shard_writer, tmp_path, recorder):
    rows = rows_maker(30, seed=1)
    rows["input_ids"][17][1] = 64
    files = (shard_writer(tmp_path / "bad.parquet", rows, 40),)
    with pytest.raises(DataError, match=r"bad\.parquet, row group 0: id 64"):
        pretrain(make_job(copies=(files,)), recorder())


def test_starting_from_other_weights(make_job, recorder, tmp_path):
    first = pretrain(make_job(train={"steps": 10}), recorder())
    (tmp_path / "final").mkdir()
    path, _ = write_model(
        first.model, first.model.config, LocalFileSystem(), str(tmp_path / "final")
    )
    written = read_tensors(LocalFileSystem(), path)
    assert all(torch.equal(written[n], w) for n, w in weights_of(first.model).items())

    second = make_job(train={"steps": 0}, folder="second", init_from=path)
    assert same_weights(pretrain(second, recorder()).model, first.model)
    with pytest.raises(ValueError, match="does not fit the model"):
        pretrain(replace(second, model=replace(second.model, nsp=False)), recorder())


def test_held_out_figures_come_along_and_change_nothing(make_job, recorder, shards):
    train = {"steps": 12, "evaluate_every_steps": 4}
    plain, watched = recorder(), recorder()
    pretrain(make_job(train=train, folder="plain"), plain)
    validation = Validation(files=shards[:1], mask_token_id=4, max_rows=60)
    pretrain(make_job(train=train, validation=validation), watched)
    assert watched.losses() == plain.losses()
    seen = [s for s, values in watched.values.items() if "validation/mlm_loss" in values]
    assert seen == [4, 8, 12]


def test_bf16_stays_close_to_float32(make_job, recorder):
    full, half = recorder(), recorder()
    pretrain(make_job(train={"steps": 20}, model=WITHOUT_DROPOUT, folder="full"), full)
    job = make_job(train={"steps": 20, "precision": "bf16"}, model=WITHOUT_DROPOUT)
    outcome = pretrain(job, half)
    assert all(p.dtype == torch.float32 for p in outcome.model.parameters())
    assert half.losses()[20] == pytest.approx(full.losses()[20], rel=0.02)
    assert half.losses()[20] != full.losses()[20]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "batch_size", "bins", "steps"),
    [(2, 16, None, 100), (4, 16, None, 100), (2, 1, None, 50), (2, 16, 4, 50)],
)
def test_workers_give_the_curve_of_one(
    make_job, recorder, tmp_path, workers, batch_size, bins, steps
):
    """With one row a step, one of two ranks holds no example."""
    changed = {
        "steps": steps, "global_batch_size": batch_size, "length_bins": bins, "max_seq_length": 40,
    }  # fmt: skip
    train = {"checkpoint_every_steps": 30, **changed}
    alone = recorder()
    pretrain(make_job(train=train, model=WITHOUT_DROPOUT, folder="alone"), alone)
    together = run_workers(tmp_path, workers, changed)
    assert len(together["losses"]) == steps
    for step, loss in alone.losses().items():
        assert together["losses"][str(step)] == pytest.approx(loss, rel=1e-5), step
    assert together["stopped"] is False


@pytest.mark.slow
def test_killed_while_a_checkpoint_is_written_it_resumes_to_the_bit(make_job, recorder, tmp_path):
    train = {"steps": 40, "checkpoint_every_steps": 10}
    undisturbed, resumed = recorder(), recorder()
    whole = pretrain(make_job(train=train, folder="whole"), undisturbed)
    killed = run_workers(tmp_path, 1, train, dropout=0.1, folder="parts", kill_at=30)
    assert killed == {"killed": True}
    left = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert left == ["step-00000010", "step-00000020", "tmp-step-00000030.workers"]
    rest = pretrain(make_job(train=train, folder="parts", attempt="second"), resumed)
    assert rest.resumed_from == 20
    assert resumed.losses() == {s: v for s, v in undisturbed.losses().items() if s > 20}
    assert same_weights(whole.model, rest.model)


@pytest.mark.slow
def test_two_workers_resume_to_the_bit_and_stop_together(tmp_path, shards):
    undisturbed = run_workers(tmp_path, 2, {}, dropout=0.1, folder="whole")
    stopped = run_workers(tmp_path, 2, {}, dropout=0.1, folder="parts", stop_at=20)
    assert stopped["stopped"] is True and list(stopped["losses"])[-1] == "20"
    rest = run_workers(tmp_path, 2, {}, dropout=0.1, folder="parts")
    assert rest["losses"] == {s: v for s, v in undisturbed["losses"].items() if int(s) > 20}
    assert rest["weights"] == undisturbed["weights"]


def run_workers(
    root: Path,
    workers: int,
    train: dict,
    dropout: float = 0.0,
    stop_at: int = 0,
    folder: str = "two",
    kill_at: int = 0,
) -> dict:
    """Train on `root / "shards"` in processes of their own; rank 0's figures.

    `kill_at`: the process is killed (SIGKILL) while it writes the checkpoint of that step.
    """
    out = root / "figures.json"
    rendezvous = root / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    told = {
        "shards": str(root / "shards"), "checkpoints": str(root / folder),
        "rendezvous": str(rendezvous), "out": str(out), "workers": workers, "train": train,
        "dropout": dropout, "stop_at": stop_at,
        "kill_at": kill_at,
    }  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = str(Path(__file__).with_name("worker.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, json.dumps({**told, "rank": rank})], env=environment
        )
        for rank in range(workers)
    ]
    codes = [process.wait(timeout=100) for process in processes]
    if kill_at:
        return {"killed": codes == [-signal.SIGKILL]}
    assert codes == [0] * workers
    return json.loads(out.read_text())
