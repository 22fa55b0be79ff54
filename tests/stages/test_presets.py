"""The experiments: what each says that it reproduces is what it sets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeline.config import PACKAGED, compose
from pipeline.graph import Graph
from stages.catalog import CATALOG
from stages.config import Config

FILES = sorted((PACKAGED / "experiment").glob("*.yaml"))
CORPUS = ("corpus=jsonl", "corpus.paths=[/data/text]")


def preset(name: str, *more: str) -> Config:
    found = compose([f"experiment={name}", *more], None, Config).config
    assert isinstance(found, Config)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_says_where_it_comes_from_and_makes_a_graph(path: Any) -> None:
    comment = "".join(line for line in path.read_text("utf-8").splitlines() if line[:1] == "#")
    assert f"experiment={path.stem}" in comment
    assert re.search(
        r"et al\. \d{4}|Goldstein \d{4}|reproduces nothing|bert_base_original", comment
    )
    more = () if path.stem in ("smoke", "two_phases") else CORPUS
    assert "export" in Graph(CATALOG.nodes(preset(path.stem, *more))).names


def test_bert_as_published() -> None:
    base, large = preset("bert_base_original"), preset("bert_large_original")
    for found in (base, large):
        train = found.train
        assert (train.learning_rate, train.beta1, train.beta2) == (1e-4, 0.9, 0.999)
        assert (train.weight_decay, train.warmup_share, train.schedule) == (0.01, 0.01, "linear")
        assert (train.global_batch_size, found.mask.probability) == (256, 0.15)
        assert sum(phase.steps or 0 for phase in found.phases) == 1_000_000
        assert [(p.max_seq_length, p.steps) for p in found.phases] == [
            (128, 900_000), (512, 100_000),
        ]  # fmt: skip
        assert found.objective.nsp and found.model.hidden_dropout == 0.1
        assert train.carry_moments
    shape = [(c.model.num_layers, c.model.hidden_size, c.model.num_heads) for c in (base, large)]
    assert shape == [(12, 768, 12), (24, 1024, 16)]
    assert preset("bert_base") == base


def test_roberta_style() -> None:
    found = preset("roberta_style", *CORPUS)
    assert not found.objective.nsp and found.pairs.across_documents
    assert found.mask.when == "loading"
    assert [phase.max_seq_length for phase in found.resolved_phases()] == [512]
    assert found.train.steps * found.train.warmup_share == 24_000
    assert (found.train.learning_rate, found.train.beta2, found.train.clip_norm) == (
        6e-4,
        0.98,
        None,
    )
