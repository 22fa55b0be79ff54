from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.resources import free, missing, shares, that_fit
from pipeline.services import Capacity
from pipeline.stage import Granted, Resources

need = st.builds(
    Resources,
    cpus=st.sampled_from([0.5, 1, 2, 3]),
    gpus=st.sampled_from([0, 0, 1, 2]),
    memory_bytes=st.integers(0, 4),
)
capacity = st.builds(
    Capacity, cpus=st.integers(0, 9), gpus=st.integers(0, 3), memory_bytes=st.integers(0, 8)
)


@given(st.lists(need, max_size=5), capacity)
def test_never_more_than_there_is_and_never_less_than_needed(
    needs: list[Resources], whole: Capacity
) -> None:
    chosen = [needs[i] for i in that_fit(needs, whole)]
    granted = shares(chosen, whole)
    for one, got in zip(chosen, granted, strict=True):
        assert got.cpus >= one.cpus and got.gpus >= one.gpus
        assert got.gpus == 0 or one.gpus > 0
    pairs = zip(granted, chosen, strict=True)
    left = free(whole, [(got, one.memory_bytes) for got, one in pairs])
    assert min(left.cpus, left.gpus, left.memory_bytes) >= 0
    if chosen:
        assert left.cpus == 0
    # The first that fits by itself is never passed over.
    alone = [i for i, one in enumerate(needs) if missing(one, whole) is None]
    assert that_fit(needs, whole)[:1] == alone[:1]


def test_alone_means_everything() -> None:
    assert shares([Resources(1)], Capacity(8, 2, 0)) == [Granted(8, 0)]
    assert shares([Resources(1, 1)], Capacity(8, 2, 0)) == [Granted(8, 2)]
    assert shares([Resources(1), Resources(2)], Capacity(8, 0, 0)) == [
        Granted(4, 0),
        Granted(4, 0),
    ]


def test_what_is_missing_is_said() -> None:
    whole = Capacity(2, 0, 1 << 30)
    assert missing(Resources(2), whole) is None
    assert missing(Resources(4), whole) == "needs 4 CPUs, there are 2"
    assert missing(Resources(1, 1), whole) == "needs 1 GPUs, there are 0"
    assert missing(Resources(1, 0, 4 * 10**9), whole) == "needs 4.0 GB of memory, there are 1.1"
