"""Figures of tasks from their definitions, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Span = tuple[int, int, str]


def f1_of(gold: Sequence[int], predicted: Sequence[int], positive: int) -> Fraction:
    both = sum(g == p == positive for g, p in zip(gold, predicted, strict=True))
    one = sum((g == positive) != (p == positive) for g, p in zip(gold, predicted, strict=True))
    return Fraction(2 * both, 2 * both + one) if both + one else Fraction(0)


def macro_f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    seen = set(gold) | set(predicted)
    return float(sum(f1_of(gold, predicted, c) for c in seen) / len(seen))


def matthews(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Covariance of one-hot rows over the root of both variances (Gorodkin 2004)."""

    def covariance(x: Sequence[int], y: Sequence[int]) -> Fraction:
        n, total = len(x), Fraction(0)
        for c in set(x) | set(y):
            a, b = [int(v == c) for v in x], [int(v == c) for v in y]
            mean_a, mean_b = Fraction(sum(a), n), Fraction(sum(b), n)
            total += sum((i - mean_a) * (j - mean_b) for i, j in zip(a, b, strict=True))
        return total

    below = covariance(gold, gold) * covariance(predicted, predicted)
    return float(covariance(gold, predicted)) / math.sqrt(below) if below else 0.0


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    a, b = [Fraction(v) for v in x], [Fraction(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    above = sum((i - mean_a) * (j - mean_b) for i, j in zip(a, b, strict=True))
    below = sum((i - mean_a) ** 2 for i in a) * sum((j - mean_b) ** 2 for j in b)
    return float(above) / math.sqrt(below)


def ranks(x: Sequence[float]) -> list[float]:
    """Tied values share the mean of their places."""
    return [sum(o < v for o in x) + (sum(o == v for o in x) + 1) / 2 for v in x]


def conlleval_counts(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, list[int]]:
    """Type -> right, predicted, gold: both sequences are walked together, as conlleval does.

    An entity is right when both sides begin one of a type at the same word, agree on every word
    where either could end, and end at the same word.
    """

    def split(tag: str) -> tuple[str, str]:
        prefix, _, kind = tag.partition("-")
        return prefix, kind

    def ends(before: str, after: str) -> bool:
        (a, kind_a), (b, kind_b) = split(before), split(after)
        return a != "O" and (b in ("B", "S", "O") or a in ("E", "S") or kind_a != kind_b)

    def starts(before: str, after: str) -> bool:
        (a, kind_a), (b, kind_b) = split(before), split(after)
        return b != "O" and (b in ("B", "S") or a in ("O", "E", "S") or kind_a != kind_b)

    counts: dict[str, list[int]] = {}
    both = False
    true, guess = "O", "O"
    for next_true, next_guess in zip([*gold, "O"], [*predicted, "O"], strict=True):
        if both and ends(true, next_true) and ends(guess, next_guess):
            counts.setdefault(split(true)[1], [0, 0, 0])[0] += 1
            both = False
        elif both and ends(true, next_true) != ends(guess, next_guess):
            both = False
        for column, before, after in ((2, true, next_true), (1, guess, next_guess)):
            if starts(before, after):
                counts.setdefault(split(after)[1], [0, 0, 0])[column] += 1
        if starts(true, next_true) and starts(guess, next_guess):
            both = split(next_true)[1] == split(next_guess)[1]
        true, guess = next_true, next_guess
    return counts


def strict_entities(tags: Sequence[str], scheme: str) -> set[Span]:
    """Every stretch of words is tried against what the scheme allows."""
    found = set()
    for start in range(len(tags)):
        for end in range(start + 1, len(tags) + 1):
            kind = tags[start][2:]
            inside = [f"I-{kind}"] * (end - start - 1)
            stretch = list(tags[start:end])
            if scheme == "BIO":
                goes_on = end < len(tags) and tags[end] == f"I-{kind}"
                right = stretch == [f"B-{kind}", *inside] and not goes_on
            elif end - start == 1:
                right = stretch == [f"S-{kind}"]
            else:
                right = stretch == [f"B-{kind}", *inside[:-1], f"E-{kind}"]
            if right:
                found.add((start, end, kind))
    return found


def squad_words(text: str) -> list[str]:
    """Lower case, no ASCII punctuation, no English article that stands alone."""
    kept = [c for c in text.lower() if not (c.isascii() and c.isprintable() and _is_mark(c))]
    words, word = [], ""
    # Articles are looked for where letters, digits and underscores begin and end (regex \b), so
    # that "the" goes even from "the–end".
    pieces: list[str] = []
    for c in kept:
        if c.isalnum() or c == "_":
            word += c
        else:
            pieces += [word, c]
            word = ""
    pieces.append(word)
    words = "".join(" " if p in ("a", "an", "the") else p for p in pieces)
    return words.split()


def _is_mark(c: str) -> bool:
    return not c.isalnum() and c != " "


def squad_f1(predicted: str, gold: str) -> float:
    ours, theirs = squad_words(predicted), squad_words(gold)
    if not ours or not theirs:
        return float(not ours and not theirs)
    left, shared = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def mean_at(
    scores: Sequence[float], null: Sequence[float], has: Sequence[bool], threshold: float
) -> float:
    """The mean score when a null score above the threshold makes the answer empty."""
    total = 0.0
    for score, n, h in zip(scores, null, has, strict=True):
        total += float(not h) if n > threshold else score
    return total / len(scores)


def wilson(right: int, rows: int, z: float) -> tuple[float, float]:
    """The two p at which (share - p)^2 = z^2 p (1 - p) / rows."""
    share = right / rows
    a, b, c = 1 + z * z / rows, -(2 * share + z * z / rows), share * share
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def welch_degrees(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Standard error and degrees of freedom (Welch 1947, Satterthwaite 1946)."""

    def part(x: Sequence[float]) -> float:
        mean = math.fsum(x) / len(x)
        return math.fsum((v - mean) ** 2 for v in x) / (len(x) - 1) / len(x)

    p, q = part(a), part(b)
    return math.sqrt(p + q), (p + q) ** 2 / (p * p / (len(a) - 1) + q * q / (len(b) - 1))
