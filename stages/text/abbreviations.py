"""Abbreviations whose full stop does not end a sentence, looked up for many places at once.

Only those that hardly ever end a sentence are listed: a wrong merge makes one long sentence, a
missed one two short ones. `etc.`, `usw.` or `a.m.` are not here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes

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


def _keys(words: str) -> npt.NDArray[np.bytes_]:
    padded = [word.encode().rjust(LONGEST, b"\0") for word in words.split()]
    return np.unique(np.array(padded, f"S{LONGEST}"))


_KEYS = _keys(_ALWAYS)
_KEYS_BEFORE_NUMBERS = _keys(_BEFORE_NUMBERS)
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
_STOPS_WORD = np.isin(np.arange(256), list(b" \t\n([{<\"'/-"))
_UPPER = np.isin(np.arange(256), list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
_DIGIT = np.isin(np.arange(256), list(b"0123456789"))
_FULL_STOP = ord(".")


def ends_with_abbreviation(
    data: Bytes,
    ends: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    previous: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Whether what stands before each end does not end a sentence, for all its full stop.

    That is an abbreviation, an initial ("J."), or a number that is a sentence of its own.

    Args:
        data: UTF-8 of all texts.
        ends: positions behind the last byte of a candidate; a space and more text follow.
        starts: the first position of each end's text; nothing before it is looked at.
        previous: the end of the candidate before, or the text's start.
    """
    result = np.zeros(len(ends), np.bool_)
    at = np.flatnonzero(data[np.maximum(ends - 1, 0)] == _FULL_STOP)
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
    before_number = _DIGIT[data[ends[at] + 1]] & np.isin(keys, _KEYS_BEFORE_NUMBERS)
    listed = (np.isin(keys, _KEYS) | before_number) & (length <= LONGEST)
    # A number that is all there is of a sentence ("1.", "12.") belongs to what follows.
    number = (_DIGIT[window] | ~inside).all(axis=1) & (length >= 1) & (length <= 3)
    number &= previous[at] >= ends[at] - 3 - length
    result[at] = initial | listed | number
    return result
