"""Figures of one text and C4's line rules, with Python strings: slow and plain."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLETS = "-*•‣⁃▪●◦▶■□–"
TERMINALS = ".!?\"'»؟۔“”’…।॥።。」』．！？"


def kind(character: str) -> str:
    if character in " \n":
        return "blank"
    category = unicodedata.category(character)
    if category == "Nd":
        return "digit"
    return "symbol" if category[0] in "PS" else "letter"


def share(part: float, whole: float) -> float:
    return part / max(whole, 1)


def units(text: str) -> list[str]:
    found = []
    for word in text.split():
        found += re.findall(
            "[\u0e00-\u0eff\u1000-\u107f\u1780-\u17ff\u3000-\u9fff\uf900-\ufaff\U00020000-\U00033fff]"
            "|[^\u0e00-\u0eff\u1000-\u107f\u1780-\u17ff\u3000-\u9fff\uf900-\ufaff\U00020000-\U00033fff]+",
            word,
        )
    return found


def repeated(stretches: list[str]) -> tuple[float, float]:
    seen: set[str] = set()
    number = size = 0
    for stretch in stretches:
        if stretch in seen:
            number += 1
            size += len(stretch)
        seen.add(stretch)
    return share(number, len(stretches)), share(size, sum(map(len, stretches)))


def top_ngram(text: str, n: int) -> float:
    words = units(text)
    counts = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    best = max(((c, sum(map(len, gram))) for gram, c in counts.items() if c > 1), default=(0, 0))
    return share(best[0] * best[1], sum(map(len, words)))


def repeated_ngrams(text: str, n: int) -> float:
    words = units(text)
    seen: set[tuple[str, ...]] = set()
    covered: set[int] = set()
    for i in range(len(words) - n + 1):
        gram = tuple(words[i : i + n])
        if gram in seen:
            covered.update(range(i, i + n))
        seen.add(gram)
    return share(sum(len(words[i]) for i in covered), sum(map(len, words)))


def figure(text: str, name: str) -> float:
    """`text` is cleaned; names are those of `stages.text.quality`."""
    words, lines = text.split(), [line for line in text.split("\n") if line]
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph]
    letters = "".join(words)
    kinds = Counter(map(kind, letters))
    match name.rpartition("_"):
        case ("top", _, grams) if grams.endswith("grams"):
            return top_ngram(text, int(grams.removesuffix("grams")))
        case ("repeated", _, grams) if grams.endswith("grams"):
            return repeated_ngrams(text, int(grams.removesuffix("grams")))
    match name:
        case "words":
            return len(words)
        case "mean_word_length":
            return share(len(letters), len(words))
        case "symbols":
            return share(kinds["symbol"], len(letters))
        case "digits":
            return share(kinds["digit"], len(letters))
        case "symbol_word_ratio":
            ellipses = text.count("...") + text.count("…")
            return share(max(text.count("#"), ellipses), len(words))
        case "bullet_lines":
            return share(sum(line[0] in BULLETS for line in lines), len(lines))
        case "ellipsis_lines":
            return share(sum(line.endswith(("...", "…")) for line in lines), len(lines))
        case "letter_words":
            return share(sum(any(kind(c) == "letter" for c in w) for w in words), len(words))
        case "stop_words":
            lower = {"".join(c.lower() if c.isascii() else c for c in w) for w in words}
            return len(lower & set(STOP_WORDS))
        case "repeated_lines":
            return repeated(lines)[0]
        case "repeated_line_characters":
            return repeated(lines)[1]
        case "repeated_paragraphs":
            return repeated(paragraphs)[0]
        case "repeated_paragraph_characters":
            return repeated(paragraphs)[1]
    raise ValueError(name)


def kept_lines(text: str, terminated: bool, min_words: int | None, phrases: list[str]) -> str:
    blocks = []
    for block in text.split("\n\n"):
        lines = [
            line
            for line in block.split("\n")
            if line
            and not (terminated and line[-1] not in TERMINALS)
            and not (min_words is not None and len(line.split()) < min_words)
            and not any(phrase in line.lower() for phrase in phrases)
        ]
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
