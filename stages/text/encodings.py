"""The encoding of a file, told by its content."""

from __future__ import annotations

import codecs
import re

from charset_normalizer import CharsetMatches, from_bytes

from stages.text.streams import DamagedFile, byte_order_mark, read_pieces

DETECT = "detect"
"""The value of `encoding` that asks for this."""

HEAD_BYTES = 1_000_000
"""Of each file this much is looked at."""

NUL_SHARE = 0.01
"""UTF-16 and UTF-32 hold more NULs than this: each space and line end has one."""

WIDE_CONTROLS = 0.25
"""Read byte by byte, UTF-16 and UTF-32 of what could be UTF-8 hold at least so many controls: each
alphabet's upper byte is one (0 for Latin, 4 for Cyrillic, 9 for Devanagari)."""

RIGHT_FOR_WRONG = 4
"""Of text in another encoding that holds letters beyond ASCII, less than this share can be read as
UTF-8 by chance."""

STRAY_NULS = 0.1
"""In UTF-16, NULs in the other half of the bytes (U+3000, U+0100...) are at most this share."""

# Most used first. Of encodings that fit equally well (most of them share most letters) the first is
# taken; those that are a part of one here (Latin-1, GBK, Shift-JIS as standardised) are read by it.
CANDIDATES = (
    "utf_8", "cp1252", "cp1251", "gb18030", "cp932", "euc_jp", "big5", "cp949", "cp1250",
    "iso8859_2", "iso8859_15", "cp1253", "iso8859_7", "cp1254", "cp1255", "cp1256", "cp1257",
    "cp1258", "cp874", "koi8_r", "koi8_u", "iso8859_5", "iso8859_6", "cp866", "cp850", "cp437",
    "mac_roman", "utf_16_le", "utf_16_be",
)  # fmt: skip

# Windows-1250 and ISO 8859-2 look alike to the judge. The first has letters of its languages here.
_C1 = re.compile(rb"[\x80-\x9f]")

ALIKE = 0.03
UNLIKE = 0.06
"""Matches fit equally well whose disorder and likeness to a language differ by less than these."""


def file_encoding(path: str, compression: str) -> str:
    """The encoding of a file's first bytes; "utf-8" where none is found or it cannot be read."""
    head = b""
    try:
        for piece in read_pieces(path, compression):
            head += piece
            if len(head) >= HEAD_BYTES:
                return detect_encoding(head[:HEAD_BYTES], cut=True)
    except DamagedFile:
        return detect_encoding(head, cut=True)
    return detect_encoding(head)


def detect_encoding(head: bytes, cut: bool = False) -> str:
    """The encoding of a text's first bytes, as a name that Python knows.

    A byte order mark tells it. What can be UTF-8 (a few bytes excepted) is UTF-8, but for text with
    so many NULs and control characters that it must be UTF-16 or UTF-32. All else is judged by
    charset-normalizer.

    Args:
        head: the first bytes.
        cut: more follow, so that a character may be cut at their end.
    """
    mark, name = byte_order_mark(head)
    if mark:
        return name
    narrow = _decodes(head, "utf-8", cut)
    if head.count(0) > NUL_SHARE * len(head) and not (narrow and _controls(head) < WIDE_CONTROLS):
        for name in _wide(head):
            if _decodes(head, name, cut):
                return name
    if narrow or _mostly_utf8(head):
        return "utf-8"
    candidates = [name for name in CANDIDATES if name != "cp1250" or _C1.search(head)]
    # The judge takes no character that is cut. No encoding has a line feed inside of one, but for
    # UTF-16 and UTF-32, whose characters are of even length.
    for end in (len(head) // 4 * 4, head.rfind(b"\n") + 1):
        if name := _fittest(from_bytes(head[:end], cp_isolation=candidates)):
            return name
    return "utf-8"


def _mostly_utf8(head: bytes) -> bool:
    """Whether a few damaged bytes stand between characters that only UTF-8 writes like this."""
    characters = head.decode("utf-8", "replace")
    wrong = characters.count("\ufffd")
    ascii_characters = len(head.translate(None, bytes(range(128, 256))))
    return len(characters) - ascii_characters - wrong > RIGHT_FOR_WRONG * wrong


def _controls(head: bytes) -> float:
    return 1 - len(head.translate(None, bytes(range(32)))) / len(head)


def _wide(head: bytes) -> tuple[str, ...]:
    """UTF-32, and UTF-16 as its NULs stand: ASCII characters are one byte and one NUL."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    wide: tuple[str, ...] = ("utf-32-le", "utf-32-be")
    if min(even, odd) < STRAY_NULS * max(even, odd):
        wide += ("utf-16-le" if odd > even else "utf-16-be",)
    return wide


def _decodes(head: bytes, encoding: str, cut: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(head, final=not cut)
    except UnicodeDecodeError:
        return False
    return True


def _fittest(matches: CharsetMatches) -> str:
    best = matches.best()
    if best is None:
        return ""
    fitting = {
        name
        for match in matches
        if match.chaos <= best.chaos + ALIKE and match.coherence >= best.coherence - UNLIKE
        for name in match.could_be_from_charset
    }
    return min(fitting.intersection(CANDIDATES), key=CANDIDATES.index, default=best.encoding)
