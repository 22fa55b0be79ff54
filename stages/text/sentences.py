"""Sentence ends, as byte offsets, for whole columns of cleaned text.

A method finds candidate ends; they are moved back over white space, ends of blank sentences go, and
the end of each text is one. So sentence k of a text is `text[ends[k - 1]:ends[k]]` (from 0 for the
first) with white space at its start only, and all sentences together are the text.

"icu" is ICU's sentence rules (UAX #29), and behind them a merge over a short list of abbreviations:
faster and better than ICU's own suppressions. "lines" takes every line as a sentence. "sentencex"
knows the abbreviations of many languages. "package.module:function" is a function of one's own
(`splitters`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.text.abbreviations import ends_with_abbreviation
from stages.text.buffers import Bytes, Offsets, Positions, byte_table, text_buffer
from stages.text.icu import icu_ends
from stages.text.splitters import ends_by, load_splitter, sentencex_splitter

METHODS = ("icu", "lines", "sentencex")

_SPACE, _NEWLINE = 32, 10
_LOWER_CASE = byte_table(b"abcdefghijklmnopqrstuvwxyz")
_BLANK = byte_table(b" \t\n\v\f\r")


def sentence_ends(texts: pa.Array, method: str = "icu", language: str = "en") -> pa.ListArray:
    """Ends of the sentences of each text: list<uint32>, rising byte offsets into its UTF-8.

    The last end is the text's length without white space behind; a blank text has none. A newline
    always ends a sentence, but a function of one's own may say otherwise. The result of a text does
    not depend on its neighbours.

    Args:
        texts: strings [n], cleaned.
        method: one of `METHODS`, or "package.module:function".
        language: ISO 639 code; only sentencex asks for it.

    Raises:
        ValueError: an unknown method, a null text, or a column not of strings.
        SplitterError: the function cannot be imported, raises, or gives something else than the
            sentences of the text.
    """
    if method not in METHODS and ":" not in method:
        raise ValueError(
            f"unknown sentence method {method!r}: use {', '.join(METHODS)} or "
            '"package.module:function"'
        )
    if method not in ("icu", "lines"):
        text_buffer(texts)  # refuses nulls and other columns
        own = sentencex_splitter(language) if method == "sentencex" else load_splitter(method)
        return ends_by(own, texts, method)
    data, starts = _lines_of_texts(texts)
    ends = icu_ends(data) if method == "icu" else np.flatnonzero(data == _NEWLINE)
    ends, document = _trim(data, starts, ends)
    if method == "icu":
        keep = ~_inside_sentence(data, starts, ends, document)
        ends, document = ends[keep], document[keep]
    first = np.searchsorted(document, np.arange(len(starts)))
    local = (ends - starts[document]).astype(np.uint32)
    return pa.ListArray.from_arrays(pa.array(first.astype(np.int32)), pa.array(local))


def _lines_of_texts(texts: pa.Array) -> tuple[Bytes, Offsets]:
    """All texts with a newline behind each; and where each begins, and the end of all."""
    _, offsets = text_buffer(texts)
    starts = offsets + np.arange(len(offsets))
    if not len(texts):
        return np.zeros(0, np.uint8), starts
    nothing, newline = pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string())
    ended = pc.binary_join_element_wise(texts.cast(pa.large_string()), nothing, newline)
    return text_buffer(ended)[0], starts


def _trim(data: Bytes, starts: Offsets, ends: Positions) -> tuple[Positions, Positions]:
    """Move ends back over white space, drop those of blank sentences; also each one's document."""
    ends = ends.copy()
    document = np.searchsorted(starts, ends - 1, side="right") - 1
    start = starts[document]
    active = np.flatnonzero(ends > start)
    while len(active):
        active = active[_BLANK[data[ends[active] - 1]]]
        ends[active] -= 1
        active = active[ends[active] > start[active]]
    previous = np.append(-1, ends[:-1])
    keep = (ends > start) & (ends > previous)
    return ends[keep], document[keep]


def _inside_sentence(
    data: Bytes, starts: Offsets, ends: Positions, document: Positions
) -> npt.NDArray[np.bool_]:
    """Ends behind an abbreviation or before a small letter, with more text on the line."""
    more = np.flatnonzero(document[:-1] == document[1:])
    inside = np.zeros(len(ends), np.bool_)
    # A newline ends a sentence whatever it is. White space that is not cleaned may be long.
    following = ends[more]
    while len(more) and (blank := data[following] == _SPACE).any():
        following = following + blank
    on_line = (data[following] != _NEWLINE) & (following > ends[more])
    more, following = more[on_line], following[on_line]
    start = starts[document]
    previous = np.maximum(np.append(0, ends[:-1]), start)
    inside[more] = ends_with_abbreviation(data, ends[more], following, start[more], previous[more])
    # As UAX #29 has it for full stops: “Why?” she asked.
    inside[more] |= _LOWER_CASE[data[following]]
    return inside
