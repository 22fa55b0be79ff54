"""Unicode NFC on the byte buffer of a column: only texts that it may change are looked at."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections import Counter

import numpy as np

from stages.text.buffers import Bytes, Flags, Offsets, Positions

_FIRST_NOT_INERT = 0xCC


def _not_inert() -> Flags:
    """By lead byte: whether NFC may change a character or what stands before it."""
    table = np.zeros(256, np.bool_)
    table[_FIRST_NOT_INERT:0xD0] = True  # combining marks, Greek
    table[0xD2] = True
    table[0xD4:0xE4] = True  # Armenian to kana; E1, E2, E3 are looked at closer
    table[0xEA] = table[0xED] = table[0xEE] = table[0xEF] = True
    table[0xF0:0xF5] = True
    return table


_NOT_INERT = _not_inert()

_INDIC = range(0x800, 0x1000)
"""What the lead byte E0 stands for: Indic scripts, Thai, Lao, Tibetan; marks are many there."""


def _indic() -> tuple[Bytes, Flags, Flags, Flags]:
    """By character of `_INDIC`: combining class; NFC changes it; first, second of a composition."""
    classes = np.array([unicodedata.combining(chr(code)) for code in _INDIC], np.uint8)
    changes = np.array([not unicodedata.is_normalized("NFC", chr(code)) for code in _INDIC])
    first, second = np.zeros((2, len(_INDIC)), np.bool_)
    for code in _INDIC:
        parts = unicodedata.decomposition(chr(code)).split()
        # What is normally decomposed is never composed.
        if len(parts) == 2 and not parts[0].startswith("<") and not changes[code - _INDIC[0]]:
            first[int(parts[0], 16) - _INDIC[0]] = second[int(parts[1], 16) - _INDIC[0]] = True
    return classes, changes, first, second


_CLASS, _CHANGES, _FIRST, _SECOND = _indic()


def nfc_candidates(data: Bytes, offsets: Offsets) -> Positions:
    """Indices of the texts that NFC may change: a quick check on lead bytes, never too few.

    Latin, Cyrillic, Vietnamese, Chinese, Japanese, composed Korean, punctuation and emoji pass.
    """
    suspects = data >= _FIRST_NOT_INERT
    if np.count_nonzero(suspects) > len(data) // 16:
        # Leave out the letters that are many: E4 to E9 are Chinese.
        suspects &= (data < 0xE4) | (data > 0xE9)
    at = np.flatnonzero(suspects)
    lead = data[at]
    doubted = _NOT_INERT[lead]
    at, lead = at[doubted], lead[doubted]
    if not len(at):
        return np.zeros(0, np.int64)
    second = data[np.minimum(at + 1, len(data) - 1)]
    third = data[np.minimum(at + 2, len(data) - 1)]
    inert = (
        ((lead == 0xE1) & ((second == 0xBA) | (second == 0xBB)))
        | ((lead == 0xE2) & (second == 0x80) & (third >= 0x82))
        | ((lead == 0xE3) & (second == 0x80) & (third < 0xAA))
        | ((lead == 0xE3) & (second == 0x82) & (third != 0x99) & (third != 0x9A))
        | ((lead == 0xE3) & ((second == 0x81) | (second >= 0x83)))
        | ((lead == 0xEA) & (second >= 0xB0))
        | ((lead == 0xED) & (second < 0x9E))
        | ((lead == 0xEF) & (second >= 0xBC))
        | ((lead == 0xF0) & (second >= 0x9F) & (second < 0xAF))
    )
    inert[lead == 0xE0] = _indic_inert(data, at[lead == 0xE0])
    until = np.searchsorted(at[~inert], offsets)
    return np.flatnonzero(until[1:] > until[:-1])


def _indic_inert(data: Bytes, at: Positions) -> Flags:
    """Of each character of `_INDIC`: neither changed, nor moved, nor joined to the one before.

    What stands before and is not of `_INDIC` is inert, or makes its text a candidate by itself.
    """
    code = (data[at + 1].astype(np.intp) & 0x1F) << 6 | (data[at + 2] & 0x3F)
    before = np.append(code[:1], code[:-1])
    adjacent = at - np.append(-3, at[:-1]) == 3
    adjacent[:1] = False
    mark = _CLASS[before] > 0
    moved = (_CLASS[code] > 0) & (_CLASS[before] > _CLASS[code])
    joined = _SECOND[code] & (_FIRST[before] | mark)
    inert: Flags = ~(_CHANGES[code] | (adjacent & (moved | joined)))
    return inert


LONG_RUN = 128
"""Marks on one letter, beyond which they are put in order here: Unicode calls 30 more than enough,
and `unicodedata` takes time with the square of their number, hours for a few megabytes."""


@functools.cache
def _marks(least: int) -> re.Pattern[str]:
    """So many combining marks, or more, in a row."""
    found = "".join(map(re.escape, filter(unicodedata.combining, map(chr, range(sys.maxunicode)))))
    return re.compile(f"[{found}]{{{least},}}")


def _nfc(text: str) -> str:
    """As `unicodedata.normalize` gives it, in time that grows with the length alone."""
    # A long run holds several of the characters that are looked at, side by side.
    if len(text) > LONG_RUN and _marks(2).search(text[:: LONG_RUN // 4]):
        text = _marks(LONG_RUN).sub(_in_order, text)
    return unicodedata.normalize("NFC", text)


def _in_order(run: re.Match[str]) -> str:
    parts = "".join(unicodedata.normalize("NFD", mark) for mark in run[0])
    return "".join(sorted(parts, key=unicodedata.combining))


def compose(data: Bytes, offsets: Offsets, counts: Counter[str]) -> tuple[Bytes, Offsets]:
    """NFC of each text; counts "nfc_documents", those that it changed."""
    candidates = nfc_candidates(data, offsets)
    pieces: list[bytes] = []
    lengths = np.diff(offsets)
    done = 0
    for index in candidates.tolist():
        start, end = int(offsets[index]), int(offsets[index + 1])
        text = data[start:end].tobytes().decode()
        composed = _nfc(text)
        if composed != text:
            pieces += [data[done:start].tobytes(), composed.encode()]
            lengths[index] = len(pieces[-1])
            done = end
            counts["nfc_documents"] += 1
    if not pieces:
        return data, offsets
    pieces.append(data[done:].tobytes())
    joined = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
    return joined, np.concatenate(([0], np.cumsum(lengths)))
