"""Schemes of tags: how entities are written as a tag for each word.

IO: `I-x` for each word of an entity of type x, so that two of one type side by side are one.
BIO (IOB2): `B-x` for its first word. IOB1: `B-x` only where it would run into the one before
(Ramshaw and Marcus, 1995). BIOES: `E-x` for its last word, `S-x` for its only one. BILOU: `L-x` and
`U-x` for these. All others are "plain": a tag says all by itself, as parts of speech do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Scheme = Literal["plain", "IO", "IOB1", "BIO", "BIOES", "BILOU"]

PREFIXES: dict[str, str] = {
    "IO": "I",
    "IOB1": "BI",
    "BIO": "BI",
    "BIOES": "BIES",
    "BILOU": "BILU",
}
"""What tags of a scheme begin with."""

OUTSIDE = "O"

_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)

_ENDS = frozenset("ESLU")
_STARTS = frozenset("BSU")


class Entity(NamedTuple):
    """Words start..end - 1 are an entity of a type."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag of an entity; ("", "") of the tag outside.

    Raises:
        ValueError: it is no tag of any scheme.
    """
    if tag == OUTSIDE:
        return "", ""
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ValueError(
            f"{tag!r} is no tag of an entity (O, or B-, I-, E-, S-, L-, U- and a type)"
        )
    return match[1], match[2]


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that tags are written in; of train, as few sentences may not show all of it.

    A fault in it (an `I-x` that no `B-x` precedes, among others that one does) changes nothing.
    """
    prefixes: set[str] = set()
    open_starts = needless_starts = False
    for tags in sentences:
        before = ("", "")
        for tag in tags:
            try:
                prefix, kind = split_tag(tag)
            except ValueError:
                return "plain"
            goes_on = bool(prefix) and before[1] == kind and before[0] not in _ENDS
            open_starts |= prefix == "I" and not goes_on
            needless_starts |= prefix == "B" and not goes_on
            prefixes.add(prefix)
            before = (prefix, kind)
    prefixes.discard("")
    if not prefixes:
        return "plain"
    if prefixes <= {"I"}:
        return "IO"
    if prefixes <= set("BI"):
        return "IOB1" if open_starts and not needless_starts else "BIO"
    if prefixes <= set("BIES"):
        return "BIOES"
    return "BILOU" if prefixes <= set("BILU") else "plain"


def entities(tags: Sequence[str]) -> tuple[Entity, ...]:
    """The entities of a sentence in any scheme but "plain", in their order.

    A tag that does not go on from the one before begins an entity, as in conlleval (CoNLL-2000).

    Raises:
        ValueError: a tag is of no scheme.
    """
    found: list[Entity] = []
    before = ("", "")
    for i, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        goes_on = before[1] == kind and before[0] not in _ENDS and prefix not in _STARTS
        if prefix and goes_on:
            found[-1] = found[-1]._replace(end=i + 1)
        elif prefix:
            found.append(Entity(kind, i, i + 1))
        before = (prefix, kind)
    return tuple(found)


def write_tags(found: Sequence[Entity], length: int, scheme: Scheme) -> tuple[str, ...]:
    """[length] the tags of entities, which stand in their order and share no word.

    Raises:
        ValueError: they overlap, or stand outside; or the scheme has no entities.
    """
    if scheme == "plain":
        raise ValueError("plain tags mark no entities")
    tags = [OUTSIDE] * length
    end_before, type_before = 0, ""
    for kind, start, end in found:
        if not end_before <= start < end <= length:
            raise ValueError(f"entity {kind!r} at words {start} to {end - 1} of {length} overlaps")
        inside = ["I"] * (end - start)
        meets = start == end_before and type_before == kind
        if scheme in ("BIO", "BIOES", "BILOU") or (scheme == "IOB1" and meets):
            inside[0] = "B"
        if scheme in ("BIOES", "BILOU"):
            inside[-1] = "E" if scheme == "BIOES" else "L"
            if len(inside) == 1:
                inside[0] = "S" if scheme == "BIOES" else "U"
        tags[start:end] = [f"{prefix}-{kind}" for prefix in inside]
        end_before, type_before = end, kind
    return tuple(tags)


def convert_tags(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The same entities in another scheme; to IO, those of one type side by side become one.

    Raises:
        ValueError: a tag is of no scheme, or `scheme` is "plain".
    """
    return write_tags(entities(tags), len(tags), scheme)
