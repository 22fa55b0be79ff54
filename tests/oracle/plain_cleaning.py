"""Cleaning one document at a time, with Python strings: slow and plain."""

from __future__ import annotations

import re
import unicodedata

RETURNS = re.compile("\r\n|\r")
SEPARATORS = re.compile("[\v\f\x85\u2028\u2029]")
SPACES = re.compile("[\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
CONTROLS = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f]")
INVISIBLE = re.compile("[\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def clean(
    text: str,
    unwrap: bool = True,
    nfc: bool = True,
    invisible: bool = True,
    line_breaks: bool = True,
    white_space: bool = True,
) -> str:
    # NUL, as all controls, goes after CR and LF met.
    text = RETURNS.sub("\n", text)
    text = SEPARATORS.sub("\n" if line_breaks else " ", text)
    text = CONTROLS.sub("", SPACES.sub(" ", text))
    if invisible:
        text = INVISIBLE.sub("", text)
    if nfc:
        text = unicodedata.normalize("NFC", text)
    if unwrap:
        text = join_wrapped_lines(text)
    if not white_space:
        return text.strip(" \n")
    lines = [re.sub(" +", " ", line).strip(" ") for line in text.split("\n")]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def columns(text: str) -> int:
    return sum(2 if 0x3000 <= ord(c) <= 0xDFFF or ord(c) >= 0xF000 else 1 for c in text)


def without_spaces(c: str) -> bool:
    return 0x3000 <= ord(c) <= 0x9FFF or 0xF000 <= ord(c) <= 0xFFFF


def is_mark(c: str) -> bool:
    return 0x2014 <= ord(c) <= 0x2026


def first_word(line: str) -> str:
    return line.strip(" ").split(" ")[0]


def is_item(line: str) -> bool:
    return bool(
        re.match(r"[-*+] |•|[0-9][.)] |[0-9][0-9][.)] ", line + " ")
        or re.match(r":[^:]*:( |\Z)", line)
    )


def is_ruler(line: str) -> bool:
    return bool(re.fullmatch(r"([-=~^*_+#.])\1[^ ]*", line)) and line[-1] == line[0]


def indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def join_wrapped_lines(text: str) -> str:
    lines = text.split("\n")
    block_width = [0] * len(lines)
    start = 0
    for i in range(len(lines) + 1):
        if i == len(lines) or not lines[i].strip(" "):
            widest = max((columns(x.strip(" ")) for x in lines[start:i]), default=0)
            block_width[start:i] = [widest] * (i - start)
            start = i + 1
    joined = lines[0]
    for i in range(1, len(lines)):
        if stays(lines, i - 1, block_width[i - 1]):
            joined += "\n" + lines[i]
            continue
        left, right = joined.rstrip(" "), lines[i].lstrip(" ")
        a, b = left[-1], right[0]
        closed = (without_spaces(a) and (without_spaces(b) or is_mark(b))) or (
            is_mark(a) and without_spaces(b)
        )
        joined = left + right if closed else f"{left} {right}"
    return joined


def stays(lines: list[str], i: int, block_width: int) -> bool:
    """Whether the break behind line i stays."""
    raw, raw_next = lines[i], lines[i + 1]
    line, following = raw.strip(" "), raw_next.strip(" ")
    if not line or not following or is_ruler(line) or is_ruler(following):
        return True
    if columns(line) > 160 or columns(following) > 160:
        return True
    if is_item(following) or following[0] in "#|>" or following.startswith(".."):
        return True
    if line[0] in "#|>":
        return True
    word = columns(first_word(following))
    if without_spaces(following[0]):
        word = min(word, 2)
    if columns(line) + 1 + word <= 0.8 * block_width:
        return True
    if indent(raw_next) > indent(raw) and not is_item(line):
        return True
    before = lines[i - 1] if i else ""
    opens = not before.strip(" ") or indent(before) < indent(raw)
    opens = opens and line[-1] not in ".:!?"
    return indent(raw) >= 4 and indent(raw_next) < indent(raw) and not opens
