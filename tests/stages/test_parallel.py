"""How jobs are handed out; that all are done, whoever dies, `test_cluster_by_hand` tests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.parallel import MOST_AT_A_TIME, chunks


@given(st.integers(0, 5_000), st.integers(1, 300))
def test_every_job_is_handed_out_and_the_last_ones_alone(jobs: int, workers: int) -> None:
    sizes = chunks(jobs, workers)
    assert sum(sizes) == jobs
    assert sizes == sorted(sizes, reverse=True)
    assert all(1 <= size <= MOST_AT_A_TIME for size in sizes)
    left = jobs
    for size in sizes:
        # Never more than half of a worker's share, or workers would wait for the last chunk.
        assert (size - 1) * 2 * workers < left
        left -= size


def test_few_jobs() -> None:
    assert chunks(0, 2) == []
    assert chunks(3, 4) == [1, 1, 1]
    assert chunks(9, 2) == [3, 2, 1, 1, 1, 1]
    assert chunks(94, 2)[:3] == [8, 8, 8]
