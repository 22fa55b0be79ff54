"""Sentence ends, as byte offsets, for whole columns of cleaned text.

A method finds candidate ends; they are moved back over white space, ends of blank sentences go, and
the end of each text is one. So sentence k of a text is `text[ends[k - 1]:ends[k]]` (from 0 for the
first) with white space at its start only, and all sentences together are the text.

"icu" is ICU's sentence rules (UAX #29), and behind them a merge over a short list of abbreviations:
faster and better than ICU's own suppressions. "lines" takes every line as a sentence.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.text.abbreviations import ends_with_abbreviation
from stages.text.buffers import Bytes, Offsets, text_buffer

Method = Literal["icu", "lines"]

GROUP_BYTES = 128_000
"""Text handed to ICU in one call: a call a document costs more than the splitting itself."""

_SPACE, _NEWLINE = 32, 10
_LOWER_CASE = np.isin(np.arange(256), list(b"abcdefghijklmnopqrstuvwxyz"))
_BLANK = np.isin(np.arange(256), list(b" \t\n\v\f\r"))

Positions = npt.NDArray[np.int64]


def sentence_ends(texts: pa.Array, method: Method = "icu") -> pa.ListArray:
    """Ends of the sentences of each text: list<uint32>, rising byte offsets into its UTF-8.

    The last end is the text's length without white space behind; a blank text has none. A newline
    always ends a sentence. The result of a text does not depend on its neighbours.

    Raises:
        ValueError: an unknown method, a null text, or a column not of strings.
    """
    if method not in ("icu", "lines"):
        raise ValueError(f"unknown sentence method {method!r}: use icu or lines")
    data, offsets = text_buffer(texts)
    breaks = np.union1d(np.flatnonzero(data == _NEWLINE) + 1, offsets[1:])
    ends = breaks
    if method == "icu" and len(data):
        ends = np.union1d(breaks, _icu_ends(data, offsets, breaks))
    ends, document = _trim(data, offsets, ends)
    if method == "icu":
        keep = ~_inside_sentence(data, offsets, ends, document)
        ends, document = ends[keep], document[keep]
    first = np.searchsorted(document, np.arange(len(offsets)))
    local = (ends - offsets[document]).astype(np.uint32)
    return pa.ListArray.from_arrays(pa.array(first.astype(np.int32)), pa.array(local))


def _icu_ends(data: Bytes, offsets: Offsets, breaks: Positions) -> Positions:
    """What ICU says, as positions in `data`. Groups are cut at hard breaks (rising `breaks`)."""
    cuts = [0]
    while cuts[-1] < len(data):
        # The last hard break inside the group's size, or else the first one behind it.
        at = int(np.searchsorted(breaks, cuts[-1] + GROUP_BYTES, side="right")) - 1
        if breaks[at] <= cuts[-1]:
            at += 1
        cuts.append(int(breaks[at]))
    found = []
    for start, end in pairwise(cuts):
        # Texts that end inside the group are set apart by a newline, where ICU always ends.
        low, high = np.searchsorted(offsets, (start + 1, end))
        inner = np.unique(offsets[low:high])
        edges = [start, *inner.tolist(), end]
        pieces = [data[a:b].tobytes() for a, b in pairwise(edges)]
        joined = b"\n".join(pieces)
        ends = _breaks_of(joined)
        separators = inner - start + np.arange(len(inner))
        found.append(ends - np.searchsorted(separators, ends) + start)
    return np.concatenate(found)


def _breaks_of(text: bytes) -> Positions:
    """Ends of ICU's sentences in `text`, as byte offsets."""
    # Imported here: ICU's data is large, and "lines" does without.
    from icu4py.breakers import SentenceBreaker

    segments = SentenceBreaker(text.decode(), "und").segments()
    units = np.fromiter((end for _, end in segments), np.int64)
    if text.isascii():
        return units
    # ICU counts UTF-16 units: one a character of up to three bytes, two of one of four. The bytes
    # that add none are continuation bytes, except the first of each character of four.
    data = np.frombuffer(text, np.uint8)
    surplus = (data & 0xC0) == 0x80
    surplus[np.flatnonzero(data >= 0xF0) + 1] = False
    at = np.flatnonzero(surplus)
    return units + np.searchsorted(at - np.arange(len(at)), units, side="right")


def _trim(data: Bytes, offsets: Offsets, ends: Positions) -> tuple[Positions, Positions]:
    """Move ends back over white space, drop those of blank sentences; also each one's document."""
    ends = ends.copy()
    document = np.searchsorted(offsets, ends, side="left") - 1
    # `offsets` may hold equal values (empty texts): the first of them is the text that ends there.
    start = offsets[np.maximum(document, 0)]
    active = np.flatnonzero(ends > start)
    while len(active):
        active = active[_BLANK[data[ends[active] - 1]]]
        ends[active] -= 1
        active = active[ends[active] > start[active]]
    previous = np.append(-1, ends[:-1])
    keep = (ends > start) & (ends > previous)
    return ends[keep], document[keep]


def _inside_sentence(
    data: Bytes, offsets: Offsets, ends: Positions, document: Positions
) -> npt.NDArray[np.bool_]:
    """Ends behind an abbreviation or before a small letter, with more text on the line."""
    more = np.flatnonzero(document[:-1] == document[1:])
    more = more[data[ends[more]] == _SPACE]  # a newline ends a sentence whatever it is
    inside = np.zeros(len(ends), np.bool_)
    starts = offsets[document]
    previous = np.maximum(np.append(0, ends[:-1]), starts)
    inside[more] = ends_with_abbreviation(data, ends[more], starts[more], previous[more])
    # As UAX #29 has it for full stops: “Why?” she asked.
    inside[more] |= _LOWER_CASE[data[ends[more] + 1]]
    return inside
