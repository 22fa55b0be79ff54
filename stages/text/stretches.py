"""Long texts in stretches that can be cleaned one by one, so that memory is that of a stretch.

Between two paragraphs nothing depends on the other side. A text that has no blank line for
megabytes is cut at a line end all the same, at a space where it has no lines (which becomes a line
end), and between two characters where it has no spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stages.text.buffers import Bytes

LONG_BYTES = 8_000_000
"""Texts up to this size are one stretch, and so is all of a text without blank lines."""

STRETCH_BYTES = 1_000_000
"""A stretch goes to the first blank line behind this."""

# Indentation stays: it belongs to the line that follows.
_BLANK_LINES = re.compile(rb"\r?\n[ \t\r\n]*\n")
_PLACES = (re.compile(rb"\r?\n"), re.compile(rb" "))
_WINDOW = 100_000
"""The end of a stretch without blank lines is looked for in so many bytes."""


def stretches(text: Bytes) -> Iterator[tuple[int, int, int]]:
    """Cut a text.

    Yields:
        (start, end, next): a stretch, and where the next one begins: between `end` and `next` is
        white space, or nothing.
    """
    start, size = 0, len(text)
    data = text.data
    while size - start > LONG_BYTES:
        # A run of white space of any length costs no more than itself.
        limit = start + LONG_BYTES
        cut = _BLANK_LINES.search(data, start + STRETCH_BYTES, limit)
        for place in _PLACES:
            cut = cut or place.search(data, limit - _WINDOW, limit)
        if cut:
            yield start, cut.start(), cut.end()
            start = cut.end()
            continue
        while text[limit] & 0xC0 == 0x80:
            limit -= 1
        yield start, limit, limit
        start = limit
    yield start, size, size
