"""How workers are laid on nodes: pure arithmetic, so no Ray here (test_cluster_by_hand has it)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.nodes import Room, places, share_per_worker, watch_room

rooms = st.builds(Room, st.integers(0, 64).map(float), st.integers(0, 8).map(float))


@given(st.integers(1, 12), st.integers(1, 128), st.lists(rooms, min_size=1, max_size=6))
@example(3, 4, [Room(2), Room(2)])
@example(7, 64, [Room(64)])
def test_a_share_fits_the_nodes_and_the_grant_and_no_larger_one_does(
    workers: int, granted: int, nodes: list[Room]
) -> None:
    share = share_per_worker(workers, granted, nodes)
    assert share >= 0 and share * workers <= granted
    if not sum(node.cpus for node in nodes):
        return
    assert places(nodes, share) >= workers
    # Ray counts CPUs in ten thousandths.
    larger = share + 1e-4
    assert larger * workers > granted or places(nodes, larger) < workers


@pytest.mark.parametrize(
    ("workers", "granted", "nodes", "gpus", "share"),
    [
        (1, 2, [Room(1), Room(1)], 0, 1),
        (2, 2, [Room(1), Room(1)], 0, 1),
        (2, 1, [Room(1)], 0, 0.5),
        (3, 4, [Room(2), Room(2)], 0, 1),
        (3, 100, [Room(64), Room(16)], 0, 21.3333),
        # Only nodes with a GPU can take a worker that wants one.
        (1, 48, [Room(32), Room(16, 2)], 1, 16),
        (3, 48, [Room(32, 1), Room(16, 2)], 1, 8),
        (4, 48, [Room(8, 4), Room(8, 4)], 2, 4),
    ],
)
def test_shares(workers: int, granted: int, nodes: list[Room], gpus: int, share: float) -> None:
    assert share_per_worker(workers, granted, nodes, gpus) == share


def test_too_little_room_while_training_is_said_once_and_so_is_its_end() -> None:
    notes: list[str] = []
    looked = threading.Event()
    seen = [[Room(1), Room(1)], [Room(1)], [Room(1)], [Room(1), Room(1)], [Room(1), Room(1)]]

    def look() -> list[Room]:
        if len(seen) == 1:
            looked.set()
        return seen.pop(0) if len(seen) > 1 else seen[0]

    context: Any = SimpleNamespace(progress=SimpleNamespace(note=notes.append))
    with watch_room(context, 2, 1.0, 0.0, look, seconds=0.001):
        assert looked.wait(10)
    assert len(notes) == 2
    assert "1 of 2 training workers" in notes[0] and "start it again" in notes[0]
    assert "enough nodes again" in notes[1]
