"""`bench.finetune answers`: what becomes of answers and tags on the way text -> pieces -> text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.text.existing import read_existing
from stages.text.task_answers import fill_class, stitched
from stages.text.task_pieces import Features, add_counts
from stages.text.task_spans import EXACT, span_features
from stages.text.task_words import word_features
from stages.text.tasks.conll import ConllColumns
from stages.text.tasks.labels import find_classes
from stages.text.tasks.rows import SpanRow, TokenRow
from stages.text.tasks.spans import read_spans
from stages.text.tasks.tokens import TokenColumns, read_tokens
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

ANSWERS: dict[str, tuple[str, ...]] = {
    "squad_v1": ("squad_v1/train-v1.1.json", "squad_v1/dev-v1.1.json"),
    "squad_v2": ("squad_v2/train-v2.0.json", "squad_v2/dev-v2.0.json"),
    **{f"xquad {language}": (f"xquad/xquad.{language}.json",) for language in ("de", "vi", "zh")},
}
TAGS: dict[str, tuple[tuple[str, ...], TokenColumns]] = {
    "wikigold": (
        tuple(f"wikigold/{part}.conll" for part in ("train", "dev", "test")),
        TokenColumns(),
    ),
    "germeval2014": (
        ("germeval2014/NER-de-dev.tsv",),
        TokenColumns(format="conll", conll=ConllColumns(words=1, tags=2)),
    ),
}
VOCABULARIES: dict[str, bool] = {"uncased": True, "cased": False, "chinese": True}
"""Google's, and whether text is lowercased for them."""


def answers(data: Path) -> dict[str, Any]:
    """Counts by vocabulary and set; `data` holds the task sets, and vocab/ lies beside it."""
    found: dict[str, Any] = {}
    for name, lowercase in VOCABULARIES.items():
        path = data.parent / f"vocab/bert-base-{name}-vocab.txt"
        normal = Normalisation(lowercase=lowercase, strip_accents=lowercase)
        tokenizer = Tokenizer(read_existing(path).tokens, normal)
        counted = found[name] = {}
        for set_name, files in ANSWERS.items():
            read = read_spans([data / file for file in files])
            counted[set_name] = dict(read.reasons) | _located(read.rows, tokenizer)
        for set_name, (files, columns) in TAGS.items():
            tagged = read_tokens([data / file for file in files], columns)
            classes = find_classes(tagged)
            counted[set_name] = dict(tagged.reasons) | _tags(tagged.rows, tokenizer, classes)
    return found


def _located(rows: Sequence[SpanRow], tokenizer: Tokenizer) -> dict[str, int]:
    counts = add_counts(part.counts for part in span_features(rows, tokenizer, 384, 128))
    reasons = {name: n for name, n in counts.items() if name.startswith("answers")}
    return {"questions": len(rows), **reasons}


def _tags(rows: Sequence[TokenRow], tokenizer: Tokenizer, classes: Sequence[str]) -> dict[str, int]:
    parts: list[tuple[Features, Any]] = [
        (part, part.labels) for part in word_features(rows, tokenizer, 128, 32, classes)
    ]
    fill = fill_class(classes)
    back = stitched(parts, [len(row.words) for row in rows], fill)
    wrong = 0
    for row, values in zip(rows, back, strict=True):
        wrong += int(np.sum([classes[v] for v in values] != np.array(row.tags)))
    filled = add_counts(part.counts for part, _ in parts)["words_without_pieces"]
    return {
        "words": sum(len(row.words) for row in rows),
        "tags_back": sum(len(row.words) for row in rows) - wrong,
        "words_without_pieces": filled,
    }


HEADER = ("vocabulary", "set", "answers or words", "exactly back", "others, by reason")


def lines(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table."""
    rows: list[tuple[str, ...]] = []
    for vocabulary, sets in found.items():
        for name, counts in sets.items():
            of, back = ("words", "tags_back") if "words" in counts else ("answers", EXACT)
            others = ", ".join(
                f"{reason} {n:,}"
                for reason, n in sorted(counts.items())
                if n and reason not in (of, back, "questions")
            )
            rows.append((vocabulary, name, f"{counts[of]:,}", f"{counts[back]:,}", others))
    return rows
