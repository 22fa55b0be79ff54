from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_graph import Ran, nodes, stage

from pipeline.compare import Difference
from pipeline.drawing import draw
from pipeline.fingerprint import fingerprint, fingerprint_parts, source_hash, versions
from pipeline.graph import Graph, Selection
from pipeline.plan import NodePlan, plan
from pipeline.stage import Node, RawInput, UserError
from pipeline.store import Store
from pipeline.why import explain

Run = Callable[..., Ran]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def states(plans: list[NodePlan]) -> dict[str, str]:
    return {p.node: p.state for p in plans}


def test_nothing_is_made_yet(corpus: Path, store: Store) -> None:
    plans = plan(nodes(corpus, {}), store)
    assert states(plans) == {
        "split": "run",
        "count/long": "undecided",
        "count/short": "undecided",
        "total": "undecided",
        "model": "undecided",
    }
    assert plans[0].why == "not made yet"
    assert plans[0].path == store.folder("split", str(plans[0].fingerprint))
    assert plans[3].why == "depends on count/long, count/short, yet to be made"
    assert plans[3].fingerprint is None
    assert not Path(store.root).exists()
    row = json.loads(json.dumps(plans[3].to_json()))
    assert {"node", "state", "fingerprint", "path", "why"} <= row.keys()


def test_a_change_is_named(run: Run, corpus: Path, store: Store) -> None:
    run(until=None)
    assert set(states(plan(nodes(corpus, {}), store)).values()) == {"cached"}
    plans = plan(nodes(corpus, {"min": 5}), store)
    assert list(states(plans).values()) == ["cached", "run", "cached", "undecided", "undecided"]
    assert plans[1].why == "count.min: 4 -> 5"
    newer = {"versions": {"count": 2}}
    assert plan(nodes(corpus, newer), store)[1].why == "version of the stage: 1 -> 2"


def test_failed_running_and_unfinished(run: Run, corpus: Path, store: Store) -> None:
    from pipeline.lease import Lease

    run({"settings": {"behave": ["count/long:hope.txt:fail", "count/short:nobody.txt:crash"]}})
    plans = plan(nodes(corpus, {}), store)
    assert plans[1].state == "failed"
    assert plans[1].why == "hope.txt is broken"
    assert plans[2].why.startswith("ZeroDivisionError: last line")
    key = str(plans[2].fingerprint)
    store.files.remove(f"{store.folder('count/short', key)}/failure.json")
    assert plan(nodes(corpus, {}), store)[2].why == "unfinished: 2 parts made before"
    lease = Lease(store.files, store.folder("count/short", key), "me")
    assert lease.try_acquire() is None
    running = plan(nodes(corpus, {}), store)[2]
    assert running.state == "running"
    assert f"process {os.getpid()}" in running.why
    lease.release()


def test_force_and_selection(run: Run, corpus: Path, store: Store) -> None:
    run(until=None)
    graph = Graph(nodes(corpus, {}))
    forced = plan(graph, store, Selection(only=("count/long",)), force=True)
    assert [(p.node, p.state, p.why) for p in forced] == [("count/long", "run", "forced")]
    # A forced data stage has to come to the same content, so what follows is known.
    whole = states(plan(graph, store, Selection(until=("total",)), force=True))
    assert set(whole.values()) == {"run"}
    changed = nodes(corpus, {"min": 7})
    with pytest.raises(UserError, match=r"total needs count/long, .*--until count/long"):
        plan(changed, store, Selection(only=("total",)))
    assert states(plan(changed, store, Selection(start=("count",)))) == {
        "count/long": "run",
        "count/short": "cached",
        "total": "undecided",
        "model": "undecided",
    }


def test_only_listens_to_what_is_selected(run: Run, corpus: Path, store: Store) -> None:
    def gone() -> RawInput:
        raise UserError("the task's files are not there")

    task = Node("task", stage("task"), {}, raw=gone)
    run()
    given = [*nodes(corpus, {}), task]
    assert states(plan(given, store, Selection(only=("split",)))) == {"split": "cached"}
    with pytest.raises(UserError, match="not there"):
        plan(given, store)


