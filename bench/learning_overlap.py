"""The share of held-out word 13-grams that training text holds too.

`python -m bench.learning_overlap STORE/shard/FINGERPRINT` reads the shards of a run.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

WORDS = re.compile(r"\w+")
ORDER = 13
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def gram_hashes(ids: NDArray[np.uint64], order: int = ORDER) -> NDArray[np.uint64]:
    """64-bit hashes of all runs of `order` numbers: [len(ids) - order + 1], none for fewer."""
    count = len(ids) - order + 1
    if count < 1:
        return np.zeros(0, np.uint64)
    hashes = np.zeros(count, np.uint64)
    for place in range(order):
        # Mixed at each place, so that the order of the words counts; overflow is meant.
        hashes = (hashes ^ ids[place : place + count]) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


def overlap(
    training: Iterable[str], held_out: Iterable[str], order: int = ORDER
) -> tuple[int, int]:
    """How many of the held-out texts' n-grams of lower-cased words training texts hold.

    Returns:
        Those found, and all, each counted as often as it stands. Nothing joins two texts.
    """
    numbers: dict[str, int] = {}

    def hashed(texts: Iterable[str]) -> NDArray[np.uint64]:
        found = [np.zeros(0, np.uint64)]
        for text in texts:
            words = WORDS.findall(text.lower())
            ids = [numbers.setdefault(word, len(numbers) + 1) for word in words]
            found.append(gram_hashes(np.array(ids, np.uint64), order))
        return np.concatenate(found)

    known = np.unique(hashed(training))
    asked = hashed(held_out)
    return int(np.isin(asked, known).sum()), len(asked)


def main(words: list[str] | None = None) -> int:
    """Print the share."""
    parser = argparse.ArgumentParser(prog="python -m bench.learning_overlap", description=__doc__)
    parser.add_argument("shard", type=Path, metavar="FOLDER", help="of an artifact of stage shard")
    folder = parser.parse_args(words).shard / "data"
    texts = {
        split: (text for file in sorted(folder.glob(f"{split}-*.parquet")) for text in _texts(file))
        for split in ("train", "validation")
    }
    found, count = overlap(texts["train"], texts["validation"])
    share = found / count if count else 0.0
    print(f"{found:,} of {count:,} held-out {ORDER}-grams stand in training text: {share:.2%}")
    return 0


def _texts(file: Path) -> list[str]:
    found: list[str] = pq.read_table(file, columns=["text"])["text"].to_pylist()
    return found


if __name__ == "__main__":
    raise SystemExit(main())
