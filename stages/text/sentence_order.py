"""Sentence order (ALBERT, Lan et al., 2020, arXiv:1909.11942): two segments that follow one
another in a document, in order or swapped.

The walk that fills a chunk ends in a sentence that is longer than others (long ones more often
cross the border), so walking forwards alone makes the later segment the longer one: in a third of
the cases lengths would tell the order at a row length of 64. Half of the text is therefore walked
backwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.text.chunks import Sentences, make_chunks
from stages.text.random import Stream

Int64s = NDArray[np.int64]

LONG_DOCUMENT = 4
"""A document of so many targets of tokens is walked from its middle outwards, others from an end
that is drawn."""

SECTION = 32
"""Targets of tokens in a section of a longer document; each is walked so."""


@dataclass(frozen=True)
class OrderedChunks:
    """Chunks of two or more sentences; the earlier segment is first..middle - 1.

    Attributes:
        first, middle, last: [n] sentences.
        swapped: [n] whether the later segment becomes A; half of them, to one.
        lost: sentences that stand alone.
    """

    first: Int64s
    middle: Int64s
    last: Int64s
    swapped: NDArray[np.bool_]
    lost: Int64s


def ordered_chunks(
    sentences: Sentences, targets: Int64s, room: int, stream: Stream
) -> OrderedChunks:
    """Cut documents into chunks, split these and draw which are swapped.

    Args:
        sentences: without empty ones.
        targets: [D] from `chunks.draw_targets`.
        room: tokens of both segments, at most.
        stream: where the draws come from.
    """
    bounds, owner, backwards = _walks(sentences, targets, stream.child("walks"))
    size = np.diff(bounds)
    turned = np.repeat(backwards, size)
    # Position p of a walk that goes backwards is sentence `mirror - p`.
    mirror = np.repeat(bounds[:-1] + bounds[1:] - 1, size)
    place = np.arange(len(sentences.lengths))
    walked = np.where(turned, mirror - place, place)
    chunks = make_chunks(
        Sentences(
            lengths=sentences.lengths[walked],
            documents=bounds,
            origins=sentences.origins[owner],
            # No sentence is cut: its second half could only be read after the first.
            word_starts=np.zeros(int(sentences.offsets[-1]), dtype=np.bool_),
        ),
        targets[owner],
        room,
    )
    back = turned[chunks.first]
    first = np.where(back, mirror[chunks.first] - chunks.last + 1, chunks.first)
    last = np.where(back, mirror[chunks.first] - chunks.first + 1, chunks.last)
    count = len(first)
    middle = first + 1 + stream.child("splits").below(last - first - 1)
    coins = (stream.child("labels").uint32((count + 1) // 2) & 1).astype(np.bool_)
    swapped = np.repeat(coins, 2)[:count] ^ (np.arange(count) % 2 == 1)
    return OrderedChunks(first, middle, last, swapped, walked[chunks.lost])


def _walks(
    sentences: Sentences, targets: Int64s, stream: Stream
) -> tuple[Int64s, Int64s, NDArray[np.bool_]]:
    """Where walks start and end [w + 1], whose documents they are, and which go backwards."""
    starts, ends = sentences.documents[:-1], sentences.documents[1:]
    tokens = sentences.offsets[ends] - sentences.offsets[starts]
    long = tokens >= LONG_DOCUMENT * targets
    # Two walks a section, one of them empty where a document is walked from one end.
    walks = 2 * np.maximum(1, tokens // (SECTION * targets))
    owner = np.repeat(np.arange(len(starts)), walks)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(walks) - walks, walks)
    head = sentences.offsets[starts][owner] + tokens[owner] * number // walks[owner]
    bounds = np.searchsorted(sentences.offsets, head)
    from_end = (stream.uint32(len(starts)) & 1).astype(np.bool_)
    turn = np.where(from_end, ends, starts)[owner]
    bounds = np.where(long[owner] | (number == 0), bounds, turn)
    return np.append(bounds, len(sentences.lengths)), owner, number % 2 == 0
