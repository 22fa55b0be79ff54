"""Sets of labels: found in train or given, in one order; and mistakes that whole sets can have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from stages.text.tasks.rows import Read, SequenceRow, TaskFileError, TokenRow
from stages.text.tasks.tags import OUTSIDE, PREFIXES, Scheme, split_tag

SHOWN = 5

_INTEGER = re.compile("0|-?[1-9][0-9]*")


def labels_of(row: SequenceRow | TokenRow) -> tuple[str, ...]:
    """The class of a row, or the tags of its words; () where it has none."""
    if isinstance(row, TokenRow):
        return row.tags or ()
    return (row.label,) if isinstance(row.label, str) else ()


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct labels: integers by value where all are, else by code points."""
    distinct = set(labels)
    if all(map(_INTEGER.fullmatch, distinct)):
        return tuple(sorted(distinct, key=int))
    return tuple(sorted(distinct))


def find_classes(
    train: Read[SequenceRow] | Read[TokenRow],
    given: Sequence[str] = (),
    scheme: Scheme = "plain",
    what: str = "train",
) -> tuple[str, ...]:
    """The classes of a task, each at its index.

    Args:
        given: all of them, in their order; () for those of `train` in the order of `in_order`.
        scheme: of tags: a type that `train` shows with one prefix has all of the scheme's, as a
            small set need not show them all.
        what: names the set.

    Raises:
        TaskFileError: there are less than two, or some are given twice.
    """
    counts = Counter(label for row in train.rows for label in labels_of(row))
    twice = [label for label, n in Counter(given).items() if n > 1]
    if twice:
        raise TaskFileError(f"labels given twice: {_listed(twice)}")
    if len(given) == 1:
        raise TaskFileError(f"one label is given, {given[0]!r}: a classifier needs two")
    if len(counts) == 1:
        ((label, n),) = counts.items()
        raise TaskFileError(
            f"{what} has one label only, {label!r} ({n} times): a classifier needs two. Is it the "
            "right column?"
        )
    if not counts:
        raise TaskFileError(f"{what} has no labels")
    if given:
        return tuple(given)
    found = set(counts)
    if scheme != "plain":
        kinds = {split_tag(tag)[1] for tag in found - {OUTSIDE}}
        found |= {OUTSIDE} | {f"{prefix}-{kind}" for kind in kinds for prefix in PREFIXES[scheme]}
    return in_order(found)


def require_known(
    read: Read[SequenceRow] | Read[TokenRow], classes: Sequence[str], what: str = "dev"
) -> None:
    """Refuse a set with labels that are not among the classes: no model could ever give them.

    Raises:
        TaskFileError: it names them, how often they stand there, and where first.
    """
    known = frozenset(classes)
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for row in read.rows:
        for label in labels_of(row):
            if label not in known:
                counts[label] += 1
                first.setdefault(label, row.id)
    if counts:
        named = [
            f"{label!r} ({n} times, first in {first[label]})"
            for label, n in counts.most_common(SHOWN)
        ]
        more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
        raise TaskFileError(
            f"{what} has labels that train has not: {', '.join(named)}{more}. Those of train: "
            f"{_listed(classes)}. Mend the file, or give the list of labels: rows with others are "
            "then counted and left out"
        )


def require_values(read: Read[SequenceRow], what: str = "train") -> None:
    """Refuse a set for regression whose values are all one.

    Raises:
        TaskFileError: it says the value.
    """
    values = {row.label for row in read.rows if isinstance(row.label, float)}
    if not values:
        raise TaskFileError(f"{what} has no values")
    if len(values) == 1:
        raise TaskFileError(
            f"{what} has one value only, {values.pop()!r}: there is nothing to learn"
        )


def _listed(labels: Sequence[str], most: int = 30) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(map(repr, labels[:most])) + more
