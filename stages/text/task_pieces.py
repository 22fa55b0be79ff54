"""Features: rows of a task as pieces that a model reads, and the classification of texts.

A feature is a row `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`. Long rows of tagging and of question
answering give several, one a window (`stages.text.task_words`, `stages.text.task_spans`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.text.tasks.rows import SequenceRow
from stages.text.wordpiece import Tokenizer

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]
T = TypeVar("T")

CHUNK_CHARACTERS = 1_000_000
"""Text whose features are made at once: memory does not grow with the data."""

IGNORED = -100
"""A label that counts nowhere, as torch's cross entropy has it."""


@dataclass(frozen=True)
class Lists:
    """Lists of ids end to end: list i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: int32 [T].
        offsets: int64 [N + 1].
    """

    values: Int32s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64s:
        """int64 [N]."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Features:
    """N features. Those of a row follow one another, in the order of its text.

    Attributes:
        rows: int64 [N], the number of the row that each feature came from.
        input_ids: N lists, special tokens included.
        a_length: int32 [N], pieces of a; segment 0 is positions 0..a_length + 1.
        labels: int64 [T] for tagging: the class of a word at its first piece where this feature
            scores it, IGNORED elsewhere. int64 [N] for classes (IGNORED: no gold), float32 [N] for
            numbers (NaN: no gold). None for spans.
        starts, ends: int64 [N], first and last piece of the answer as positions in the feature;
            0, 0 where it holds none; IGNORED where the row has no gold. None but for spans.
        char_starts, char_ends: int32 [T], for spans the code points of the context that a piece
            stands for, for tagging the number of the word and the next one; -1 for special tokens
            and questions. None for classification, where nothing is stitched.
        own: bool [T], positions that this feature scores: each piece of a context, and the first
            piece of each word, in one feature of its row. None for classification.
        counts: what was read and what was cut, by name; `add_counts` sums those of many.
    """

    rows: Int64s
    input_ids: Lists
    a_length: Int32s
    labels: NDArray[Any] | None = None
    starts: Int64s | None = None
    ends: Int64s | None = None
    char_starts: Int32s | None = None
    char_ends: Int32s | None = None
    own: Flags | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)


def sequence_features(
    rows: Iterable[SequenceRow],
    tokenizer: Tokenizer,
    max_length: int,
    classes: Sequence[str] | None,
) -> Iterator[Features]:
    """Features of one or two texts, one a row, cut to `max_length`.

    A single text loses its end. A pair loses pieces from the end of the longer text, one by one,
    until it fits (`longest_first` of transformers).

    Args:
        rows: any number; a chunk of them is read at a time.
        tokenizer: its engine makes the ids.
        max_length: positions of a feature at most, special tokens included.
        classes: the labels by number. None: labels are numbers.

    Yields:
        Features of chunks, in order. Counts: `rows`, `truncated` (rows), `pieces`, `pieces_cut`,
        `without_pieces` (rows with a text of which nothing is left; they are kept).

    Raises:
        ValueError: a `max_length` below 4, a label that is no class, or no number.
    """
    if max_length < 4:
        raise ValueError(f"max_length={max_length} leaves no room for two texts: at least 4")
    known = None if classes is None else {name: i for i, name in enumerate(classes)}
    first = 0
    for chunk in chunks(rows, lambda row: len(row.text_a) + len(row.text_b or "")):
        yield _sequence_chunk(chunk, first, tokenizer, max_length, known)
        first += len(chunk)


def _sequence_chunk(
    chunk: list[SequenceRow],
    first: int,
    tokenizer: Tokenizer,
    max_length: int,
    known: Mapping[str, int] | None,
) -> Features:
    is_pair = np.array([row.text_b is not None for row in chunk], np.bool_)
    texts = chain.from_iterable((row.text_a, row.text_b or "") for row in chunk)
    ids, offsets = encode_texts(list(texts), tokenizer)
    begins = offsets[:-1].reshape(-1, 2)
    lengths = np.diff(offsets).reshape(-1, 2)
    room = np.where(is_pair, max_length - 3, max_length - 2)
    kept = longest_first(lengths, room)
    spans = np.stack([begins, begins + kept], axis=2)
    # A row of one text has one span.
    sources, feature_offsets = laid_out(
        spans[np.stack([np.ones_like(is_pair), is_pair], axis=1)], 1 + is_pair
    )
    cut = lengths.sum(1) - kept.sum(1)
    empty = (lengths[:, 0] == 0) | (is_pair & (lengths[:, 1] == 0))
    return Features(
        rows=np.arange(first, first + len(chunk)),
        input_ids=Lists(with_specials(ids, sources, feature_offsets, tokenizer), feature_offsets),
        a_length=kept[:, 0].astype(np.int32),
        labels=_labels(chunk, known),
        counts={
            "rows": len(chunk),
            "truncated": int((cut > 0).sum()),
            "pieces": int(lengths.sum()),
            "pieces_cut": int(cut.sum()),
            "without_pieces": int(empty.sum()),
        },
    )


def longest_first(lengths: Int64s, room: Int64s) -> Int64s:
    """[N, 2] pieces that are kept of pairs of [N, 2] pieces in [N] rooms.

    Equal to taking pieces one by one from the longer text: both end at their half of the room, or
    one keeps all and the other what is left. The odd piece goes to the text that was longer, and to
    the second of two as long (as `tokenizers` does it).
    """
    small, large = room // 2, room - room // 2
    a, b = lengths[:, 0], lengths[:, 1]
    a_half, b_half = np.where(a > b, [large, small], [small, large])
    a_kept = np.minimum(a, np.maximum(a_half, room - b))
    b_kept = np.minimum(b, np.maximum(b_half, room - a))
    return np.stack([a_kept, b_kept], axis=1)


def _labels(chunk: list[SequenceRow], known: Mapping[str, int] | None) -> NDArray[Any]:
    values = [row.label for row in chunk]
    for row in chunk:
        if row.label is None:
            continue
        if known is None and not isinstance(row.label, (int, float)):
            raise ValueError(f"row {row.id!r}: the label {row.label!r} is no number")
        if known is not None and row.label not in known:
            raise ValueError(
                f"row {row.id!r}: the label {row.label!r} is none of the classes "
                f"{', '.join(list(known)[:10])}"
            )
    if known is None:
        return np.array([np.nan if v is None else float(v) for v in values], np.float32)
    return np.array([IGNORED if v is None else known[str(v)] for v in values], np.int64)


def chunks(rows: Iterable[T], size: Any, limit: int = CHUNK_CHARACTERS) -> Iterator[list[T]]:
    """Rows in lists of about `limit` by `size(row)`; a row is never cut."""
    found: list[T] = []
    total = 0
    for row in rows:
        found.append(row)
        # Each row counts, so that many empty ones do not pile up.
        total += size(row) + 16
        if total >= limit:
            yield found
            found, total = [], 0
    if found:
        yield found


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Int32s, Int64s]:
    """Pieces of texts by the tokeniser's own engine: int32 [P] ids, int64 [D + 1] offsets."""
    if not texts:
        return np.zeros(0, np.int32), np.zeros(1, np.int64)
    column = pa.array(texts, pa.large_string())
    byte_offsets = np.frombuffer(column.buffers()[1], np.int64, len(texts) + 1)
    sizes = np.diff(byte_offsets)
    # A text is one sentence, an empty one has none.
    list_offsets = np.concatenate([[0], np.cumsum(sizes > 0)]).astype(np.int32)
    ends = pa.ListArray.from_arrays(
        pa.array(list_offsets), pa.array(sizes[sizes > 0].astype(np.uint32))
    )
    encoded = tokenizer.encode(column, ends)
    return encoded.ids.astype(np.int32), encoded.sentence_offsets[encoded.document_offsets]