def test_changed_code_is_warned_of(run: Run, corpus: Path, store: Store) -> None:
    run()
    assert plan(nodes(corpus, {}), store)[0].warnings == ()
    other = {"stage": {"modules": ("pipeline.results",)}}
    plans = plan(nodes(corpus, other), store)
    assert plans[0].state == "cached"
    assert "VERSION is still 1" in plans[0].warnings[0]


def test_why_goes_back_to_the_cause(run: Run, corpus: Path, store: Store) -> None:
    run()
    (corpus / "more.txt").write_text("I dwell in Possibility\n")
    (corpus / "hope.txt").unlink()
    found = explain(nodes(corpus, {"min": 5, "lower": False}), store, "total")
    assert found.plan.state == "undecided"
    assert [d.path for d in found.differences] == ["input a (count/long)", "input b (count/short)"]
    cause = found.differences[0].because
    assert (cause[0].path, cause[0].old, cause[0].new) == ("count.min", 4, 5)
    assert [d.text for d in cause[1].because] == [
        "split.lower: true -> false",
        "file hope.txt: removed",
        "file more.txt: added",
    ]
    text = "\n".join(found.lines())
    assert "count.min: 4 -> 5" in text
    assert json.loads(json.dumps(found.to_json()))["differences"][0]["because"]


def test_why_compares_with_the_nearest(run: Run, corpus: Path, store: Store) -> None:
    run({"min": 6, "lower": False})
    run({"min": 4})
    found = explain(nodes(corpus, {"min": 6}), store, "count/long")
    assert [d.text for d in found.differences] == ["count.min: 4 -> 6"]
    assert explain(nodes(corpus, {}), store, "split").differences == ()
    assert explain(nodes(corpus, {}), store, "model").against is None


def test_why_tells_of_an_input_that_came_out_different(
    run: Run, corpus: Path, store: Store
) -> None:
    run()
    run({"lower": False}, until="split")
    found = explain(nodes(corpus, {"lower": False}), store, "count/short")
    assert found.plan.state == "run"
    [difference] = found.differences
    assert difference.because == (Difference("split.lower", True, False),)


def test_fingerprints(corpus: Path) -> None:
    [split] = [n for n in nodes(corpus, {}) if n.name == "split"]
    raw = RawInput([["a.txt", 1, 2]], "corpus")

    def of(node: Node, listing: RawInput = raw, **inputs: str) -> str:
        return fingerprint(fingerprint_parts(node, listing, inputs))

    def changed(**fields: Any) -> Node:
        return Node(**{**vars(split), **fields})

    seen = [
        of(split),
        of(changed(config={"split": {"lower": False}})),
        of(changed(config={"split": {"lower": 1}})),
        of(changed(stage=stage("split", 2))),
        of(changed(stage=stage("split", libraries=("numpy",)))),
        of(split, RawInput([["a.txt", 1, 3]], "corpus")),
        of(split, a="0" * 64),
        of(split, b="0" * 64),
    ]
    assert len(set(seen)) == len(seen)
    assert of(split, RawInput([["a.txt", 1, 2]], "said otherwise")) == seen[0]
    assert of(changed(settings={"speed": 3}, name="other")) == seen[0]


def test_source_of_modules_and_packages_is_hashed_without_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "chaff"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "deep/__init__.py", "deep/b.py"):
        (package / name).write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {m: source_hash([m]) for m in ("chaff", "chaff.a", "chaff.deep", "chaff.deep.b")}
    assert source_hash(["chaff.a", "chaff.deep.b"]) == source_hash(["chaff.deep.b", "chaff.a"])
    (package / "deep" / "b.py").write_text("raise ImportError  # b\n")
    changed = {m for m, digest in before.items() if source_hash([m]) != digest}
    assert changed == {"chaff", "chaff.deep", "chaff.deep.b"}
    assert "chaff" not in sys.modules
    with pytest.raises(ValueError, match=r"no source for module 'chaff\.none'"):
        source_hash(["chaff.none"])


def test_versions() -> None:
    import pyarrow

    found = versions(["python", "pyarrow", "no-such-thing"])
    assert found["pyarrow"] == pyarrow.__version__
    assert found["no-such-thing"] == "not installed"
    assert found["python"].startswith("3.")


