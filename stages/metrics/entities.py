"""Entities in tag sequences, scored as the CoNLL shared tasks do.

An entity is right when its first word, its last word and its type are. Two ways to read tags:

- The rule of the CoNLL script `conlleval` (default): an entity begins at B or S, after O, E or S,
  and where the type changes, whatever the tags ought to be. Published figures, those of seqeval's
  default and of transformers' examples are by this rule, it reads IO, IOB1, BIO and BIOES alike,
  and an entity that a reader of the output would see counts as one.
- Strict: only what the scheme allows is an entity; an I that continues nothing is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stages.metrics.figures import Figures, check_rows

Entity = tuple[int, int, str]
"""First word, the word after the last, type."""

Strict = Literal["BIO", "BIOES"]

# BILOU says L for E and U for S, BMES says M for I.
PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}


@cache
def parse_tag(tag: str) -> tuple[str, str]:
    """("B", "PER") of "B-PER"; a bare type ("PER") is inside, a bare B, I, E or S has no type."""
    if tag == "O":
        return "O", ""
    if tag[1:2] == "-" and tag[0] in PREFIXES:
        return PREFIXES[tag[0]], tag[2:]
    return (tag, "") if tag in ("B", "I", "E", "S") else ("I", tag)


def entities(tags: Sequence[str], strict: Strict | None = None) -> list[Entity]:
    """The entities of one sentence, in order; by conlleval's rule unless `strict` names a scheme.

    The schemes IO and IOB1 have no strict reading: conlleval's rule is their definition.
    """
    found: list[Entity] = []
    start, prefix, kind = -1, "O", ""
    for i, tag in enumerate((*tags, "O")):
        before, before_kind, (prefix, kind) = prefix, kind, parse_tag(tag)
        goes_on = prefix in "IE" and before in "BI" and kind == before_kind
        if start >= 0 and not goes_on:
            if strict != "BIOES" or before in "ES":
                found.append((start, i, before_kind))
            start = -1
        if prefix in "BS" or (prefix in "IE" and not goes_on and not strict):
            start = i
    return found


def entity_counts(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    strict: Strict | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Type -> int64[N, 3]: entities that are right, predicted and gold, for each sentence.

    Sums over any sentences give their figures, so intervals can be drawn from it.

    Raises:
        ValueError: no sentences, or a sentence whose tags differ in number.
    """
    n = check_rows(gold, predicted)
    counts: dict[str, NDArray[np.int64]] = {}
    for row, (true, guessed) in enumerate(zip(gold, predicted, strict=True)):
        if len(true) != len(guessed):
            raise ValueError(f"sentence {row}: {len(true)} gold tags, {len(guessed)} predicted")
        sides = entities(guessed, strict), entities(true, strict)
        right = set(sides[0]) & set(sides[1])
        for column, side in enumerate((right, *sides)):
            for _, _, kind in side:
                counts.setdefault(kind, np.zeros((n, 3), np.int64))[row, column] += 1
    return {kind: counts[kind] for kind in sorted(counts)}


def entity_figures(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    strict: Strict | None = None,
) -> Figures:
    """Precision, recall and F1 of entities, over all and by type, and the share of right tags.

    Args:
        gold: N sentences of tags.
        predicted: the same words' predicted tags.
        strict: a scheme, to count only what it allows (see above).

    Returns:
        `precision`, `recall`, `f1`; `precision/PER`... for each type in gold or predicted (a type
        without a name is `untyped`); `accuracy` over words, O included.

    Raises:
        ValueError: no sentences, none with a word, or a sentence whose tags differ in number.
    """
    counts = entity_counts(gold, predicted, strict)
    words = sum(len(tags) for tags in gold)
    if not words:
        raise ValueError(f"{len(gold):,} sentences without a word")
    right = sum(
        t == p for a, b in zip(gold, predicted, strict=True) for t, p in zip(a, b, strict=True)
    )
    figures = Figures()
    _add(figures, "", np.sum([c.sum(axis=0) for c in counts.values()], axis=0).reshape(-1))
    figures.values["accuracy"] = right / words
    for kind, counted in counts.items():
        _add(figures, f"/{kind or 'untyped'}", counted.sum(axis=0))
    return figures


def _add(figures: Figures, suffix: str, counted: NDArray[np.int64]) -> None:
    right, predicted, gold = counted.tolist() if counted.size == 3 else (0, 0, 0)
    figures.share(f"precision{suffix}", right, predicted, "no entity was predicted")
    figures.share(f"recall{suffix}", right, gold, "there is no gold entity")
    figures.share(f"f1{suffix}", 2 * right, predicted + gold, "no entity in gold or predicted")
