from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_graph import Ran, ToyServices, nodes

from pipeline.graph import Selection
from pipeline.runner import StopSignal
from pipeline.runner import run as run_graph
from pipeline.stage import Node, UserError
from pipeline.store import Store

Run = Callable[..., Ran]
DATA = ["split", "count/long", "count/short", "total"]


def digests(store: Store) -> dict[str, set[str]]:
    return {n: {a.output_digest for a in store.artifacts(n)} for n in store.nodes()}


def test_everything_is_made_once_and_then_cached(run: Run) -> None:
    first = run(until=None)
    assert first.outcome.exit_code == 0
    assert first.made == [*DATA, "model"]
    assert first.services.calls[0] == "start_run"
    assert first.services.calls[-1] == "close done"
    assert first.services.calls.count("ray") == 1
    again = run(until=None)
    assert set(again.states.values()) == {"cached"}
    # Neither Ray nor tracking is touched.
    assert again.services.calls == ["close done"]


def test_only_what_depends_on_a_change_runs_again(run: Run) -> None:
    run()
    changed = run({"min": 5})
    assert changed.made == ["count/long", "total"]
    assert "node_cached split run of split" in changed.services.calls
    assert run({"min": 4}).made == []
    assert run({"versions": {"total": 2}}).made == ["total"]
    assert run({"settings": {"speed": 9}}).made == []


def test_equal_content_stops_a_rerun(run: Run) -> None:
    run()
    # No word has exactly three letters fewer than this: same counts, other configuration.
    changed = run({"versions": {"split": 2}})
    assert changed.made == ["split"]
    assert changed.states["total"] == "cached"


def test_raw_input_counts(run: Run, corpus: Path) -> None:
    run()
    (corpus / "more.txt").write_text("Because I could not stop for Death\n")
    assert run().made == DATA
    (corpus / "more.txt").unlink()
    assert run().made == []


def test_force_makes_the_same_beside_and_swaps(run: Run) -> None:
    before = run().artifact("count/long")
    forced = run(only=["count/long"], force=True)
    after = forced.artifact("count/long")
    assert forced.made == ["count/long"]
    assert (before.data[-4:], after.data[-6:]) == ("data", "data-1")
    assert after.output_digest == before.output_digest
    # Another run may still be reading the old one.
    assert Path(before.data).exists()
    assert run().made == []
    assert run(only=["count"], force=True).artifact("count/long").data.endswith("data-2")


def test_forced_with_other_content_is_an_error_and_the_old_stays(run: Run) -> None:
    before = run().artifact("count/long")
    other = {"settings": {"behave": ["count/long:hope.txt:other"]}}
    forced = run(other, only=["count/long"], force=True)
    assert forced.outcome.exit_code == 1
    assert "count/long is not deterministic" in forced.message("count/long")
    kept = forced.store.find("count/long", before.fingerprint)
    assert kept is not None
    assert kept.manifest == before.manifest
    assert kept.damage() == {}
    assert run().made == []


def test_a_model_may_come_out_different_when_forced(run: Run) -> None:
    before = run(until=None).artifact("model")
    forced = run(only=["model"], force=True)
    assert forced.outcome.exit_code == 0
    assert forced.artifact("model").output_digest != before.output_digest


def test_a_failure_keeps_dependents_from_running_and_nothing_else(run: Run) -> None:
    ran = run({"settings": {"behave": ["count/long:hope.txt:fail"]}}, until=None)
    assert ran.outcome.exit_code == 1
    assert ran.states == {
        "split": "made",
        "count/long": "failed",
        "count/short": "made",
        "total": "not_run",
        "model": "not_run",
    }
    assert ran.message("count/long") == "hope.txt is broken"
    assert "node_ended count/long failed" in ran.services.calls
    assert ran.services.calls[-1] == "close failed"
    again = run(until=None)
    assert again.made == ["count/long", "total", "model"]
    fingerprint = again.artifact("count/long").fingerprint
    assert again.store.failure("count/long", fingerprint) is None


def test_a_crash_leaves_its_traceback_beside(run: Run) -> None:
    ran = run({"settings": {"behave": ["count/long:hope.txt:crash"]}})
    message = ran.message("count/long")
    assert message.startswith("ZeroDivisionError: last line (traceback in ")
    record = json.loads(Path(message.partition(" in ")[2][:-1]).read_text())
    assert "toy_graph.py" in record["traceback"]


def test_a_full_disk_is_named(run: Run) -> None:
    ran = run({"settings": {"behave": ["count/long:hope.txt:full"]}})
    (failed,) = [n for n in ran.outcome.nodes if n.state == "failed"]
    assert "is full" in failed.message and ran.store.location in failed.message
    assert run().outcome.exit_code == 0


