from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_graph import Ran, nodes

from pipeline.commands.lineage import artifact_named, artifact_of, lines
from pipeline.graph import Graph
from pipeline.lineage import Step, artifact_at, lineage, lineage_of_inputs
from pipeline.stage import UserError
from pipeline.store import Store

Run = Callable[..., Ran]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def newest(store: Store, node: str):
    return store.artifacts(node)[0]


def test_the_way_back_names_each_artifact_once(run: Run, store: Store) -> None:
    run(until=None)
    steps = lineage(newest(store, "model"))
    assert [s.node for s in steps] == ["model", "total", "count/long", "count/short", "split"]
    for step in steps:
        made = store.find(step.node, step.fingerprint)
        assert made is not None and step.state == "here"
        assert (step.output_digest, step.path) == (made.output_digest, made.path)
        assert step.created == made.manifest["created"] and step.flow
    by_node = {s.node: s for s in steps}
    assert set(by_node["total"].inputs.values()) == {"count/long", "count/short"}
    raw = by_node["split"].raw
    assert raw is not None and raw["entries"] == 4 and len(raw["digest"]) == 64
    assert by_node["model"].raw is None
    assert Step.from_json(json.loads(json.dumps(steps[-1].to_json()))) == steps[-1]
    behind = lineage_of_inputs({"total": newest(store, "total")})
    assert behind == steps[1:]


def test_two_configs_have_two_ways_back(run: Run, store: Store) -> None:
    run(until=None)
    first = lineage(newest(store, "model"))
    run({"lower": False}, until=None)
    second = lineage(newest(store, "model"))
    assert first[-1].fingerprint != second[-1].fingerprint


def test_what_is_gone_or_made_anew_is_said(run: Run, store: Store) -> None:
    run(until=None)
    model = newest(store, "model")
    total = newest(store, "total")
    manifest = Path(total.path) / "manifest.json"
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(body | {"output_digest": "0" * 64}))
    steps = {s.node: s for s in lineage(model)}
    assert steps["total"].state == "other"
    assert steps["total"].output_digest == total.output_digest
    assert steps["split"].state == "here"
    said = "\n".join(lines(model, as_json=False))
    assert "total: made anew since" in said
    manifest.unlink()
    assert [(s.node, s.state) for s in lineage(model)] == [("model", "here"), ("total", "gone")]
    assert "total: no longer in the store" in "\n".join(lines(model, as_json=False))


def test_a_path_into_an_artifact_names_it(run: Run, store: Store, corpus: Path) -> None:
    run(until=None)
    model = newest(store, "model")
    for path in (model.path, f"{model.path}/", model.data, f"{model.data}/no-such-file"):
        found = artifact_at(path)
        assert found is not None and found.manifest == model.manifest
    assert artifact_at(str(corpus)) is None
    assert artifact_named("model") is None
    with pytest.raises(UserError, match="belongs to no result"):
        artifact_named(str(corpus))


def test_the_command_prints_a_table_or_json(run: Run, store: Store, corpus: Path) -> None:
    graph = Graph(nodes(corpus, {}))
    with pytest.raises(UserError, match="has no result with this config"):
        artifact_of(graph, store, "model")
    run(until=None)
    found = artifact_of(graph, store, "model")
    header, first, *rest = lines(found, as_json=False)
    assert header.split()[:3] == ["node", "fingerprint", "output"]
    assert first.startswith("model") and found.output_digest[:12] in first
    assert rest[-1].startswith("split") and "raw input" in rest[-1]
    (text,) = lines(found, as_json=True)
    assert [row["node"] for row in json.loads(text)][-1] == "split"
    with pytest.raises(UserError, match="lineage takes one node; count has"):
        artifact_of(graph, store, "count")