def laid_out(spans: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Lay out features from spans of pieces, with places for special tokens.

    Args:
        spans: int64 [M, 2], [start, end) of pieces; those of a feature follow one another.
        counts: int64 [N], 1 or 2 spans a feature.

    Returns:
        int64 [T], the piece at each position, -1 for `[CLS]` and `[SEP]`; int64 [N + 1] offsets.
    """
    first = np.cumsum(counts) - counts
    led = np.zeros(len(spans), np.int64)
    led[first] = 1  # by [CLS]
    sizes = spans[:, 1] - spans[:, 0]
    ends = np.cumsum(led + sizes + 1)  # a [SEP] behind each span
    begins = ends - 1 - sizes
    sources = np.full(int(ends[-1]) if len(ends) else 0, -1, np.int64)
    sources[_runs(begins, sizes)] = _runs(spans[:, 0], sizes)
    return sources, np.append(begins[first] - 1, len(sources))


def _runs(begins: Int64s, sizes: Int64s) -> Int64s:
    """Numbers of runs end to end: `begins[i]`, `begins[i] + 1`, ..., `sizes[i]` of them."""
    found: Int64s = np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
    found += np.arange(len(found))
    return found


def with_specials(ids: Int32s, sources: Int64s, offsets: Int64s, tokenizer: Tokenizer) -> Int32s:
    """int32 [T] ids of features laid out by `laid_out`."""
    found = gathered(ids, sources, tokenizer.vocab.index("[SEP]"))
    found[offsets[:-1]] = tokenizer.vocab.index("[CLS]")
    return found


def gathered(values: NDArray[Any], sources: Int64s, otherwise: Any) -> NDArray[Any]:
    """[T] `values` of the pieces at each position, and `otherwise` where there is none."""
    found = np.full(len(sources), otherwise, values.dtype)
    is_piece = sources >= 0
    found[is_piece] = values[sources[is_piece]]
    return found


def joined(parts: Iterable[Features]) -> Features:
    """Features of several chunks as one; at least one chunk."""
    found = list(parts)
    sizes = np.concatenate([part.input_ids.lengths for part in found])
    fields = ("labels", "starts", "ends", "char_starts", "char_ends", "own")
    together: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in found])
        for name in fields
        if getattr(found[0], name) is not None
    }
    return Features(
        rows=np.concatenate([part.rows for part in found]),
        input_ids=Lists(
            np.concatenate([part.input_ids.values for part in found]),
            np.concatenate([[0], np.cumsum(sizes)]),
        ),
        a_length=np.concatenate([part.a_length for part in found]),
        counts=add_counts(part.counts for part in found),
        **together,
    )


def add_counts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts by name."""
    found: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            found[name] = found.get(name, 0) + count
    return found