def test_graphs_that_cannot_be() -> None:
    a, b = Node("a", stage("x"), {}, inputs={"in": "b"}), Node("b", stage("x"), {})
    with pytest.raises(ValueError, match="a is b, which is no node"):
        Graph([a])
    with pytest.raises(ValueError, match="share a name"):
        Graph([b, b])
    with pytest.raises(ValueError, match="cycle"):
        Graph([a, Node("b", stage("x"), {}, inputs={"in": "a"})])


def test_selectors(corpus: Path) -> None:
    graph = Graph(nodes(corpus, {}))
    assert graph.match("count") == ["count/long", "count/short"]
    assert graph.match("count/long") == ["count/long"]
    with pytest.raises(UserError, match=r"'count/lang' is no node or stage. Perhaps .*count/long"):
        graph.match("count/lang")
    assert graph.select(Selection()) == graph.names
    assert graph.select(Selection(until=("count",))) == ["split", "count/long", "count/short"]
    assert graph.select(Selection(start=("count/long",))) == ["count/long", "total", "model"]
    assert graph.select(Selection(start=("count/long",), until=("total",))) == [
        "count/long",
        "total",
    ]
    with pytest.raises(UserError, match="cannot go together"):
        graph.select(Selection(only=("split",), until=("total",)))


def test_drawings(run: Run, corpus: Path, store: Store) -> None:
    run(until="count")
    graph = Graph(nodes(corpus, {}))
    state = states(plan(graph, store))
    text = draw(graph, "text", state)
    assert text.splitlines()[0].split() == ["split", "cached"]
    assert re.search(r"total +run +<- count/long, count/short", text)
    mermaid = draw(graph, "mermaid", state)
    assert mermaid.startswith("flowchart LR\n")
    assert "n0 --> n1" in mermaid
    svg = draw(graph, "svg", state)
    from xml.etree import ElementTree

    root = ElementTree.fromstring(svg)
    shapes = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(shapes) == 5
    spots = {(e.get("x"), e.get("y")) for e in shapes}
    assert len(spots) == 5
    assert len([e for e in root.iter() if e.tag.endswith("path") and e.get("class") == "edge"]) == 5


def test_a_plan_is_fast_and_light(run: Run, corpus: Path, store: Store) -> None:
    run(until=None)
    given = Graph(nodes(corpus, {}))
    plan(given, store)
    began = time.perf_counter()
    plan(given, store)
    assert time.perf_counter() - began < 0.1
    code = "import pipeline.plan, pipeline.why, pipeline.drawing, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert not {"ray", "torch", "mlflow", "numpy", "pyarrow"} & set(loaded.stdout.split())


def test_after_a_forced_model_nobody_can_say(run: Run, corpus: Path, store: Store) -> None:
    run(until=None)
    after = Node("after", stage("after"), {}, inputs={"weights": "model"})
    graph = Graph([*nodes(corpus, {}), after])
    assert states(plan(graph, store))["after"] == "run"
    assert states(plan(graph, store, force=True))["after"] == "undecided"


def test_other_files_count_as_one_difference(run: Run, corpus: Path, store: Store) -> None:
    run()
    for name in ("a.txt", "b.txt", "c.txt"):
        (corpus / name).write_text(name)
    run({"lower": False, "versions": {"split": 2}})
    # Three files are nearer than two values.
    found = explain(nodes(corpus, {}), store, "split")
    assert [d.text for d in found.differences] == [
        "file a.txt: added",
        "file b.txt: added",
        "file c.txt: added",
    ]
    assert found.plan.why == "file a.txt: added; file b.txt: added; and 1 more"


def test_what_is_watched_is_drawn_dashed(corpus: Path) -> None:
    given = {n.name: n for n in nodes(corpus, {})}
    given["model"] = replace(given["model"], watches={"documents": "split"})
    graph = Graph(list(given.values()))
    assert graph.before(["model"]) == set(graph.names)
    assert "model        <- total, split (watched)" in draw(graph, "text")
    assert draw(graph, "mermaid").count("-.->") == 1
    assert draw(graph, "svg").count("stroke-dasharray") == 1
    given["model"] = replace(given["model"], watches={"counts": "split"})
    with pytest.raises(ValueError, match="two inputs called counts"):
        Graph(list(given.values()))
