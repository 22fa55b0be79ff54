"""Rows to predict from: a mapping as a file or a request gives it, checked for what is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stages.text.tasks.rows import SequenceRow, SpanRow, TokenRow

Do = Literal["classify", "pair", "tag", "answer", "embed", "fill_mask"]
"""What can be asked of a model."""

MASK = "[MASK]"

KEYS: dict[Do, tuple[str, ...]] = {
    "classify": ("text",),
    "pair": ("text", "text_b"),
    "tag": ("text", "words"),
    "answer": ("question", "context"),
    "embed": ("text",),
    "fill_mask": ("text",),
}
"""The keys that a row is read from; of "tag" it is one of the two."""


@dataclass(frozen=True)
class Unusable:
    """A row that nothing can be predicted from.

    Attributes:
        reason: what it is counted under.
        detail: what is wrong, for a person.
    """

    reason: str
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """As it stands among predictions."""
        return {"unusable": self.reason, "detail": self.detail}


@dataclass(frozen=True)
class TextRow:
    """A text to tag, whose words are still to be found."""

    text: str


Row = SequenceRow | TokenRow | TextRow | SpanRow


class _Wrong(Exception):  # noqa: N818 - becomes an `Unusable`
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.found = Unusable(reason, detail)


def read_row(values: Mapping[str, Any], do: Do) -> Row | Unusable:
    """A row for `do`; keys that it does not need are not looked at.

    Reasons: `missing_KEY` (or null), `not_text`, `empty_KEY` (white space alone), `undecodable`
    (half of a surrogate pair), `no_mask`.
    """
    try:
        return _row(values, do)
    except _Wrong as wrong:
        return wrong.found


def _row(values: Mapping[str, Any], do: Do) -> Row:
    if do == "answer":
        question, context = _text(values, "question"), _text(values, "context")
        return SpanRow("", question, context, (), False)
    if do == "tag":
        if values.get("words") is not None:
            return TokenRow("", _words(values["words"]), None)
        return TextRow(_text(values, "text"))
    text = _text(values, "text")
    if do == "fill_mask" and MASK not in text:
        raise _Wrong("no_mask", f"there is no {MASK} to fill in")
    is_pair = do == "pair" or (do == "classify" and values.get("text_b") is not None)
    return SequenceRow("", text, _text(values, "text_b") if is_pair else None, None)


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is None:
        raise _Wrong(f"missing_{key}", f"the row has no {key}")
    if not isinstance(value, str):
        raise _Wrong("not_text", f"{key} is no string but {type(value).__name__}")
    if not value.strip():
        raise _Wrong(f"empty_{key}", f"{key} is empty")
    _decodable(value, key)
    return value


def _words(value: Any) -> tuple[str, ...]:
    """A list of words, or words with white space between."""
    if not isinstance(value, str) and not isinstance(value, Iterable):
        raise _Wrong("not_text", f"words is no list but {type(value).__name__}")
    words: Sequence[Any] = value.split() if isinstance(value, str) else list(value)
    if not words:
        raise _Wrong("empty_words", "words is empty")
    for word in words:
        if not isinstance(word, str):
            raise _Wrong("not_text", f"a word is no string but {type(word).__name__}")
        _decodable(word, "words")
    return tuple(words)


def _decodable(text: str, key: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Wrong("undecodable", f"{key} holds half a character: {error.reason}") from None


def size(row: Row) -> int:
    """Characters of a row, to cut rows into chunks."""
    if isinstance(row, TokenRow):
        return sum(map(len, row.words)) + len(row.words)
    if isinstance(row, TextRow):
        return len(row.text)
    if isinstance(row, SpanRow):
        return len(row.question) + len(row.context)
    return len(row.text_a) + len(row.text_b or "")
