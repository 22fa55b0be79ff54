"""The whole chain on one core beside what others run, on the same documents, in turn."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.documents import read_lines, write_lines
from bench.peers import Peer, find
from bench.rounds import alternate
from bench.serial import STEPS, Chain, Prepared, validation_share
from bench.settings import Settings

OURS = "clozeline"
WARM_UP_DOCUMENTS, WARM_UP_BYTES = 12, 300_000


def measure(settings: Settings) -> dict[str, Any]:
    """Seconds of each side and round, MB/s/core, and how many times each peer we are.

    Every round of ours starts with workers, tokenisers and folders that are new: no word has been
    seen before. What a process does once (imports, opening libraries) is done before, for all.
    """
    texts = read_lines(settings.documents)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    share = validation_share(len(texts), megabytes * 1e6)
    steps: list[Prepared] = []

    chains = [_chain(settings, settings.documents, share) for _ in range(settings.rounds)]

    def ours() -> None:
        steps.append(chains.pop()())

    peers, absent = find(settings.vocab_file, texts) if settings.peers else ([], [])
    _warm_up(settings, texts)
    for peer in peers:
        peer(texts[:WARM_UP_DOCUMENTS])
    rows: dict[str, int] = {}

    def theirs(peer: Peer) -> None:
        rows[peer.name] = peer(texts)

    sides: dict[str, Callable[[], object]] = {OURS: ours}
    sides |= {peer.name: functools.partial(theirs, peer) for peer in peers}
    times = alternate(sides, settings.rounds)
    speeds = {name: megabytes / t.seconds for name, t in times.items()}
    return {
        "megabytes": megabytes,
        "documents": len(texts),
        "tokens": steps[0].tokens,
        "rounds": settings.rounds,
        "mb_per_second_core": speeds,
        "mb_per_cpu_second": {name: megabytes / t.cpu_seconds for name, t in times.items()},
        "times_as_fast_as": {p.name: speeds[OURS] / speeds[p.name] for p in peers},
        "seconds": {name: t.clock for name, t in times.items()},
        "cpu_seconds": {name: t.cpu for name, t in times.items()},
        "rows": rows,
        "ms_per_mb": {s: 1e3 * median(row.seconds[s] for row in steps) / megabytes for s in STEPS},
        "about": {peer.name: peer.about for peer in peers},
        "left_out": absent,
    }


def _warm_up(settings: Settings, texts: list[str]) -> None:
    """A few documents through the chain: enough of them to be held out, too."""
    few = settings.folder / "few.jsonl"
    sizes = itertools.accumulate(len(text.encode()) for text in texts)
    enough = next((i for i, size in enumerate(sizes) if size > WARM_UP_BYTES), len(texts))
    write_lines(few, texts[: max(4 * WARM_UP_DOCUMENTS, enough + 1)])
    _chain(settings, few, 0.4)()


def _chain(settings: Settings, corpus: Path, share: float) -> Chain:
    store = Path(tempfile.mkdtemp(prefix="chain-", dir=settings.folder))
    return Chain(corpus, store, settings.vocab_file, f"corpus.validation_share={share}")
