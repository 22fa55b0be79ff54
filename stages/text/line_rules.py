"""C4's rules about single lines (Raffel et al., 2020, section 2.2), which take lines out.

A line that does not end as a sentence does is a menu, a heading or a button; one of few words, or
with "javascript" in it, is hardly prose either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from stages.text.buffers import Bytes, Offsets
from stages.text.segments import Flags, Positions, lines, words

# The paper's full stop, exclamation and question mark, and end quotation mark; then those of other
# scripts: » ; ؟ ۔ ; “ ” ’ … । ॥ ። 。 」 』 ． ！ ？
_ONE = np.isin(np.arange(256), list(b".!?\"'"))
_TWO = np.array([int.from_bytes(mark.encode()) for mark in "»؟۔"], np.int64)
_THREE = np.array([int.from_bytes(mark.encode()) for mark in "“”’…।॥።。」』．！？"], np.int64)


def kept_lines(
    data: Bytes,
    offsets: Offsets,
    *,
    terminated: bool,
    min_words: int | None,
    phrases: Sequence[bytes],
    counts: Counter[str],
) -> tuple[Bytes, Offsets]:
    """Texts without the lines that a rule takes out; a blank line between two others stays.

    Args:
        data: uint8, cleaned texts end to end.
        offsets: n + 1, where each begins.
        terminated: take out lines that do not end in terminal punctuation.
        min_words: take out lines of fewer words.
        phrases: take out lines that hold one of these, in lower case (of ASCII).
        counts: added to: unterminated_lines, short_lines, phrase_lines (the first rule counts).
    """
    starts, ends = lines(data, offsets)
    keep = np.ones(len(starts), np.bool_)
    if terminated:
        keep &= ends_sentence(data, starts, ends)
        counts["unterminated_lines"] += int(np.sum(~keep))
    if min_words is not None:
        first_words, _ = words(data, offsets)
        number = np.diff(np.searchsorted(first_words, np.append(starts, len(data))))
        short = keep & (number < min_words)
        counts["short_lines"] += int(np.sum(short))
        keep &= ~short
    if phrases:
        unwanted = keep & _with_phrase(data, starts, ends, phrases)
        counts["phrase_lines"] += int(np.sum(unwanted))
        keep &= ~unwanted
    if keep.all():
        return data, offsets
    return _only(data, offsets, starts, ends, keep)


def ends_sentence(data: Bytes, starts: Positions, ends: Positions) -> Flags:
    """Whether each line ends in a mark that ends a sentence or quotation."""
    found: Flags = _ONE[data[ends - 1]]
    for width, marks in ((2, _TWO), (3, _THREE)):
        at = np.flatnonzero(ends - starts >= width)
        code = np.zeros(len(at), np.int64)
        for i in range(width, 0, -1):
            code = code << 8 | data[ends[at] - i]
        found[at] |= np.isin(code, marks)
    return found


def _with_phrase(
    data: Bytes, starts: Positions, ends: Positions, phrases: Sequence[bytes]
) -> Flags:
    found = np.zeros(len(starts), np.bool_)
    lower = data.tobytes().lower()
    for phrase in phrases:
        at = lower.find(phrase)
        while at >= 0:
            line = int(np.searchsorted(starts, at, side="right")) - 1
            if line >= 0 and at + len(phrase) <= ends[line]:
                found[line] = True
                at = int(ends[line]) - 1
            at = lower.find(phrase, at + 1)
    return found


def _only(
    data: Bytes, offsets: Offsets, starts: Positions, ends: Positions, keep: Flags
) -> tuple[Bytes, Offsets]:
    row = np.searchsorted(offsets, starts, side="right") - 1
    # How many blank lines stand before each line: one is kept where a gap holds any.
    blank = np.zeros(len(starts), np.int64)
    blank[1:] = starts[1:] - ends[:-1] > 1
    blank = np.cumsum(blank)
    kept = np.flatnonzero(keep)
    starts, ends, row, blank = starts[kept], ends[kept], row[kept], blank[kept]
    edges = np.zeros(len(data) + 1, np.int8)
    edges[starts] += 1
    edges[ends] -= 1
    stays = np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)
    follows = np.flatnonzero(row[1:] == row[:-1]) + 1
    stays[starts[follows] - 1] = True
    apart = follows[blank[follows] > blank[follows - 1]]
    stays[ends[apart - 1]] = True
    gone = np.flatnonzero(~stays)
    return data[stays], offsets - np.searchsorted(gone, offsets)
