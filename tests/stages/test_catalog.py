"""The graph of a config, and what the catalogue says of each stage."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.graph import Graph
from pipeline.stage import Stage, UserError
from stages import stage_list
from stages.catalog import CATALOG
from stages.config import Config
from stages.finetune_nodes import FINETUNE
from stages.task_nodes import TASK
from stages.training.job import TrainConfig
from tests.conftest import ROOT

STARTS = ("init_from", "carry_moments")
"""Of `train`: where a run begins, which is no part of the mathematics."""

STAGES = [value for value in vars(stage_list).values() if isinstance(value, Stage)]
STAGES += [TASK, FINETUNE]
# They carry work about, or say what to do; none of them makes a byte of a result.
CARRIERS = {
    "stages",
    "stages.config",
    "stages.config_types",
    "stages.corpus_config",
    "stages.leaving",
    "stages.memory",
    "stages.model_card",
    "stages.model_card_use",
    "stages.nodes",
    "stages.parallel",
    "stages.raw",
    "stages.registered_model",
    "stages.remote",
    "stages.scratch",
    "stages.train_backend",
    "stages.train_config",
    "stages.text",
    "stages.training",
    "model",
}


def config(**changes: object) -> Config:
    values: dict[str, object] = {"corpus": {"kind": "python_docs"}, **changes}
    return Config.model_validate(values)


def test_default_graph() -> None:
    names = Graph(CATALOG.nodes(config())).names
    assert names == [
        "shard",
        "vocab",
        "pairs/128",
        "mask/128",
        "mask/128-heldout",
        "pretrain/128",
        "evaluate",
        "export",
    ]


def test_each_phase_starts_from_the_one_before() -> None:
    nodes = {
        n.name: n
        for n in CATALOG.nodes(
            config(phases=[{"max_seq_length": 128}, {"max_seq_length": 512, "steps": 7}])
        )
    }
    assert nodes["pretrain/512"].inputs["before"] == "pretrain/128"
    assert "before" not in nodes["pretrain/128"].inputs
    assert nodes["pretrain/512"].config["train"]["steps"] == 7
    assert nodes["pairs/512"].config["pairs"]["max_seq_length"] == 512
    assert nodes["mask/512"].config["mask"]["max_predictions"] == 77
    assert nodes["evaluate"].inputs["pretrain"] == "pretrain/512"


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": {"num_cpus": 1, "train_workers": 2}},
        {"speed": {"batch_mb": 1.0, "prefetch_batches": 0, "workers": "tasks"}},
        {"rounding": {"micro_batch_tokens": 100, "threads": 1, "compile": True}},
        {"rounding": {"sharding": "full"}},
        {"tracking": {"enabled": False}},
        {"store": "elsewhere"},
        {"train": {"checkpoint_every_steps": 1, "log_every_steps": 1, "keep_checkpoints": 9}},
        {"corpus": {"kind": "python_docs", "max_unreadable_share": 0.5}},
        {"corpus": {"kind": "python_docs", "near_duplicates": {"threshold": 0.5}}},
        {"corpus": {"kind": "python_docs", "min_language_probability": 0.9, "language": "de"}},
        {"corpus": {"kind": "python_docs", "quality": {"stop_words": ["a"]}}},
        {"speed": {"tokenizer": "tokenizers"}},
        {"mask": {"span_words": 5}},
    ],
)
def test_what_changes_no_result_is_in_no_slice(changes: dict[str, object]) -> None:
    plain = {n.name: n.config for n in CATALOG.nodes(config())}
    assert {n.name: n.config for n in CATALOG.nodes(config(**changes))} == plain


def test_a_changed_value_is_in_the_slice_of_its_node_alone() -> None:
    plain = {n.name: n.config for n in CATALOG.nodes(config())}
    for changes, expected in [
        ({"mask": {"probability": 0.2}}, {"mask/128"}),
        ({"vocab": {"size": 99}}, {"vocab"}),
        ({"train": {"learning_rate": 1.0}}, {"pretrain/128"}),
        ({"train": {"length_bins": 4}}, {"pretrain/128"}),
        ({"evaluate": {"probability": 0.2}}, {"mask/128-heldout", "evaluate"}),
        ({"seeds": {"mask": 3}}, {"mask/128"}),
    ]:
        changed = {n.name: n.config for n in CATALOG.nodes(config(**changes))}
        assert {name for name in plain if plain[name] != changed[name]} == expected


def test_sentence_order_is_told_to_what_names_it_and_nothing_else_changes() -> None:
    plain = {n.name: n.config for n in CATALOG.nodes(config())}
    order = {n.name: n for n in CATALOG.nodes(config(objective={"pair": "sentence_order"}))}
    assert order["export"].config == {"pair": "sentence_order"}
    assert order["evaluate"].config == {**plain["evaluate"], "pair": "sentence_order"}
    assert plain["export"] == {} and "pair" not in plain["evaluate"]


def test_length_bins_go_up_to_the_length_of_the_phase() -> None:
    phases = [{"max_seq_length": 128}, {"max_seq_length": 512}]
    nodes = {n.name: n for n in CATALOG.nodes(config(train={"length_bins": 4}, phases=phases))}
    for length in (128, 512):
        train = nodes[f"pretrain/{length}"].config["train"]
        assert (train["length_bins"], train["max_seq_length"]) == (4, length)
    # Without them the slice is what it was before there were any.
    plain = {n.name: n for n in CATALOG.nodes(config())}["pretrain/128"].config["train"]
    assert not {"length_bins", "max_seq_length"} & set(plain)


@pytest.mark.parametrize(
    ("changes", "phases", "expected"),
    [
        ({}, [{}, {"steps": 7}], [{"steps": 1000}, {"steps": 7}]),
        (
            {"steps": None, "tokens": 10**9},
            [{}, {"hours": 0.5}, {"steps": 7}],
            [{"tokens": 10**9}, {"hours": 0.5}, {"steps": 7}],
        ),
        (
            {"global_batch_size": None, "global_batch_tokens": 4096},
            [{}, {"global_batch_size": 4}],
            [{"steps": 1000, "global_batch_tokens": 4096}, {"steps": 1000, "global_batch_size": 4}],
        ),
        (
            {"optimizer": "lamb", "schedule": "wsd", "decay_share": 0.3},
            [{}],
            [{"optimizer": "lamb", "decay_share": 0.3, "steps": 1000}],
        ),
    ],
)
def test_a_phase_s_budget_stands_for_train_s(
    changes: dict[str, Any], phases: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    """What the trainer is told; a budget that is not set is not in the slice."""
    lengths = (128, 256, 512)
    named = [{"max_seq_length": n, **p} for n, p in zip(lengths, phases, strict=False)]
    nodes = {n.name: n for n in CATALOG.nodes(config(train=changes, phases=named))}
    optional = {"tokens", "hours", "global_batch_tokens", "decay_share"}
    for length, wanted in zip(lengths, expected, strict=False):
        node = nodes[f"pretrain/{length}"]
        given = {**node.config["train"], **node.settings["train"]}
        told = TrainConfig(**{k: v for k, v in given.items() if k not in STARTS})
        assert {name: getattr(told, name) for name in wanted} == wanted
        assert optional & set(node.config["train"]) == optional & set(wanted)
        assert sum(getattr(told, name) is not None for name in ("steps", "tokens", "hours")) == 1


def test_two_budgets_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"add train\.steps=null"):
        config(train={"tokens": 10**9})
    with pytest.raises(ValidationError, match="how much a step takes"):
        config(train={"global_batch_size": None})
    with pytest.raises(ValidationError, match=r"phases\.N\.steps=5 and phases\.N\.hours=1\.0"):
        config(phases=[{"max_seq_length": 64, "steps": 5, "hours": 1}])


def test_what_acts_with_others_counts_with_them() -> None:
    def shard(**corpus: object) -> dict[str, object]:
        return dict(CATALOG.nodes(config(corpus={"paths": ["a"], **corpus}))[0].config)

    for plain, changes in (
        ({"near_duplicates": {"enabled": True}}, {"enabled": True, "threshold": 0.5}),
        ({"quality": {"min_stop_words": 1}}, {"min_stop_words": 1, "stop_words": ["a"]}),
    ):
        (key,) = plain
        assert shard(**plain) != shard(**{key: changes})
    assert shard(languages=["en"]) != shard(languages=["en"], min_language_probability=0.9)
    assert shard(languages=["en", "de"]) == shard(languages=["de", "en"])


def test_where_files_lie_is_in_no_slice_but_how_they_are_read_is() -> None:
    def shard(**corpus: object) -> dict[str, object]:
        return dict(CATALOG.nodes(config(corpus=corpus))[0].config)

    plain = shard(paths=["a"])
    assert shard(paths=["b"]) == plain
    for changes in ({"sample": 0.5}, {"repeat": 2}, {"text_field": "body"}, {"format": "csv"}):
        assert shard(paths=["a"], **changes) != plain
    mixed = shard(sources=[{"paths": ["a"]}, {"paths": ["b"], "sample": 0.5}])
    assert shard(sources=[{"paths": ["c"]}, {"paths": ["d"], "sample": 0.5}]) == mixed
    assert shard(sources=[{"paths": ["a"]}, {"paths": ["b"], "sample": 0.4}]) != mixed
    # What every source sets itself or inherits stands with the sources alone.
    inherited = shard(sample=0.5, sources=[{"paths": ["a"], "sample": 1}, {"paths": ["b"]}])
    assert inherited == mixed


def imported(module: str) -> set[str]:
    """Modules of `stages` and `model` that a module imports or names as a worker's."""
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.is_file():
        path = ROOT / module.replace(".", "/") / "__init__.py"
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            # `from stages.training import checkpoint` names a module, most others a name in one.
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            found.add(node.value.partition(":")[0])
    ours = {name for name in found if name.split(".")[0] in ("stages", "model")}
    return {name for name in ours if (ROOT / (name.replace(".", "/") + ".py")).is_file()}


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.name)
def test_modules_are_all_that_make_the_result(stage: Stage) -> None:
    """What is missing would let code change without a warning, and parts of two versions mix."""
    waiting, found = [stage.run.partition(":")[0]], set()
    while waiting:
        module = waiting.pop()
        if module not in found | CARRIERS:
            found.add(module)
            waiting += imported(module)
    packages = {m for m in stage.modules if (ROOT / m.replace(".", "/")).is_dir()}
    alone = {m for m in found if not any(m.startswith(f"{p}.") for p in packages)}
    assert set(stage.modules) - packages == alone


