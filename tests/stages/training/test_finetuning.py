"""Fine-tuning: exact on resume, the same for any number of ranks, the best weights kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.fs import LocalFileSystem
from safetensors.torch import save_file

from model.config import BertConfig
from model.task_heads import BertForTask
from model.task_losses import IGNORED
from stages.training.examples import Ragged, offsets_of
from stages.training.finetuning import (
    TaskJob,
    Watched,
    beginning,
    drawn_encoder,
    finetune,
    task_optimiser,
)
from stages.training.gradients import FlatGradients
from stages.training.job import NoHooks, Rounding, TrainConfig
from stages.training.saving import CheckpointWriteError
from stages.training.step import Stepper
from stages.training.task_examples import TaskExamples
from stages.training.task_outputs import task_outputs
from stages.training.task_packing import (
    TaskObjective,
    TaskOrder,
    pack_task,
    task_micro_batches,
    task_step_batch,
)

CONFIG = BertConfig(
    vocab_size=60, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=32, nsp=False
)
CLASSES = {"sequence": 3, "token": 4, "span": 2}


def examples(kind: str, rows: int = 40, seed: int = 0) -> TaskExamples:
    """Rows whose label can be read off their first pieces."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(6, 20, rows)
    offsets = offsets_of(lengths)
    ids = draw.integers(5, 60, offsets[-1]).astype(np.int32)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = 2, 3
    a_length = draw.integers(1, lengths - 3).astype(np.int32)
    if kind == "sequence":
        labels = (ids[offsets[:-1] + 1] % 3).astype(np.int64)
    elif kind == "token":
        labels = (ids % 4).astype(np.int64)
        labels[draw.random(len(ids)) < 0.4] = IGNORED
    else:
        first = draw.integers(1, lengths - 1)
        labels = np.stack([first, np.minimum(first + 1, lengths - 2)], axis=1)
        labels[draw.random(rows) < 0.2] = 0
    return TaskExamples(kind, Ragged(ids, offsets), a_length, labels)  # type: ignore[arg-type]


def job(tmp_path: Path, kind: str = "sequence", **changes) -> TaskJob:
    start = drawn_encoder(CONFIG, kind, 3)  # type: ignore[arg-type]
    path = tmp_path / "initial.safetensors"
    save_file(start.state_dict, path)
    train = TrainConfig(
        steps=12,
        global_batch_size=16,
        learning_rate=5e-3,
        precision="float32",
        checkpoint_every_steps=4,
        log_every_steps=1,
    )
    made = TaskJob(
        model=CONFIG,
        kind=kind,  # type: ignore[arg-type]
        classes=CLASSES[kind],
        train=replace(train, **changes.pop("train", {})),
        rounding=Rounding(micro_batch_tokens=100),
        seed=7,
        examples=examples(kind),
        watched=None,
        filesystem=LocalFileSystem(),
        init_from=str(path),
        checkpoint_filesystem=LocalFileSystem(),
        checkpoint_folder=str(tmp_path / "checkpoints"),
        fingerprint="f",
        attempt="a",
        device="cpu",
    )
    return replace(made, **changes)


class Heard(NoHooks):
    def __init__(self, stop_at: int | None = None) -> None:
        self.losses: dict[int, float] = {}
        self.dev: dict[int, float] = {}
        self._stop_at = stop_at
        self._asked = 0

    def log(self, step, values):
        if "train/loss" in values:
            self.losses[step] = values["train/loss"]
        if "dev/accuracy" in values:
            self.dev[step] = values["dev/accuracy"]

    def should_stop(self):
        self._asked += 1
        return self._asked == self._stop_at


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_it_learns_and_goes_on_to_the_bit_after_a_stop(tmp_path, kind):
    whole = Heard()
    expected = finetune(job(tmp_path / "whole", kind), whole)
    first = Heard(stop_at=5)
    stopped = finetune(job(tmp_path / "cut", kind), first)
    assert stopped.stopped and stopped.step == 5
    second = Heard()
    ended = finetune(job(tmp_path / "cut", kind), second)
    assert ended.resumed_from == 5 and not ended.stopped
    assert first.losses | second.losses == whole.losses
    assert torch.equal(weights(ended.model), weights(expected.model))
    assert np.mean(list(whole.losses.values())[-3:]) < whole.losses[1]


@pytest.fixture(autouse=True)
def folders(tmp_path):
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_and_micro_batches_add_up_to_one_gradient(tmp_path, kind, ranks):
    """Labels that count differ from rank to rank, and 5 ranks leave some without a row."""
    mine = job(tmp_path, kind, model=replace(CONFIG, hidden_dropout=0.0, attention_dropout=0.0))
    model = BertForTask(mine.model, mine.kind, mine.classes, 0.0).double()
    batch = examples(kind, rows=4)

    def gradient(rank: int, world_size: int, budget: int) -> torch.Tensor:
        stepper = Stepper(
            mine,
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            TaskObjective(mine.kind, mine.classes),
            torch.device("cpu"),
            rank,
        )
        stepper.gradients_of(0, task_step_batch(batch, rank, world_size, budget), lambda: 0.0)
        assert isinstance(stepper._gradients, FlatGradients)
        return stepper._gradients.gradients.clone()

    whole = gradient(0, 1, 10_000)
    parts = sum(gradient(rank, ranks, 15) for rank in range(ranks))
    assert whole.norm() > 0
    assert (parts - whole).norm() <= 1e-12 * whole.norm()


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_outputs_are_in_the_order_of_the_rows(kind):
    rows = examples(kind)
    model = BertForTask(CONFIG, kind, CLASSES[kind]).train()
    found = task_outputs(model, rows, 64, "float32")
    assert model.training
    model.eval()
    alone = [model(*pack_task(rows.take(np.array([i]))).inputs()) for i in range(len(rows))]
    expected = torch.cat(alone).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_micro_batches_hold_each_label_once():
    rows = examples("token")
    packed = task_micro_batches(rows, 64)
    assert len(packed) > 2
    assert torch.cat([m.labels for m in packed]).tolist() == rows.labels.tolist()
    counted = sum(int((m.labels != IGNORED).sum()) for m in packed)
    assert counted == rows.counted < rows.tokens


