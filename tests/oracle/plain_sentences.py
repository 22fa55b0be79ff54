"""Sentence ends one document at a time, with Python strings: slow and plain."""

from __future__ import annotations

import re

from icu4py.breakers import SentenceBreaker

from stages.text import abbreviations

ALWAYS = set(abbreviations._ALWAYS.split())
BEFORE_NUMBERS = set(abbreviations._BEFORE_NUMBERS.split())
LAST_WORD = re.compile(r"[^ \t\n(\[{<\"'/\-‐-‿]*\Z")
BLANK = " \t\n\v\f\r"


def sentence_ends(text: str) -> list[int]:
    """Byte offsets of the ends of ICU's sentences in a cleaned text, abbreviations merged."""
    utf16 = text.encode("utf-16-le")
    ends = []
    for _, units in SentenceBreaker(text, "und").segments():
        ends.append(len(utf16[: 2 * units].decode("utf-16-le").rstrip(BLANK)))
    ends = sorted({e for e in ends if e > 0})
    kept = [e for i, e in enumerate(ends) if not goes_on(text, e, ends[i - 1] if i else 0)]
    return [len(text[:e].encode()) for e in kept]


def goes_on(text: str, end: int, previous: int) -> bool:
    """Whether the full stop before `end` does not end a sentence."""
    if end == len(text.rstrip(BLANK)) or text[end] != " ":
        return False
    following = text[end:].lstrip(" ")[0]
    if following == "\n":
        return False
    if following in "abcdefghijklmnopqrstuvwxyz":
        return True
    if text[end - 1] != ".":
        return False
    word = LAST_WORD.search(text[: end - 1]).group()  # type: ignore[union-attr]
    if len(word) == 1 and word in "ABCDEFGHJKLMNOPQRSTUVWXYZ":
        return True
    before = text[previous : end - 1 - len(word)]
    # White space, or a space and a bracket.
    alone = not before.strip() or len(before.encode()) <= 2
    if alone and re.fullmatch(r"[0-9]{1,3}", word):
        return True
    low = "".join(c.lower() if c.isascii() else c for c in word)
    return low in ALWAYS or (low in BEFORE_NUMBERS and following in "0123456789")