def test_damaged_input_is_named_with_the_mend(run: Run) -> None:
    before = run()
    part = before.artifact("count/long").local_path("hope.txt")
    part.write_bytes(part.read_bytes()[:-3])
    ran = run({"versions": {"total": 2}})
    (failed,) = [n for n in ran.outcome.nodes if n.state == "failed"]
    for words in ("count/long is damaged", "hope.txt", "bytes instead of", "--only count/long"):
        assert words in failed.message
    assert run(only=["count/long"], force=True).outcome.exit_code == 0
    again = run({"versions": {"total": 2}})
    assert again.made == ["total"]
    assert again.artifact("total").output_digest == before.artifact("total").output_digest


def test_a_failed_node_goes_on_from_its_parts_but_not_after_the_code_changed(run: Run) -> None:
    broken = {"settings": {"behave": ["count/long:nobody.txt:fail"]}}
    run(broken)
    assert run().artifact("count/long").figures["parts_before"] == 2
    run({**broken, "min": 5})
    # Another set of modules stands for changed code: VERSION and fingerprint stay.
    other = {"min": 5, "stage": {"modules": ("pipeline.results",)}}
    assert run(other).artifact("count/long").figures["parts_before"] == 0


def test_lost_documents_are_an_error(run: Run) -> None:
    ran = run({"settings": {"counts": {"in": 4, "out": 2, "duplicate": 1}}})
    assert ran.states["count/long"] == "failed"
    assert "1 are lost: 4 came in, but out 2, duplicate 1" in ran.message("count/long")


def test_what_a_node_declares_limits_what_runs_at_once(run: Run) -> None:
    slow = [f"count/{kind}:{name}:slow" for kind in ("long", "short") for name in ("hope.txt",)]
    seen = {}
    for cpus in (1, 2):
        ran = run({"min": cpus + 5, "settings": {"behave": slow}}, cpus=cpus, force=True)
        order = [(n, e) for n, e, _ in ran.services.events if n.startswith("count")]
        seen[cpus] = [event for _, event in order]
    assert seen[1] == ["started", "made", "started", "made"]
    assert seen[2] == ["started", "started", "made", "made"]


def test_a_node_that_needs_more_than_there_is_says_so(run: Run) -> None:
    ran = run({"cpus": 8})
    assert ran.outcome.exit_code == 1
    assert "split needs 8 CPUs, there are 2" in ran.message("split")


def test_only_with_a_missing_input_starts_nothing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="total needs count/long, which is not made"):
        run(only=["total"])
    with pytest.raises(UserError, match=r"nosuch.*is no node or stage"):
        run(only=["nosuch"])
    assert not (tmp_path / "store").exists()


def test_from_and_until(run: Run) -> None:
    assert run(until="count").made == DATA[:3]
    assert run(until=None, start=["total"]).made == ["total", "model"]
    with pytest.raises(UserError, match="--from total --until split selects no node"):
        run(until="split", start=["total"])


def test_a_node_between_that_turns_out_missing_fails_there(run: Run) -> None:
    run()
    ran = run({"lower": False}, only=["split", "total"])
    assert ran.states == {"split": "made", "total": "failed"}
    assert "needs count/long, which has to be made, but is not selected" in ran.message("total")
    assert ran.outcome.exit_code == 1


def test_missing_raw_input_is_the_users_mistake(run: Run, corpus: Path) -> None:
    shutil.rmtree(corpus)
    with pytest.raises(UserError, match="is not there"):
        run()


