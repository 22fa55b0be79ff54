"""Tagging: words with tags to features, through windows where a sentence is long.

Each word is tokenised by itself. Its tag stands at its first piece, in the one window that shows
most of the surroundings of that piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stages.text.task_pieces import (
    IGNORED,
    Features,
    Flags,
    Int32s,
    Int64s,
    Lists,
    encode_texts,
    gathered,
    laid_out,
    with_specials,
)
from stages.text.windows import Windows, kept_before, windows
from stages.text.wordpiece import Tokenizer

CHUNK_WORDS = 50_000
"""Words whose features are made at once, of many rows or of a part of one."""


class Words(Protocol):
    """A row: `tasks.rows.TokenRow`, or anything else with words, which may be made when needed."""

    @property
    def words(self) -> Sequence[str]:
        """The words."""
        ...

    @property
    def tags(self) -> Sequence[str] | None:
        """A tag for each word, or None where there is no gold."""
        ...


@dataclass(frozen=True)
class _Part:
    """A run of the words of a row."""

    row: int
    words: Sequence[str]
    tags: Sequence[str] | None
    first_word: int
    is_last: bool


@dataclass(frozen=True)
class _Pieces:
    """Pieces of words: their ids, words (by number in the row), classes, and which begin a word."""

    ids: Int32s
    word: Int32s
    label: Int64s
    is_first: Flags

    def after(self, start: int) -> _Pieces:
        """Those from piece `start` on, copied."""
        return _Pieces(
            self.ids[start:].copy(),
            self.word[start:].copy(),
            self.label[start:].copy(),
            self.is_first[start:].copy(),
        )


_NONE = _Pieces(
    np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.bool_)
)


def word_features(
    rows: Iterable[Words],
    tokenizer: Tokenizer,
    max_length: int,
    overlap: int,
    classes: Sequence[str],
    chunk_words: int = CHUNK_WORDS,
) -> Iterator[Features]:
    """Features of tagged sentences. The memory does not grow with the data, nor with a sentence.

    Args:
        rows: any number, read as they are needed.
        tokenizer: its engine makes the ids.
        max_length: positions of a feature at most, special tokens included.
        overlap: pieces that neighbouring windows of a long sentence share.
        classes: the tags by number.
        chunk_words: words at once.

    Yields:
        Features of chunks, in order; a row may go on in the next one. Counts: `rows`, `long_rows`
        (of several windows), `words`, `words_without_pieces` (of control characters alone, say:
        no model sees them, and stitching gives them a tag by rule), `pieces`, `windows`.

    Raises:
        ValueError: an overlap that leaves no step, a tag that is no class, tags fewer or more than
            words.
    """
    known = {name: number for number, name in enumerate(classes)}
    windows(np.zeros(1, np.int64), np.array([max_length - 2]), overlap)  # complains before reading
    carried, begun = _NONE, False
    for parts in _chunks(rows, chunk_words):
        pieces, ends, counts = _tokenised(parts, tokenizer, known, carried)
        found = windows(np.diff(ends, prepend=0), np.full(len(ends), max_length - 2), overlap)
        if begun:
            found.own_starts[0] = kept_before(overlap)
        begins_with_rest, is_open = begun, not parts[-1].is_last
        begin = int(ends[-2]) if len(ends) > 1 else 0
        if is_open:
            # Whether the last window is the row's last one is not known yet: it waits.
            carried = pieces.after(begin + int(found.starts[-1]))
            begun = bool(found.starts[-1] > 0) or (begun and len(parts) == 1)
        else:
            carried, begun = _NONE, False
        kept = len(found.text) - is_open
        per_part = np.bincount(found.text, minlength=len(parts))
        is_long = per_part > 1
        is_long[0] &= not begins_with_rest  # counted already
        counts |= {"long_rows": int(is_long.sum()), "windows": kept}
        yield _features(parts, pieces, ends, found, kept, tokenizer, counts)


def _chunks(rows: Iterable[Words], limit: int) -> Iterator[list[_Part]]:
    """Parts of rows in lists of `limit` words (and empty rows not without end)."""
    parts: list[_Part] = []
    room = limit
    for number, row in enumerate(rows):
        words, tags = row.words, row.tags
        if tags is not None and len(tags) != len(words):
            raise ValueError(f"row {number}: {len(words)} words and {len(tags)} tags")
        first = 0
        while True:
            last = min(first + room, len(words))
            part_tags = None if tags is None else tags[first:last]
            is_last = last == len(words)
            parts.append(_Part(number, words[first:last], part_tags, first, is_last))
            room -= max(last - first, 1)
            if room <= 0:
                yield parts
                parts, room = [], limit
            if is_last:
                break
            first = last
    if parts:
        yield parts


def _tokenised(
    parts: list[_Part], tokenizer: Tokenizer, known: dict[str, int], carried: _Pieces
) -> tuple[_Pieces, Int64s, dict[str, int]]:
    """Pieces of the parts behind those carried, where each part ends among them, and counts."""
    texts = [word for part in parts for word in part.words]
    ids, offsets = encode_texts(texts, tokenizer)
    counts = np.diff(offsets)
    numbers = [np.arange(len(part.words), dtype=np.int32) + part.first_word for part in parts]
    classes = np.array([label for part in parts for label in _classes(part, known)], np.int64)
    label = np.full(len(ids), IGNORED, np.int64)
    is_first = np.zeros(len(ids), np.bool_)
    first = offsets[:-1][counts > 0]
    label[first] = classes[counts > 0]
    is_first[first] = True
    pieces = _Pieces(
        np.concatenate([carried.ids, ids]),
        np.concatenate([carried.word, np.repeat(np.concatenate(numbers), counts)]),
        np.concatenate([carried.label, label]),
        np.concatenate([carried.is_first, is_first]),
    )
    word_ends = np.cumsum([len(part.words) for part in parts])
    found = {
        "rows": sum(part.is_last for part in parts),
        "words": len(texts),
        "words_without_pieces": int((counts == 0).sum()),
        "pieces": len(ids),
    }
    return pieces, offsets[word_ends] + len(carried.ids), found


def _classes(part: _Part, known: dict[str, int]) -> list[int]:
    if part.tags is None:
        return [IGNORED] * len(part.words)
    try:
        return [known[tag] for tag in part.tags]
    except KeyError as error:
        raise ValueError(
            f"row {part.row}: the tag {error} is none of the classes {', '.join(list(known)[:10])}"
        ) from None


def _features(
    parts: list[_Part],
    pieces: _Pieces,
    ends: Int64s,
    found: Windows,
    kept: int,
    tokenizer: Tokenizer,
    counts: dict[str, int],
) -> Features:
    """The first `kept` of the windows as features."""
    text = found.text[:kept]
    begin = np.append(0, ends[:-1])[text]
    spans = np.stack([found.starts[:kept], found.ends[:kept]], axis=1) + begin[:, None]
    sources, offsets = laid_out(spans, np.ones(kept, np.int64))
    lengths = np.diff(offsets)
    word = gathered(pieces.word, sources, -1)
    own = gathered(pieces.is_first, sources, False)
    own &= sources >= np.repeat(found.own_starts[:kept] + begin, lengths)
    own &= sources < np.repeat(found.own_ends[:kept] + begin, lengths)
    label = gathered(pieces.label, sources, IGNORED)
    label[~own] = IGNORED
    return Features(
        rows=np.array([part.row for part in parts], np.int64)[text],
        input_ids=Lists(with_specials(pieces.ids, sources, offsets, tokenizer), offsets),
        a_length=(lengths - 2).astype(np.int32),
        labels=label,
        char_starts=word,
        char_ends=np.where(word < 0, -1, word + 1).astype(np.int32),
        own=own,
        counts=counts,
    )