def test_each_epoch_holds_each_row_once():
    order = TaskOrder(10, 4, 1)
    assert order.steps_per_epoch == 3
    epochs = [np.concatenate([order.rows(3 * e + i) for i in range(3)]) for e in range(2)]
    assert [sorted(e) for e in epochs] == [list(range(10))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()
    assert order.rows(1).tolist() == TaskOrder(10, 4, 1).rows(1).tolist()
    assert order.position(4) == (1, 4)


def watched(scores: list[float], **changes) -> tuple[Watched, list[int]]:
    """Scores that come one after the other, whatever the model says."""
    looks: list[int] = []

    def score(outputs):
        looks.append(len(outputs))
        return {"accuracy": scores[min(len(looks), len(scores)) - 1]}

    made = Watched(examples("sequence", 9, seed=2), score, "accuracy", every_steps=2)
    return replace(made, **changes), looks


def test_the_best_weights_are_kept(tmp_path):
    watch, looks = watched([0.2, 0.8, 0.8, 0.5])
    best = finetune(job(tmp_path, watched=watch), Heard())
    assert best.kept_step == 4 and best.step == 12 and looks == [9] * 6
    even = {"schedule": "constant", "warmup_share": 0.0}
    cut = finetune(job(tmp_path / "cut", train=even | {"steps": 4}), Heard())
    looks.clear()
    kept = finetune(job(tmp_path / "whole", watched=watch, train=even), Heard())
    assert kept.kept_step == 4
    assert torch.equal(weights(kept.model), weights(cut.model))
    last = job(tmp_path / "whole", watched=replace(watch, keep_best=False), attempt="b")
    last = replace(last, checkpoint_folder=str(tmp_path / "other"))
    assert finetune(last, Heard()).kept_step == 12


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_of_equal_looks_the_first_is_kept_however_often_it_is_saved(tmp_path, every):
    # Looks at steps 2, 4, ..., 12; that of step 8 and the last one are as good as that of step 4.
    watch, _ = watched([0.2, 0.8, 0.5, 0.8, 0.5, 0.8])
    given = job(tmp_path, watched=watch)
    given = replace(given, train=replace(given.train, checkpoint_every_steps=every))
    assert finetune(given, Heard()).kept_step == 4


def test_patience_ends_a_run(tmp_path):
    watch, _ = watched([0.5, 0.4, 0.5, 0.9], patience=2)
    heard = Heard()
    ended = finetune(job(tmp_path, watched=watch), heard)
    assert (ended.step, ended.kept_step, ended.ended_early) == (6, 2, True)
    assert heard.dev == {2: 0.5, 4: 0.4, 6: 0.5}


def test_a_lower_figure_can_be_the_better_one(tmp_path):
    watch, _ = watched([0.5, 0.1, 0.4], higher_is_better=False)
    assert finetune(job(tmp_path, watched=watch), Heard()).kept_step == 4


def test_a_metric_that_is_never_there_leaves_the_last_weights(tmp_path):
    watch, _ = watched([0.5])
    watch = replace(watch, metric="pearson")
    assert finetune(job(tmp_path, watched=watch), Heard()).kept_step == 12


def test_what_is_frozen_stays_and_lower_layers_learn_less(tmp_path):
    frozen = job(tmp_path, freeze_embeddings=True, freeze_layers=1)
    start = beginning(frozen).weights
    after = dict(finetune(frozen, Heard()).model.named_parameters())
    same = {name for name, tensor in start.items() if torch.equal(tensor, after[name])}
    assert "bert.embeddings.token.weight" in same
    assert any(n.startswith("bert.encoder.layers.0.") for n in same)
    assert not any(n.startswith(("bert.encoder.layers.1.", "head.")) for n in same)
    slow = job(tmp_path, layer_decay=0.5)
    model = BertForTask(CONFIG, "sequence", 3)
    groups = task_optimiser(model, slow, fused=False).param_groups
    scales = {id(p): group["scale"] for group in groups for p in group["params"]}
    by_name = {name: scales[id(p)] for name, p in model.named_parameters()}
    assert by_name["head.classifier.weight"] == 1.0
    assert by_name["bert.encoder.layers.1.output.weight"] == 0.5
    assert by_name["bert.embeddings.token.weight"] == 0.125
    assert len(scales) == len(list(model.parameters()))


def test_a_seed_draws_the_same_head_on_the_same_encoder(tmp_path):
    one, same = beginning(job(tmp_path)).weights, beginning(job(tmp_path)).weights
    other = beginning(job(tmp_path, seed=8)).weights
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name])
        drawn = name.startswith("head.") and tensor.ndim > 1
        assert torch.equal(tensor, other[name]) != drawn


def test_a_best_look_that_cannot_be_kept_ends_the_run(tmp_path):
    """Otherwise the weights of an older look would be the model, without a word."""
    watch, _ = watched([0.2, 0.8, 0.5])
    (tmp_path / "file").write_text("")
    made = job(tmp_path, watched=watch, train={"checkpoint_every_steps": 100})
    made = replace(made, checkpoint_folder=str(tmp_path / "file/checkpoints"))
    heard = Heard()
    with pytest.raises(CheckpointWriteError):
        finetune(made, heard)
    # At the first look, not at the end of the run.
    assert max(heard.losses) == 2
