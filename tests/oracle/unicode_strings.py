"""Generated Unicode strings on which tokenisers are held against each other."""

from __future__ import annotations

import numpy as np

PLANES = ((0, 0x80), (0x80, 0x500), (0x500, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000))
MARKS = "\u0301\u0308\u0323\u0307\u0345\u05bc\u0651\u093c\u094d\u3099\u200d\ufe0f\u00ad"
ODD = "\x00\x0b\x0c\x1c\x7f\x85\u2028\u200b\ufeff\ufffd\u00a0\u3000|[]#İßΣſ中\u4dff龥가\u1100\u1161"
WORDS = ("[MASK]", "[SEP]", "##ing", "the", "The", "ÉTÉ", "unaffable", "a" * 101, " ", "\n", "\t")


def unicode_strings(n: int, seed: int = 20_000) -> list[str]:
    """`n` strings: code points of one plane, with ASCII, marks, odd ones and words between."""
    random = np.random.default_rng(seed)
    strings = []
    for _ in range(n):
        first, last = PLANES[random.integers(len(PLANES))]
        codes = random.integers(first, last, random.integers(1, 16))
        parts = [chr(c) for c in codes.tolist() if not 0xD800 <= c < 0xE000]
        for kind in random.integers(0, 8, len(parts)).tolist():
            place = int(random.integers(len(parts) + 1))
            if kind < 2:
                parts.insert(place, chr(int(random.integers(0x20, 0x7F))))
            elif kind == 2:
                parts.insert(place, MARKS[random.integers(len(MARKS))])
            elif kind == 3:
                parts.insert(place, ODD[random.integers(len(ODD))])
            elif kind == 4:
                parts.insert(place, WORDS[random.integers(len(WORDS))])
        strings.append("".join(parts))
    return strings
