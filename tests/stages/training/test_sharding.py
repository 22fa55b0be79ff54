"""A model cut among ranks trains as a whole one does, and its files know nothing of it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from stages.training.checkpoint import load_latest
from stages.training.examples import Examples, Ragged, offsets_of
from stages.training.job import Validation, rounding_values
from stages.training.loop import pretrain
from stages.training.packing import step_batch
from stages.training.passes import filler, passes_of_step, with_fillers

HERE = Path(__file__).parent
_SPEC = importlib.util.spec_from_file_location("uneven", HERE / "uneven.py")
uneven = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(uneven)

LOCAL = LocalFileSystem()
WITHOUT_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
FULL = {"sharding": "full"}
# Of three: the tables of segments and of the pair's classes have two rows, so that the last rank
# has none of them.
RANKS = 3
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}


@given(
    lengths=st.lists(st.integers(1, 39), min_size=1, max_size=12),
    ranks=st.integers(1, 5),
    budget=st.integers(30, 100),
)
def test_all_ranks_make_as_many_passes_as_the_busiest(lengths, ranks, budget):
    examples = of_lengths(np.array(lengths))
    parts = [step_batch(examples, rank, ranks, budget, nsp=True) for rank in range(ranks)]
    passes = passes_of_step(examples.input_ids.lengths, ranks, budget)
    assert passes == max(len(part.micro_batches) for part in parts)
    for part in parts:
        filled = with_fillers(part, passes, nsp=True)
        assert len(filled.micro_batches) == passes
        assert filled.micro_batches[: len(part.micro_batches)] == part.micro_batches


def of_lengths(lengths) -> Examples:
    none = np.zeros(0, dtype=np.int64)
    return Examples(
        input_ids=Ragged(np.zeros(lengths.sum(), dtype=np.int64), offsets_of(lengths)),
        a_length=lengths // 3,
        is_next=lengths % 2 == 0,
        mlm_positions=Ragged(none, offsets_of(0 * lengths)),
        mlm_labels=none,
    )


@pytest.mark.parametrize("nsp", [True, False])
def test_a_pass_of_nothing_reaches_every_parameter_and_changes_none(nsp):
    """One without a gradient would be left out of the sum over ranks, which must not differ."""
    model = uneven.make_model(torch.float32)
    nothing = filler(nsp)
    output = model(*nothing.inputs(), nothing.mlm_labels)
    loss = output.mlm_loss_sum
    if nsp:
        loss = loss + uneven.nsp_loss_sum(output.nsp_logits, nothing.is_next)
    loss.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    heads = {name for name, _ in model.named_parameters() if name.startswith(("pooler", "nsp"))}
    assert reached == {name for name, _ in model.named_parameters()} - (set() if nsp else heads)
    assert loss.item() == 0 and uneven.flat_gradient(model).abs().max() == 0


@pytest.mark.parametrize(
    ("train", "rounding", "mend"),
    [
        ({"optimizer": "muon"}, {}, r"train\.optimizer=adamw or lamb"),
        ({}, {"compile": True}, r"rounding\.compile=false"),
    ],
)
def test_what_needs_whole_matrices_is_refused(make_job, recorder, train, rounding, mend):
    with pytest.raises(ValueError, match=mend):
        pretrain(make_job(train=train, rounding={**FULL, **rounding}), recorder())


def test_one_worker_has_nothing_to_share(make_job, recorder):
    hooks, plain = recorder(), recorder()
    job = make_job(train={"steps": 3}, rounding=FULL)
    pretrain(job, hooks)
    pretrain(make_job(train={"steps": 3}, folder="plain"), plain)
    assert hooks.losses() == plain.losses()
    assert rounding_values(job.rounding, "float32", "cpu", 1)["sharding"] == "none"
    assert rounding_values(job.rounding, "float32", "cpu", 2)["sharding"] == "full"


@pytest.mark.slow
def test_cut_among_ranks(make_job, recorder, tmp_path, shards):
    """One group of processes for all of it: they take seconds to start."""
    steps = {"steps": 10, "checkpoint_every_steps": 5, "evaluate_every_steps": 5}
    few = {"steps": 4}

    def alone(folder: str, **changes):
        hooks = recorder()
        job = make_job(**{"train": steps, "model": WITHOUT_DROPOUT, **changes}, folder=folder)
        return pretrain(job, hooks), hooks

    # Held-out rows are of four row groups: at the last turn two ranks have none.
    validation = Validation(files=shards[:2], mask_token_id=4, max_rows=180)
    whole, curve = alone("whole", validation=validation)
    shutil.copytree(tmp_path / "whole" / "step-00000005", tmp_path / "from_whole" / "step-00000005")
    begun = {
        "init_from": str(tmp_path / "from_whole" / "step-00000005" / "weights.safetensors"),
        "init_moments": str(tmp_path / "from_whole" / "step-00000005" / "optimiser.safetensors"),
    }  # fmt: skip
    phase, phase_curve = alone("phase", train=few, **begun)
    _, lamb_curve = alone("lamb", train={**few, "optimizer": "lamb", "weight_decay": 0.1})
    _, half_curve = alone("half", train={**few, "precision": "bf16"})

    runs = {
        "full": {"train": steps, "held_out": 180},
        "from_whole": {"train": steps},
        "phase_full": begun,
        "lamb_full": {"train": {**few, "optimizer": "lamb", "weight_decay": 0.1}},
        "half_full": {
            "train": {**few, "precision": "bf16"},
            "rounding": {**FULL, "gradient_checkpointing": True},
        },
        "drop": {"dropout": 0.1},
        "drop_1": {"dropout": 0.1, "checkpoints": "parts", "stop_at": 2},
        "drop_2": {"dropout": 0.1, "checkpoints": "parts"},
    }
    batches = [
        # One rank holds all masked positions but one; two ranks hold no row; nobody any position.
        {"masked": {0: 30, 7: 1}, "rows": 8},
        {"masked": {0: 30}, "rows": 1},
        {"masked": {}, "rows": 8},
    ]
    seen = run_group(tmp_path, few, runs, batches)

    for number, case in enumerate(batches):
        check_gradients(tmp_path, number, uneven.batch(case["masked"], case["rows"]))

    same_curve(seen["full"]["losses"], curve.losses())
    for step in (5, 10):
        figures = {n: v for n, v in curve.values[step].items() if n.startswith("validation/")}
        assert seen["full"]["held_out"][str(step)] == pytest.approx(figures, rel=1e-5)
    same_files(tmp_path / "full", tmp_path / "whole")
    same_curve(seen["phase_full"]["losses"], phase_curve.losses())
    same_files(tmp_path / "phase_full", tmp_path / "phase")
    assert phase.moments["step/mlm.bias"] == 5 + 4
    same_curve(seen["lamb_full"]["losses"], lamb_curve.losses())
    same_files(tmp_path / "lamb_full", tmp_path / "lamb")
    same_curve(seen["half_full"]["losses"], half_curve.losses(), rel=1e-3)

    # A run that was stopped goes on to the bit, with dropout.
    assert seen["drop_1"]["stopped"]
    late = {step: loss for step, loss in seen["drop"]["losses"].items() if int(step) > 2}
    assert seen["drop_2"]["losses"] == late
    assert seen["drop_2"]["weights"] == seen["drop"]["weights"]

    # From one worker to shards, and back.
    shutil.rmtree(tmp_path / "full" / "step-00000010")
    rest, rest_curve = alone("full", attempt="second")
    assert rest.resumed_from == 5 and rest.moments.keys() == whole.moments.keys()
    late = {step: loss for step, loss in curve.losses().items() if step > 5}
    same_curve(seen["from_whole"]["losses"], late)
    same_curve({str(step): loss for step, loss in rest_curve.losses().items()}, late)
    assert "sharding was 'none', is 'full'" in seen["from_whole"]["notices"][0]
    assert "sharding was 'full', is 'none'" in rest_curve.notices[0]


def run_group(root: Path, train: dict, runs: dict, batches: list) -> dict[str, dict]:
    """Run `sharded.py` in a group; what rank 0 says of each run."""
    told = {
        "shards": str(root / "shards"), "rendezvous": str(root / "rendezvous"),
        "root": str(root), "workers": RANKS, "batches": batches,
        "runs": {
            name: {
                "train": train, "dropout": 0.0, "stop_at": 0, "rounding": FULL, **run,
                "checkpoints": str(root / run.get("checkpoints", name)),
            }
            for name, run in runs.items()
        },
    }  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "sharded.py"), json.dumps({**told, "rank": rank})],
            env=environment,
        )
        for rank in range(RANKS)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    return {name: json.loads((root / f"{name}.json").read_text()) for name in runs}


def check_gradients(root: Path, number: int, examples) -> None:
    for dtype, bound in BOUNDS.items():
        mlm, pair, whole = uneven.plain_gradient(examples, dtype)
        name = str(dtype).removeprefix("torch.")
        for rank in range(RANKS):
            seen = torch.load(root / f"{number}-{name}-{rank}", weights_only=True)
            assert (seen["gradient"] - whole).norm() <= bound * whole.norm()
            assert seen["norm"] == pytest.approx(float(whole.norm()), rel=bound)
            # Once for each block and once for the rest, in a step of several passes.
            assert seen["sums"] == uneven.CONFIG.num_layers + 1
            assert seen["mlm"] == pytest.approx(mlm, rel=bound)
            assert seen["pair"] == pytest.approx(pair, rel=bound)


def same_curve(seen: dict[str, float], losses: dict[int, float], rel: float = 1e-5) -> None:
    assert list(seen) == [str(step) for step in losses]
    for step, loss in losses.items():
        assert seen[str(step)] == pytest.approx(loss, rel=rel), step


def same_files(ours: Path, theirs: Path) -> None:
    """Checkpoints of the same names, tensors, shapes and types, with values within rounding."""
    assert sorted(p.name for p in ours.iterdir()) == sorted(p.name for p in theirs.iterdir())
    left = load_latest(LOCAL, str(ours), print)
    right = load_latest(LOCAL, str(theirs), print)
    for one, other in ((left.weights, right.weights), (left.moments, right.moments)):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert (tensor.shape, tensor.dtype) == (other[name].shape, other[name].dtype), name
            assert (tensor - other[name]).norm() <= 1e-4 * other[name].norm() + 1e-6, name
