"""Kinds of characters, counted on a text buffer: digits, symbols, and the rest, called letters.

The tables are written out here, so that no version of Python or Unicode changes a result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes

LETTER, DIGIT, SYMBOL, BLANK, CONTINUATION = range(5)
"""What a byte is: the first byte of a character of this kind, or a later byte of one."""

Kinds = npt.NDArray[np.uint8]

# Decimal digits of the scripts in use (Unicode category Nd): each row starts with its zero.
_ZEROS = (
    *(0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6),
    *(0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0xFF10),
)
# Punctuation marks, signs, arrows, dingbats, emoji (categories P and S) that are in use.
_SYMBOLS = (
    *((0x00A1, 0x00A9), (0x00AB, 0x00B1), (0x00B4, 0x00B4), (0x00B6, 0x00B8), (0x00BB, 0x00BB)),
    *((0x00BF, 0x00BF), (0x00D7, 0x00D7), (0x00F7, 0x00F7), (0x02C2, 0x02C5), (0x02D2, 0x02DF)),
    *((0x037E, 0x037E), (0x0387, 0x0387), (0x0482, 0x0482), (0x055A, 0x055F), (0x0589, 0x058A)),
    *((0x058D, 0x058F), (0x05BE, 0x05BE), (0x05C0, 0x05C0), (0x05C3, 0x05C3), (0x05F3, 0x05F4)),
    *((0x0606, 0x060F), (0x061B, 0x061F), (0x066A, 0x066D), (0x06D4, 0x06D4), (0x06E9, 0x06E9)),
    *((0x0700, 0x070D), (0x0964, 0x0965), (0x0970, 0x0970), (0x09F2, 0x09F3), (0x0E3F, 0x0E3F)),
    *((0x0E4F, 0x0E4F), (0x0E5A, 0x0E5B), (0x0F01, 0x0F17), (0x0F3A, 0x0F3D), (0x104A, 0x104F)),
    *((0x10FB, 0x10FB), (0x1360, 0x1368), (0x17D4, 0x17D6), (0x17D8, 0x17DB), (0x1800, 0x180A)),
    *((0x2010, 0x2027), (0x2030, 0x205E), (0x207A, 0x207E), (0x208A, 0x208E), (0x20A0, 0x20C0)),
    *((0x2100, 0x2101), (0x2103, 0x2106), (0x2108, 0x2109), (0x2114, 0x2114), (0x2116, 0x2118)),
    *((0x211E, 0x2123), (0x2190, 0x245F), (0x249C, 0x24E9), (0x2500, 0x2775), (0x2794, 0x2BFF)),
    *((0x2E00, 0x2E2E), (0x2E30, 0x2E5D), (0x3001, 0x3004), (0x3008, 0x3020), (0x3030, 0x3030)),
    *((0x3036, 0x3037), (0x303D, 0x303F), (0x309B, 0x309C), (0x30A0, 0x30A0), (0x30FB, 0x30FB)),
    *((0x3200, 0x321E), (0x322A, 0x3247), (0x3250, 0x3250), (0x3260, 0x327F), (0x328A, 0x32B0)),
    *((0x32C0, 0x33FF), (0xFD3E, 0xFD4F), (0xFDFC, 0xFDFF), (0xFE10, 0xFE19), (0xFE30, 0xFE6B)),
    *((0xFF01, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFE0, 0xFFEE)),
    *((0xFFFC, 0xFFFD), (0x1F000, 0x1F0FF), (0x1F10D, 0x1FAFF)),
)


def _code_points() -> Kinds:
    table = np.zeros(0x20000, np.uint8)
    for zero in _ZEROS:
        table[zero : zero + 10] = DIGIT
    for first, last in _SYMBOLS:
        table[first : last + 1] = SYMBOL
    return table


def _bytes() -> bytes:
    table = np.zeros(256, np.uint8)
    table[:128] = SYMBOL
    table[:33] = BLANK
    table[127] = BLANK
    table[ord("0") : ord("9") + 1] = DIGIT
    table[ord("A") : ord("Z") + 1] = table[ord("a") : ord("z") + 1] = LETTER
    table[0x80:0xC0] = CONTINUATION
    return table.tobytes()


_CODE_POINTS = _code_points()
_BYTES = _bytes()


def kinds(data: Bytes) -> Kinds:
    """The kind of each byte of UTF-8 text: uint8 [n], `LETTER` to `CONTINUATION`."""
    raw = data.tobytes()
    if raw.isascii():
        return np.frombuffer(raw.translate(_BYTES), np.uint8)
    found = np.frombuffer(bytearray(raw.translate(_BYTES)), np.uint8)
    at = np.flatnonzero(data >= 0xC2)
    found[at] = _CODE_POINTS[np.minimum(code_points(data, at), len(_CODE_POINTS) - 1)]
    return found


def code_points(data: Bytes, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The characters whose first bytes stand at `at`, none of them ASCII: int32 [m]."""
    padded = np.append(data, np.zeros(3, np.uint8))
    lead, b1, b2, b3 = (padded[at + i].astype(np.int32) for i in range(4))
    b1, b2, b3 = b1 & 0x3F, b2 & 0x3F, b3 & 0x3F
    two = (lead & 0x1F) << 6 | b1
    three = (lead & 0x0F) << 12 | b1 << 6 | b2
    four = (lead & 0x07) << 18 | b1 << 12 | b2 << 6 | b3
    found: npt.NDArray[np.int32] = np.where(
        lead < 0xE0, two, np.where(lead < 0xF0, three, four)
    ).astype(np.int32)
    return found
