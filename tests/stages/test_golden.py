"""Each data stage's output on a small fixed corpus, beside its VERSION.

A digest that changed means that the stage makes something else: raise its `version` in
`stages/stage_list.py` (artifacts of users become stale, as they should), and write it here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages import stage_list
from tests.conftest import Line

pytestmark = pytest.mark.slow

GOLDEN = json.loads((Path(__file__).parent / "data/golden.json").read_text())
STAGES = {
    "shard": stage_list.SHARD,
    "vocab": stage_list.VOCAB,
    "pairs/64": stage_list.PAIRS,
    "mask/64": stage_list.MASK,
    "mask/64-heldout": stage_list.MASK,
}


@pytest.mark.timeout(400)
def test_digests_have_not_changed(line: Line) -> None:
    found = {}
    for path in line.store.rglob("manifest.json"):
        manifest = json.loads(path.read_text())
        if manifest["node"] not in STAGES:
            continue
        found[manifest["node"]] = {
            "version": STAGES[manifest["node"]].version,
            "output_digest": manifest["output_digest"],
        }
    assert found == GOLDEN, json.dumps(found, indent=1)
