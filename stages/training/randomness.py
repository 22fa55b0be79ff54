"""Randomness that is a function of its key: nothing to save, nothing to restore.

Every order and every dropout mask is drawn from a generator that is made anew from a key such as
(seed, "order", epoch, 17). So a run that resumes at step 1,000,000 draws what an undisturbed run
draws there.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray


def key(*parts: int | str) -> int:
    """128 bits of SHA-256 over `parts`; (1, "a") and ("1", "a") give different keys."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def permutation(size: int, *parts: int | str) -> NDArray[np.int64]:
    """A permutation of range(`size`), keyed by `parts`.

    Sorts raw Philox output: the raw stream of a bit generator is fixed across NumPy versions,
    `Generator.permutation` is not.
    """
    draws = np.random.Philox(key=key(*parts)).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Set torch's random state (CPU and CUDA) for one step on one rank."""
    # manual_seed takes 64 bits signed; 63 keep it positive.
    torch.manual_seed(key(seed, "dropout", step, rank) & (2**63 - 1))
