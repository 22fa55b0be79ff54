"""Rows of fine-tuning tasks as their files hold them, and what reading these came to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from stages.text.listing import shown
from stages.text.records import Reject
from stages.text.uris import local_path

R = TypeVar("R")

EXAMPLES = 3
"""Quarantined rows that are shown of each reason."""

EXAMPLE_CHARACTERS = 300


class TaskFileError(ValueError):
    """A file of a task is wrong as a whole; the message says what, where and what to do."""


class MissingColumnError(TaskFileError):
    """A column that was asked for by name is not there."""


@dataclass(frozen=True)
class SequenceRow:
    """One text or two, and their label.

    Attributes:
        id: as the file says, or its place there ("line 12", "row 3").
        text_a: the text, or the first of a pair.
        text_b: the second of a pair.
        label: a class (string), a value (float), or None where labels are not read.
    """

    id: str
    text_a: str
    text_b: str | None
    label: str | float | None


@dataclass(frozen=True)
class TokenRow:
    """Words, and a tag for each; None where tags are not read."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


@dataclass(frozen=True)
class Answer:
    """`context[start : start + len(text)] == text`, counted in code points."""

    start: int
    text: str


@dataclass(frozen=True)
class SpanRow:
    """A question about a context.

    Attributes:
        answers: references, in their order. Without any, and not impossible, there is no gold.
        is_impossible: the context does not answer the question.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool


@dataclass(frozen=True)
class Read(Generic[R]):
    """What was read.

    Attributes:
        rows: in the order of files and places in them.
        counts: "in" (rows found), "rows" (those that can be used), and each reason for which
            others cannot: "in" is the sum of the rest.
        examples: reason -> some of its rows: file, place, what is wrong.
    """

    rows: tuple[R, ...]
    counts: Mapping[str, int]
    examples: Mapping[str, tuple[str, ...]]

    @property
    def reasons(self) -> dict[str, int]:
        """Rows that cannot be used, by reason."""
        return {reason: n for reason, n in self.counts.items() if reason not in ("in", "rows")}


def gather(found: Iterable[tuple[str, R | Reject]]) -> Read[R]:
    """Count what was found: pairs of (file, row or reject)."""
    rows: list[R] = []
    reasons: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for file, item in found:
        if isinstance(item, Reject):
            reasons[item.reason] += 1
            if reasons[item.reason] <= EXAMPLES:
                examples.setdefault(item.reason, []).append(example(file, item))
        else:
            rows.append(item)
    counts = {"in": len(rows) + sum(reasons.values()), "rows": len(rows)}
    return Read(
        tuple(rows),
        counts | {reason: reasons[reason] for reason in sorted(reasons)},
        {reason: tuple(examples[reason]) for reason in sorted(examples)},
    )


def example(file: str, reject: Reject) -> str:
    """A reject in one line."""
    start = f": {reject.snippet.strip()}" if reject.snippet.strip() else ""
    line = f"{file} {reject.where}: {reject.detail}{start}"
    return line[:EXAMPLE_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def nearest(word: str, known: Iterable[str]) -> str:
    """What is meant by a word that is not known, whatever its case; "" where nothing is near."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lowered, 1, 0.6)
    return lowered[near[0]] if near else ""


class KnownLabels:
    """The labels that are given, if any are, asked about one after the other."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._problems = dict.fromkeys(classes, "")
        self._classes = tuple(classes)

    def problem(self, label: str) -> str:
        """What is wrong with a label; "" where nothing is."""
        if not self._classes:
            return ""
        if label not in self._problems:
            near = nearest(label, self._classes)
            hint = f" (did you mean {near!r}?)" if near else ""
            self._problems[label] = f"label {label!r} is not one of those given{hint}"
        return self._problems[label]


def require_usable(read: Read[R], what: str, most: float) -> None:
    """Refuse a set in which nothing can be used, or in which too much cannot.

    Args:
        what: names the set ("train").
        most: largest share of rows that may be left out, 0 to 1.

    Raises:
        TaskFileError: it says the reasons and shows examples.
    """
    found, usable = read.counts["in"], read.counts["rows"]
    lost = found - usable
    if not found:
        raise TaskFileError(f"{what} holds no rows")
    if usable and lost <= most * found:
        return
    if usable:
        said = f"{lost} of {found} rows cannot be used"
    elif found == 1:
        said = "its only row cannot be used"
    else:
        said = f"none of its {found} rows can be used"
    limit = f" ({lost / found:.1%}; {most:.1%} may be left out)" if usable else ""
    lines = [
        f"  {reason} ({n}): {line}"
        for reason, n in sorted(read.reasons.items(), key=lambda item: (-item[1], item[0]))
        for line in read.examples[reason][:1]
    ]
    raise TaskFileError("\n".join([f"{what}: {said}{limit}", *lines]))


def file_names(paths: Sequence[str | Path]) -> Iterator[tuple[str, str, str]]:
    """(path, its name for a person, what ids of the file begin with) of each file of a set.

    The places in several files are told apart by their names, and by a number where these are
    equal: never by folders, as the same files elsewhere are the same set.
    """
    if not paths:
        raise TaskFileError("no file is given")
    whole = [local_path(str(path)) for path in paths]
    names = [shown(path).rstrip("/").rpartition("/")[2] for path in whole]
    for i, (path, name) in enumerate(zip(whole, names, strict=True)):
        own = name if names.count(name) == 1 else f"{name}#{names[:i].count(name) + 1}"
        yield path, shown(path), f"{own} " if len(whole) > 1 else ""
