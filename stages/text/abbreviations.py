"""Abbreviations whose full stop does not end a sentence, looked up for many places at once.

Only those that hardly ever end a sentence are listed: a wrong merge makes one long sentence, a
missed one two short ones. `etc.`, `usw.` or `a.m.` are not here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes, Flags, Positions, byte_table

_ALWAYS = """
mr mrs ms messrs mme mlle dr drs prof profs rev hon gov rep col lt sgt capt cmdr adm maj st mt ft
vs cf viz e.g i.e fig figs eq eqs dept univ ave blvd approx ca jan feb apr aug sept oct nov dec u.s
bzw d.h z.b u.a o.ä u.ä vgl sog evtl ggf inkl zzgl nr hr hrn frl dipl z.t v.a i.d.r s.o s.u verf
hrsg jh jhd mio mrd geb u.u d.i v.chr n.chr chr
p.ex sr sra srta dña uds ee.uu p.ej pág págs sigg dott avv dhr mevr bijv m.b.t
"""
"""English; German; French, Spanish, Italian, Dutch. In lower case, without the last full stop."""

_BEFORE_NUMBERS = """
no nos p pp art abs sec sect ch chap vol vols pt bd mar jun jul sep s rn ziff kap tab max min
"""
"""Words that may end a sentence, but do not where a number follows ("No. 5", "Abs. 2")."""

LONGEST = 12
"""Bytes that are looked back over."""


_LETTERS = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))
_DIGITS = b"0123456789"
_STOPS = b" \t\n([{<\"'/-"
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
_STOPS_WORD = byte_table(_STOPS)
_BLANK = byte_table(b" \t\n\v\f\r")
_UPPER = byte_table(range(0x41, 0x5B))
_DIGIT = byte_table(_DIGITS)
_FULL_STOP = ord(".")


def _keys(words: str) -> npt.NDArray[np.bytes_]:
    padded = [word.encode().rjust(LONGEST, b"\0") for word in words.split()]
    return np.unique(np.array(padded, f"S{LONGEST}"))


_KEYS = _keys(_ALWAYS)
_KEYS_BEFORE_NUMBERS = _keys(_BEFORE_NUMBERS)


def _last_pairs() -> Flags:
    """[256, 256] by the two bytes before a full stop: whether it is worth looking at the word."""
    table = np.zeros((256, 256), np.bool_)
    # A word of one letter, and all that is not plain.
    outside = np.setdiff1d(np.arange(256), list(_LETTERS + _DIGITS + b",:;!?"))
    table[outside] = True
    table[:, list(_DIGITS)] = True
    ends = [w.encode()[-2:] for w in f"{_ALWAYS} {_BEFORE_NUMBERS}".split() if len(w) > 1]
    for first, second in ends:
        table[np.ix_(np.equal(_LOWER, first), np.equal(_LOWER, second))] = True
    return table


_LAST_PAIRS = _last_pairs()


def ends_with_abbreviation(
    data: Bytes, ends: Positions, following: Positions, starts: Positions, previous: Positions
) -> Flags:
    """Whether what stands before each end does not end a sentence, for all its full stop.

    That is an abbreviation, an initial ("J."), or a number that is a sentence of its own.

    Args:
        data: UTF-8 of all texts.
        ends: positions behind the last byte of a candidate.
        following: where, behind white space, more text of the same line stands.
        starts: the first position of each end's text; nothing before it is looked at.
        previous: the end of the candidate before, or the text's start.
    """
    result = np.zeros(len(ends), np.bool_)
    at = np.flatnonzero(data[np.maximum(ends - 1, 0)] == _FULL_STOP)
    # Most words end in two letters that no abbreviation ends in.
    first, second = data[np.maximum(ends[at] - 3, 0)], data[np.maximum(ends[at] - 2, 0)]
    at = at[_LAST_PAIRS[first, second] | (ends[at] - starts[at] < 3)]
    if not len(at):
        return result
    # One row an end: the bytes before the full stop, blanked up to the last that is not the word's.
    columns = ends[at, None] - 1 + np.arange(-LONGEST - 1, 0)[None, :]
    window = data[np.maximum(columns, 0)]
    outside = _STOPS_WORD[window] | (columns < starts[at, None])
    # Curly quotes and dashes (U+2010 to U+203F) stop a word too: E2 80 xx.
    outside[:, 2:] |= (window[:, :-2] == 0xE2) & (window[:, 1:-1] == 0x80)
    inside = ~np.maximum.accumulate(outside[:, ::-1], axis=1)[:, ::-1]
    length = inside.sum(axis=1)
    # `I.` ends sentences more often than it stands for a name.
    initial = (length == 1) & _UPPER[window[:, -1]] & (window[:, -1] != ord("I"))
    word = np.where(inside, _LOWER[window], 0)[:, 1:].astype(np.uint8)
    keys = np.ascontiguousarray(word).view(f"S{LONGEST}")[:, 0]
    before_number = _DIGIT[data[following[at]]] & _among(keys, _KEYS_BEFORE_NUMBERS)
    listed = (_among(keys, _KEYS) | before_number) & (length <= LONGEST)
    # A number that is all there is of a sentence ("1.", "12.") belongs to what follows; a bracket
    # may stand before it.
    number = (_DIGIT[window] | ~inside).all(axis=1) & (length >= 1) & (length <= 3)
    numbers = np.flatnonzero(number)
    start, begin = (ends[at] - 1 - length)[numbers], previous[at][numbers]
    near = begin >= start - 2
    while (blank := _BLANK[data[begin]]).any():
        begin = begin + blank
    number[numbers] = near | (begin == start)
    result[at] = initial | listed | number
    return result


def _among(keys: npt.NDArray[np.bytes_], those: npt.NDArray[np.bytes_]) -> Flags:
    found: Flags = those[np.minimum(np.searchsorted(those, keys), len(those) - 1)] == keys
    return found