def test_what_a_node_lacks_here_is_said_before_anything_runs(corpus: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def lacks() -> None:
        asked.append("model")
        raise UserError("model needs an engine: pip install engine")

    given = [replace(n, check=lacks if n.name == "model" else None) for n in nodes(corpus, {})]
    store, services = Store(str(tmp_path / "store")), ToyServices()
    with pytest.raises(UserError, match="pip install engine"):
        run_graph(given, store, services)
    assert asked == ["model"] and not (tmp_path / "store").exists()
    # Not asked where it is not to be made: outside of the selection, or made before.
    run_graph(given, store, services, selection=Selection(until=("total",)))
    run_graph([replace(n, check=None) for n in given], store, ToyServices())
    run_graph(given, store, ToyServices())
    assert asked == ["model"]


def test_interrupted_in_good_order(run: Run, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    config = {"settings": {"behave": ["count/long:nobody.txt:hang"], "marker": str(marker)}}
    stop = StopSignal()
    _when(marker.exists, stop.set)
    ran = run(config, stop=stop)
    assert ran.outcome.exit_code == 3
    assert ran.states["count/long"] == "interrupted"
    assert ran.states["total"] == "not_run"
    assert ran.services.calls[-1] == "close interrupted"
    again = run()
    assert again.artifact("count/long").figures["parts_before"] == 2
    assert again.services.resumed["count/long"] == "run of count/long"


def test_a_node_that_does_not_listen_is_left_behind(run: Run) -> None:
    stop = StopSignal()
    started = time.monotonic()
    threading.Timer(0.5, stop.set).start()
    config = {"settings": {"behave": ["split:hope.txt:deaf"]}}
    ran = run(config, stop=stop, grace_seconds=0.5)
    assert time.monotonic() - started < 5
    assert ran.outcome.exit_code == 3
    assert "node_ended split interrupted" in ran.services.calls


def test_a_checkpoint_outlives_a_failure_and_goes_with_the_manifest(run: Run) -> None:
    run({"settings": {"behave": ["model:weights:fail"]}}, until=None)
    made = run(until=None).artifact("model")
    assert made.figures["resumed_at"] == 7
    assert sorted(p.name for p in Path(made.path).iterdir()) == [
        "attempt.json",
        "data",
        "lease.lock",
        "manifest.json",
    ]
    assert run(only=["model"], force=True).artifact("model").figures["resumed_at"] == 0


def test_the_manifest_tells_how_it_was_made(run: Run) -> None:
    ran = run()
    manifest = json.loads(Path(ran.artifact("total").path, "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["stage_version"] == 1
    assert manifest["inputs"]["a"] == {
        "node": "count/long",
        "fingerprint": ran.artifact("count/long").fingerprint,
        "output_digest": ran.artifact("count/long").output_digest,
    }
    assert manifest["versions"]["fingerprinted"].keys() == {"pyarrow"}
    assert manifest["tracking_run_id"] == "run of total"
    words = " ".join(_poems().values()).split()
    assert manifest["figures"] == {"words": len(words) + sum(len(w) >= 4 for w in words)}
    assert manifest["files"][0]["name"] == "total.json"
    assert ran.artifact("split").raw() == [
        {"path": name, "size": len(text)} for name, text in sorted(_poems().items())
    ]
    assert ran.artifact("split").result().counts == {"in": 4, "out": 4}


def test_content_does_not_depend_on_capacity(run: Run, tmp_path: Path) -> None:
    one = run(store=tmp_path / "one", cpus=1).store
    two = run(store=tmp_path / "two", cpus=2).store
    assert digests(one) == digests(two)


def test_nodes_of_the_toy_are_in_order(corpus: Path) -> None:
    from pipeline.graph import Graph

    assert Graph(nodes(corpus, {})).names == [
        "split",
        "count/long",
        "count/short",
        "total",
        "model",
    ]


def _poems() -> dict[str, str]:
    from toy_graph import POEMS

    return POEMS


def _when(condition: Callable[[], Any], action: Callable[[], Any]) -> None:
    def wait() -> None:
        for _ in range(200):
            if condition():
                break
            time.sleep(0.05)
        action()

    threading.Thread(target=wait, daemon=True).start()


def watching(corpus: Path, watched: int, **fields: Any) -> list[Node]:
    """The toy's graph, with `total` watching counts of words of `watched` letters."""
    given = {n.name: n for n in nodes(corpus, {})}
    long = given["count/long"]
    given["extra"] = replace(long, name="extra", config={"count": {"min": watched}})
    given["total"] = replace(given["total"], watches={"extra": "extra"}, **fields)
    return list(given.values())


def test_what_is_watched_is_made_before_but_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    store, until = Store(str(tmp_path / "store")), Selection(until=("total",))

    def run(given: list[Node], selection: Selection = until) -> dict[str, str]:
        services = ToyServices()
        outcome = run_graph(given, store, services, selection=selection)  # type: ignore[arg-type]
        return {n.node: n.state for n in outcome.nodes}

    assert run(watching(corpus, 3))["total"] == "made"
    [total] = store.artifacts("total")
    assert total.manifest["inputs"].keys() == {"a", "b"}
    assert total.manifest["watches"]["extra"]["node"] == "extra"
    assert set(json.loads(total.read_bytes("total.json"))) >= {"lamb"}
    states = run(watching(corpus, 5))
    assert (states["extra"], states["total"]) == ("made", "cached")
    only = Selection(only=("total",))
    assert run(watching(corpus, 6), only) == {"total": "cached"}
    newer = {"config": {"x": 1}}
    with pytest.raises(UserError, match="total needs extra, which is not made"):
        run(watching(corpus, 6, **newer), only)
    assert store.find("extra", "0") is None
    assert run(watching(corpus, 5, **newer), only) == {"total": "made"}
