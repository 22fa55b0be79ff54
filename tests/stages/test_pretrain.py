"""Stage pretrain without Ray: how many workers there are, and what is left of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow.fs import LocalFileSystem
from pydantic import ValidationError
from safetensors.torch import load

from model.config import BertConfig
from pipeline.store import Store
from stages.catalog import CATALOG
from stages.config import Config
from stages.pretrain import workers_within
from stages.pretrain_worker import MODEL, OPTIMISER, WEIGHTS, _write, _write_best
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from stages.training.checkpoint import State, save
from stages.training.job import Outcome, Rounding, TrainConfig, TrainJob
from stages.training.optimisers import make_optimiser
from stages.training.weights import moments_of, weights_of

TOKENS = [*SPECIAL_TOKENS, *"abcd"]
BERT = BertConfig(vocab_size=len(TOKENS), hidden_size=8, num_layers=1, num_heads=2)


@pytest.mark.parametrize(
    ("workers", "cpus", "num_cpus", "expected"),
    [
        ((2, 2), 1.0, None, (2, 2)),
        ((1, 8), 2.0, None, (1, 8)),
        ((1, 8), 2.0, 6, (1, 3)),
        ((1, 8), 0.1, 1, (1, 8)),
        ((4, 8), 2.0, 6, (4, 4)),
    ],
)
def test_a_range_of_workers_stays_within_the_cpus_of_the_run(
    workers: tuple[int, int], cpus: float, num_cpus: int | None, expected: tuple[int, int]
) -> None:
    assert workers_within(workers, cpus, num_cpus) == expected


def node(**cluster: Any) -> Any:
    config = Config.model_validate({"corpus": {"kind": "python_docs"}, "cluster": cluster})
    return next(n for n in CATALOG.nodes(config) if n.name == "pretrain/128")


def test_a_range_needs_the_least_and_changes_no_result() -> None:
    elastic, one = node(train_workers=[2, 8], cpus_per_worker=3), node()
    assert elastic.resources.cpus == 6 and one.resources.cpus == math.inf
    assert elastic.config == one.config
    assert elastic.settings["cluster"]["train_workers"] == (2, 8)
    assert one.settings["cluster"]["train_workers"] == (1, 1)
    with pytest.raises(ValidationError, match=r"the least comes first, \[2, 8\]"):
        node(train_workers=[8, 2])
    with pytest.raises(ValidationError):
        node(train_workers=[0, 2])


def test_what_a_run_leaves(tmp_path: Path) -> None:
    """Weights and moments count as content; the vocabulary and the best weights lie beside."""
    from model.bert import BertForPreTraining

    model = BertForPreTraining(BERT)
    optimiser = make_optimiser(model.parameters(), TrainConfig(9, 1, 1e-3))
    sum(p.sum() for p in model.parameters()).backward()
    optimiser.step()
    local, tokenizer = LocalFileSystem(), Tokenizer(TOKENS, Normalisation(True, True, True))
    for step, score in ((3, 5.0), (6, 4.0), (9, 4.5)):
        state = State(step, 0, 0, 1, {}, "f", "v", {}, {}, score=score)
        weights = {name: torch.full_like(w, step) for name, w in weights_of(model).items()}
        save(local, str(tmp_path / "points"), "one", state, weights, {}, keep=1, keep_best=True)
    job = TrainJob(
        model=BERT, train=TrainConfig(9, 1, 1e-3), rounding=Rounding(), seed=1, filesystem=local,
        copies=(), checkpoint_filesystem=local, checkpoint_folder=str(tmp_path / "points"),
        fingerprint="f", attempt="one",
    )  # fmt: skip
    output = Store(str(tmp_path / "store")).begin("pretrain/128", "0" * 64, "attempt")
    moments = moments_of(model, optimiser)
    outcome = Outcome(False, 9, 0, 1, {}, model, moments)
    figures: dict[str, Any] = {"steps": 9}
    _write_best(output, job, tokenizer, 9, figures)
    _write(output, outcome, BERT, tokenizer, figures)
    assert figures["best/step"] == 6 and figures["best/mlm_loss"] == 4.0

    parts = output.finished()
    assert {name for name, part in parts.items() if part.digest} == {WEIGHTS, OPTIMISER, MODEL}
    data = Path(output.data)
    found = load((data / OPTIMISER).read_bytes())
    assert found.keys() == moments.keys()
    assert all(torch.equal(found[name], moments[name]) for name in moments)
    best = load((data / "best" / WEIGHTS).read_bytes())
    assert all(bool((tensor == 6).all()) for tensor in best.values())
    names = {"vocab.txt", "tokenizer.json", "tokenizer_config.json", MODEL}
    assert names | {WEIGHTS} == {path.name for path in (data / "best").iterdir()}
    assert names <= {path.name for path in data.iterdir()}