def test_masks_drawn_at_loading_are_trainings_own() -> None:
    nodes = {n.name: n for n in CATALOG.nodes(config(mask={"when": "loading"}))}
    plain = {n.name: n for n in CATALOG.nodes(config())}
    assert set(plain) - set(nodes) == {"mask/128"}
    for name in ("pretrain/128", "evaluate"):
        assert nodes[name].inputs.get("pairs") == "pairs/128" and "mask" not in nodes[name].inputs
        # What masks are like is in the slice, as it is in the mask stage's when they are stored.
        assert nodes[name].config["mask"] == plain["mask/128"].config["mask"]
        assert nodes[name].config["seeds"]["mask"] == plain["mask/128"].config["seeds"]["mask"]
    other = {n.name: n for n in CATALOG.nodes(config(mask={"when": "loading", "probability": 0.2}))}
    changed = {name for name in nodes if other[name].config != nodes[name].config}
    assert changed == {"pretrain/128", "evaluate"}
    assert "when" not in plain["mask/128"].config["mask"]


def test_copies_of_masks_that_are_not_stored_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"mask\.copies=2 with mask\.when=loading"):
        config(mask={"when": "loading", "copies": 2})


def test_shares_of_a_mix_are_in_the_slice_and_paths_are_settings() -> None:
    mix = [{"path": "/a", "weight": 0.3}]
    phases = [{"max_seq_length": 128}, {"max_seq_length": 512, "mix": []}]
    nodes = {n.name: n for n in CATALOG.nodes(config(train={"mix": mix}, phases=phases))}
    assert nodes["pretrain/128"].config["mix"] == [0.3]
    assert nodes["pretrain/128"].settings["mix"] == ["/a"]
    with pytest.raises(UserError, match="/a holds no finished artifact"):
        assert nodes["pretrain/128"].raw is not None and nodes["pretrain/128"].raw()
    plain = {n.name: n for n in CATALOG.nodes(config(phases=phases[:1]))}
    assert "mix" not in plain["pretrain/128"].config and plain["pretrain/128"].raw is None
    assert "mix" not in nodes["pretrain/512"].config and nodes["pretrain/512"].raw is None
    assert "mix" not in nodes["pretrain/128"].config["train"]
    with pytest.raises(ValidationError, match="leaves no share"):
        config(train={"mix": [{"path": "/a", "weight": 0.5}, {"path": "/b", "weight": 0.5}]})
