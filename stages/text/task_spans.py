"""Question answering: questions and contexts to features, and answers to positions in them.

A feature is `[CLS] question [SEP] window of the context [SEP]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stages.text.piece_offsets import TextPieces, pieces_with_offsets
from stages.text.task_pieces import (
    CHUNK_CHARACTERS,
    IGNORED,
    Features,
    Flags,
    Int32s,
    Int64s,
    Lists,
    chunks,
    encode_texts,
    gathered,
    laid_out,
    with_specials,
)
from stages.text.tasks.rows import Answer, SpanRow
from stages.text.windows import windows
from stages.text.wordpiece import Tokenizer

MAX_QUESTION_LENGTH = 64
"""Pieces of a question, as google-research/bert has it."""

EXACT = "answers_exact"


@dataclass(frozen=True)
class Located:
    """An answer among the pieces of its context.

    Attributes:
        first, last: the pieces that cover the answer, or what of it has pieces; -1 without any.
        reason: EXACT where the characters of these pieces are the answer, else a count's name.
    """

    first: int
    last: int
    reason: str


@dataclass(frozen=True)
class Context:
    """A context and its pieces, to look answers up in."""

    text: str
    pieces: TextPieces
    unknown_id: int

    def locate(self, answer: Answer) -> Located:
        """The pieces of an answer, and whether they give it back.

        Reasons: `answers_begin_inside_piece`, `answers_begin_inside_unknown` (of a word that the
        vocabulary cannot spell), the same with `end`; `answers_with_outer_space`;
        `answers_with_outer_characters`, of which tokenising leaves nothing (control characters);
        `answers_without_piece`.

        Raises:
            ValueError: the answer does not stand there.
        """
        start, end = answer.start, answer.start + len(answer.text)
        if start < 0 or self.text[start:end] != answer.text or not answer.text:
            raise ValueError(f"the answer {answer.text!r} is not at {start} of its context")
        pieces = self.pieces
        first = int(np.searchsorted(pieces.ends, start, side="right"))
        last = int(np.searchsorted(pieces.starts, end, side="left")) - 1
        if last < first:
            return Located(-1, -1, "answers_without_piece")
        return Located(first, last, self._reason(first, last, answer, end))

    def _reason(self, first: int, last: int, answer: Answer, end: int) -> str:
        pieces = self.pieces
        before, behind = int(pieces.starts[first]) - answer.start, end - int(pieces.ends[last])
        for side, piece, outside in (("begin", first, before), ("end", last, behind)):
            if outside < 0:
                unknown = pieces.ids[piece] == self.unknown_id
                return f"answers_{side}_inside_{'unknown' if unknown else 'piece'}"
        if before == behind == 0:
            return EXACT
        if answer.text.strip() == answer.text[before : len(answer.text) - behind]:
            return "answers_with_outer_space"
        return "answers_with_outer_characters"


def contexts_of(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, Context]:
    """Distinct texts with their pieces."""
    found = {}
    for text in dict.fromkeys(texts):
        found[text] = Context(text, pieces_with_offsets([text], tokenizer), tokenizer.unknown_id)
    return found


def span_features(
    rows: Iterable[SpanRow],
    tokenizer: Tokenizer,
    max_length: int,
    overlap: int,
    max_question_length: int = MAX_QUESTION_LENGTH,
    chunk_characters: int = CHUNK_CHARACTERS,
) -> Iterator[Features]:
    """Features of questions and contexts, a row's windows in one chunk.

    The label is the first answer that has a piece; all answers are counted.

    Args:
        rows: any number, a chunk of them is read at a time.
        tokenizer: questions go through its engine, contexts through its reference.
        max_length: positions of a feature at most, special tokens included.
        overlap: pieces of the context that neighbouring windows share; see `stages.text.windows`.
            Answers of up to `overlap // 2 + 1` pieces lie whole in the window that scores their
            first one.
        max_question_length: a longer question loses its end.
        chunk_characters: text at once.

    Yields:
        Features of chunks, in order. Counts: `rows`, `rows_impossible`, `rows_without_gold`
        (no answer given, or none that has a piece),
        `rows_answer_in_no_window` (too long for every window), `questions_truncated`,
        `question_pieces_cut`, `contexts_without_pieces` and `long_contexts` (of several windows),
        by row; `windows`; `answers` and how they were located, by `Context.locate`.

    Raises:
        ValueError: no room for a context beside the longest question, an answer out of place.
    """
    room = max_length - 3 - max_question_length
    if not 0 <= overlap < room or max_question_length < 0:
        raise ValueError(
            f"max_length={max_length} leaves {room} pieces of a context beside a question of "
            f"{max_question_length}: more than the overlap of {overlap} are needed"
        )
    first = 0
    for chunk in chunks(rows, lambda r: len(r.question) + len(r.context), chunk_characters):
        yield _chunk(chunk, first, tokenizer, max_length, overlap, max_question_length)
        first += len(chunk)


def _chunk(
    chunk: list[SpanRow],
    first: int,
    tokenizer: Tokenizer,
    max_length: int,
    overlap: int,
    max_question_length: int,
) -> Features:
    question_ids, question_ends = encode_texts([row.question for row in chunk], tokenizer)
    all_of_question = np.diff(question_ends)
    question = np.minimum(all_of_question, max_question_length)
    contexts = contexts_of((row.context for row in chunk), tokenizer)
    own_contexts = [contexts[row.context] for row in chunk]
    pool, context_begins = _pool(contexts, question_ids)
    context_begin = np.array([context_begins[row.context] for row in chunk], np.int64)
    pieces = np.array([len(context.pieces.ids) for context in own_contexts], np.int64)

    found = windows(pieces, max_length - 3 - question, overlap)
    text = found.text
    begin = context_begin[text]
    spans = np.empty((len(text), 2, 2), np.int64)
    spans[:, 0, 0] = question_ends[:-1][text]
    spans[:, 0, 1] = spans[:, 0, 0] + question[text]
    spans[:, 1, 0] = begin + found.starts
    spans[:, 1, 1] = begin + found.ends
    sources, offsets = laid_out(spans.reshape(-1, 2), np.full(len(text), 2))
    lengths = np.diff(offsets)
    own: Flags = sources >= np.repeat(found.own_starts + begin, lengths)
    own &= sources < np.repeat(found.own_ends + begin, lengths)

    gold, reasons = _gold(chunk, own_contexts)
    held = (gold[text, 0] >= found.starts) & (gold[text, 1] < found.ends) & (gold[text, 0] >= 0)
    labels = np.where(held[:, None], gold[text] - found.starts[:, None], 0)
    labels += np.where(held, question[text] + 2, 0)[:, None]
    labels[gold[text, 0] == IGNORED] = IGNORED
    is_held = np.zeros(len(chunk), np.bool_)
    is_held[text[held]] = True
    cut = all_of_question - question
    return Features(
        rows=first + text,
        input_ids=Lists(with_specials(pool.ids, sources, offsets, tokenizer), offsets),
        a_length=question[text].astype(np.int32),
        starts=labels[:, 0],
        ends=labels[:, 1],
        char_starts=gathered(pool.starts, sources, -1),
        char_ends=gathered(pool.ends, sources, -1),
        own=own,
        counts={
            "rows": len(chunk),
            "rows_impossible": sum(row.is_impossible for row in chunk),
            "rows_without_gold": int((gold[:, 0] == IGNORED).sum()),
            "rows_answer_in_no_window": int(((gold[:, 0] >= 0) & ~is_held).sum()),
            "questions_truncated": int((cut > 0).sum()),
            "question_pieces_cut": int(cut.sum()),
            "contexts_without_pieces": int((pieces == 0).sum()),
            "long_contexts": int((np.bincount(text, minlength=len(chunk)) > 1).sum()),
            "windows": len(text),
            "answers": sum(reasons.values()),
            **reasons,
        },
    )


def _pool(contexts: dict[str, Context], question_ids: Int32s) -> tuple[TextPieces, dict[str, int]]:
    """All pieces end to end, questions first (without places), and where each context begins."""
    nowhere = np.full(len(question_ids), -1, np.int32)
    parts = [context.pieces for context in contexts.values()]
    sizes = np.array([len(question_ids), *(len(part.ids) for part in parts)], np.int64)
    begins = np.cumsum(sizes)
    pool = TextPieces(
        np.concatenate([question_ids, *(part.ids for part in parts)]),
        np.concatenate([nowhere, *(part.starts for part in parts)]),
        np.concatenate([nowhere, *(part.ends for part in parts)]),
        np.append(0, begins),
    )
    return pool, dict(zip(contexts, begins.tolist(), strict=False))


_NO_ANSWER = -1


def _gold(chunk: list[SpanRow], contexts: list[Context]) -> tuple[Int64s, dict[str, int]]:
    """[D, 2] first and last piece of the answer in the context, and how all answers were located.

    _NO_ANSWER twice where there is none to be found, IGNORED twice where nothing is known.
    """
    gold = np.full((len(chunk), 2), IGNORED, np.int64)
    reasons: Counter[str] = Counter()
    for number, (row, context) in enumerate(zip(chunk, contexts, strict=True)):
        if row.is_impossible:
            gold[number] = _NO_ANSWER
            continue
        located = [context.locate(answer) for answer in row.answers]
        reasons.update(place.reason for place in located)
        for place in located:
            if place.first >= 0:
                gold[number] = place.first, place.last
                break
    return gold, dict(sorted(reasons.items()))
