"""Results as a table on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.commands.text import table
from stages.predict_input import Item
from stages.predict_output import Row
from stages.prediction_rows import KEYS, Do, Unusable
from stages.prediction_tags import Tagged
from stages.predictor import plain

AT_ONCE = 500
"""Lines of one table; a longer one is several."""

TEXT_CHARACTERS = 200
VECTOR_SHOWN = 4

HEADERS: dict[Do, tuple[str, ...]] = {
    "classify": ("label", "value", "score", "text"),
    "pair": ("label", "value", "score", "texts"),
    "tag": ("row", "type", "word", "tag", "place", "score", "text"),
    "answer": ("score", "answer", "question"),
    "embed": ("dimensions", "vector", "text"),
    "fill_mask": ("score", "token", "text"),
}


class Shown:
    """Prints tables of results beside the texts that they are of.

    Args:
        do: what was asked.
        width: of the terminal.
    """

    def __init__(self, do: Do, width: int) -> None:
        self._do = do
        self._width = width
        self._texts: dict[int, str] = {}
        self._lines: list[tuple[str, ...]] = []

    def read(self, number: int, row: Item) -> None:
        """Remember the text of a row until its result comes."""
        if not isinstance(row, Unusable):
            self._texts[number] = _text(self._do, row)

    def write(self, number: int, row: Row) -> None:
        """One more result."""
        text = self._texts.pop(number, "")
        self._lines += lines(self._do, number, plain(row), text, isinstance(row, Tagged))
        if len(self._lines) >= AT_ONCE:
            self._print()

    def close(self) -> None:
        """Print what is left."""
        self._print()

    def _print(self) -> None:
        for line in table(HEADERS[self._do], self._lines, self._width):
            print(line)
        self._lines = []


def lines(
    do: Do, number: int, row: Mapping[str, Any], text: str, tagged: bool
) -> Iterator[tuple[str, ...]]:
    """Lines of a result under `HEADERS`."""
    if tagged:
        yield from _tag_lines(number, row)
    elif do == "answer":
        for found in row.get("answers") or [row]:
            answer = "(no answer)" if found["answer"] is None else found["answer"]
            yield _score(found["score"]), _short(answer), text
    elif do == "embed":
        vector = row["vector"]
        start = ", ".join(f"{value:.4f}" for value in vector[:VECTOR_SHOWN])
        yield str(len(vector)), f"{start}, ...", text
    elif do == "fill_mask":
        for mask in row["masks"]:
            for offer in mask["tokens"]:
                yield _score(offer["score"]), offer["token"], text
    else:
        value = f"{row['value']:.4f}" if "value" in row else ""
        yield row.get("label", ""), value, _score(row.get("score")), text


def _tag_lines(number: int, row: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The entities, or the words where there are none."""
    for found in row["entities"]:
        place = f"{found['start']}-{found['end']}"
        score = _score(found["score"])
        yield str(number), found["type"], "", "", place, score, _short(found["text"])
    if row["entities"]:
        return
    for word in row["words"]:
        place = f"{word['start']}-{word['end']}"
        yield str(number), "", word["word"], word["tag"], place, _score(word["score"]), ""


def _text(do: Do, row: Mapping[str, Any]) -> str:
    if do == "answer":
        return _short(str(row.get("question")))
    keys = KEYS[do] if do == "pair" else ("text", "text_b")
    return " | ".join(_short(str(row[key])) for key in keys if row.get(key) is not None)


def _short(text: str) -> str:
    """On one line, and not too long."""
    text = " ".join(text[: 2 * TEXT_CHARACTERS].split())
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.4f}"
