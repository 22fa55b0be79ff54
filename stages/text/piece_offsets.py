"""Pieces of texts, each with the characters of the original text that it was made from.

`tokenizers` follows every character through normalisation, so offsets are right for lower-casing,
stripped accents, full-width letters and decomposed Hangul, whose pieces share one character.
Offsets are code points, as Python counts them. One thing is added: an accent that was written as a
character of its own and stripped belongs to the letter before it, also at the end of a piece, where
`tokenizers` leaves it out. An answer would lose it otherwise.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.text.wordpiece import Tokenizer

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

SLICE_CHARACTERS = 20_000
"""Text that is tokenised at once: an `Encoding` takes some hundred bytes a piece."""

_FIRST_MARK = 0x300
"""No combining mark stands before it."""


@dataclass(frozen=True)
class TextPieces:
    """Pieces of D texts, end to end.

    Attributes:
        ids: int32 [P].
        starts, ends: int32 [P], the code points of the text that a piece stands for; never empty,
            and neither ever falls within a text. Pieces of one character share it.
        offsets: int64 [D + 1], where each text begins among the pieces.
    """

    ids: Int32s
    starts: Int32s
    ends: Int32s
    offsets: Int64s


def pieces_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> TextPieces:
    """Tokenise texts by the reference, without special tokens around or from them."""
    ids: list[Int32s] = [np.zeros(0, np.int32)]
    places: list[Int32s] = [np.zeros((0, 2), np.int32)]
    counts = np.zeros(len(texts) + 1, np.int64)
    ideographs = tokenizer.normalisation.chinese_characters
    for number, text in enumerate(texts, start=1):
        for begin, part in slices(text, ideographs):
            encoding = tokenizer.reference.encode(part, add_special_tokens=False)
            found = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            if tokenizer.normalisation.strip_accents:
                _take_marks(found, part)
            ids.append(np.array(encoding.ids, np.int32))
            places.append(found + np.int32(begin))
            counts[number] += len(found)
    place = np.concatenate(places)
    return TextPieces(np.concatenate(ids), place[:, 0], place[:, 1], np.cumsum(counts))


def slices(
    text: str, ideographs: bool, characters: int = SLICE_CHARACTERS
) -> Iterator[tuple[int, str]]:
    """Cut a text where neither normalising nor tokenising reaches across, as (start, part).

    That is before ASCII white space, and before an ideograph where these stand alone
    (`stages.text.words`). A part is longer than `characters` only where it holds no such place.
    """
    begin = 0
    while len(text) - begin > characters:
        end = _cut(text, begin, begin + characters, ideographs)
        yield begin, text[begin:end]
        begin = end
    yield begin, text[begin:]


def _cut(text: str, begin: int, limit: int, ideographs: bool) -> int:
    """The last place before `limit` where a text may be cut, else the first one behind it."""
    found = max(text.rfind(space, begin + 1, limit) for space in " \n\t\r")
    if found > 0:
        return found
    for place in range(limit - 1, begin, -1) if ideographs else ():
        if "\u5000" <= text[place] <= "\u9fff":
            return place
    for place in range(limit, len(text)):
        if text[place] in " \n\t\r" or (ideographs and "\u5000" <= text[place] <= "\u9fff"):
            return place
    return len(text)


def _take_marks(places: Int32s, text: str) -> None:
    """Let each of [P, 2] places reach over the stripped marks behind it; changes them.

    Decomposing may put marks in a row in another order, and `tokenizers` then counts their places
    in that order. It shows only where one of them is not stripped (U+302E of Hangul and a few
    more): a piece takes a run of such marks before it, too.
    """
    if text.isascii() or not len(places):
        return
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    kinds, which = np.unique(codes, return_inverse=True)
    marks = [code >= _FIRST_MARK and _is_mark(chr(code)) for code in kinds.tolist()]
    if not any(marks):
        return
    is_mark = np.array(marks)[which]
    size = len(codes)
    # run_end[i]: the first place from i on that holds no mark.
    run_end = np.append(np.where(is_mark, size, np.arange(size)), size)
    run_end = np.minimum.accumulate(run_end[::-1])[::-1]
    starts, ends = places[:, 0].copy(), places[:, 1]
    next_start = np.append(starts, size)[np.searchsorted(starts, ends)]
    places[:, 1] = np.minimum(run_end[ends], next_start)
    stays = np.array([m and _stays(chr(c)) for m, c in zip(marks, kinds.tolist(), strict=True)])
    if stays.any():
        # run_start[i]: where the marks begin that end before i.
        run_start = np.append(0, np.where(is_mark, 0, np.arange(1, size + 1)))
        run_start = np.maximum.accumulate(run_start)
        end_before = np.append(0, ends)[np.searchsorted(ends, starts, side="right")]
        taken = np.maximum(run_start[starts], end_before)
        stayed = np.append(0, np.cumsum(stays[which]))
        moved = stayed[starts] > stayed[taken]
        places[moved, 0] = taken[moved]


def _is_mark(character: str) -> bool:
    """Whether stripping accents removes it, or decomposing may move it."""
    return unicodedata.category(character) == "Mn" or unicodedata.combining(character) != 0


def _stays(character: str) -> bool:
    return unicodedata.category(character) != "Mn"
