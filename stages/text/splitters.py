"""Sentences by a function that gives them as strings: sentencex, or one of your own.

The function is given a text and returns its sentences in order:

    def split(text: str) -> list[str]

White space around sentences may go or stay; every other character of the text has to be in exactly
one of them, unchanged. What it returns is checked, and found again in the text.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

Splitter = Callable[[str], Iterable[str]]

SHOWN = 60
"""Characters of a text that a message shows."""


class SplitterError(ValueError):
    """A function gave no sentences, or not those of the text.

    Attributes:
        row: index of the text in the column; None when the function could not be had at all.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def load_splitter(name: str) -> Splitter:
    """The function "package.module:function".

    Raises:
        SplitterError: it cannot be imported, or is no function.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module's own code may raise anything
        raise SplitterError(f"{name} cannot be imported: {_said(error)}") from error
    if not callable(found):
        raise SplitterError(f"{name} is a {type(found).__name__}, not a function")
    splitter: Splitter = found
    return splitter


def sentencex_splitter(language: str) -> Splitter:
    """Wikimedia's sentencex, a line at a time, so that a newline ends a sentence as elsewhere.

    Args:
        language: ISO 639 code. One that sentencex has no rules for falls back to another, at last
            to English.
    """
    # Imported here: other methods do without.
    from sentencex import segment

    segment_line = partial(segment, language)
    return lambda text: chain.from_iterable(map(segment_line, text.split("\n")))


def ends_by(splitter: Splitter, texts: pa.Array, name: str) -> pa.ListArray:
    """What `splitter` says: list<uint32> [n], the end of each sentence in bytes.

    Args:
        splitter: called once a text.
        texts: strings [n] without nulls.
        name: of the splitter, for messages.

    Raises:
        SplitterError: it raises, or what it returns is not the text's sentences.
    """
    ends: list[int] = []
    offsets = [0]
    for row, text in enumerate(texts.to_pylist()):
        try:
            ends += _ends(text, splitter)
        except SplitterError as error:
            raise SplitterError(f"{name} {error} The text begins {_shown(text)}", row) from error
        offsets.append(len(ends))
    return pa.ListArray.from_arrays(
        pa.array(np.array(offsets, np.int32)), pa.array(np.array(ends, np.uint32))
    )


def _ends(text: str, splitter: Splitter) -> list[int]:
    try:
        sentences = splitter(text)
        # A string is a list of strings of one character: sure to be meant otherwise.
        given = [sentences] if isinstance(sentences, str) else list(sentences)
    except Exception as error:  # somebody else's code may raise anything
        raise SplitterError(f"raised {_said(error)}.") from error
    if isinstance(sentences, str) or not all(isinstance(s, str) for s in given):
        kinds = ", ".join(sorted({type(s).__name__ for s in given}))
        what = "a string" if isinstance(sentences, str) else f"a list of {kinds}"
        raise SplitterError(f"gave {what}, not a list of sentences (strings).")
    ends = []
    at = byte = 0
    for number, sentence in enumerate(given, 1):
        wanted = sentence.strip()
        if not wanted:
            continue
        start = _skip_blank(text, at)
        if not text.startswith(wanted, start):
            raise SplitterError(
                f"gave as sentence {number} {_shown(wanted)}, but what follows at character "
                f"{start} is {_shown(text[start:])}: every character has to be in one sentence."
            )
        end = start + len(wanted)
        byte += len(text[at:end].encode())
        ends.append(byte)
        at = end
    rest = text[_skip_blank(text, at) :]
    if rest:
        raise SplitterError(f"left out {_shown(rest)}, behind its last sentence.")
    return ends


def _skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
