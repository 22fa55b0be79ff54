"""The task sets beside the repository, read in the plainest way."""

from __future__ import annotations

import json

from stages.text.tasks.rows import Answer, SequenceRow, SpanRow, TokenRow
from tests.oracle.real_text import shared_data


def lines(name: str) -> list[str]:
    return (shared_data() / "tasks" / name).read_text(encoding="utf-8").split("\n")


def sequence_rows(name: str, columns: list[int]) -> list[SequenceRow]:
    """Rows of a TSV with a header: the columns of text a, (text b,) and label."""
    rows = [line.split("\t") for line in lines(name)[1:] if line]
    texts = [[row[column] for column in columns] for row in rows]
    return [
        SequenceRow(str(i), t[0], t[1] if len(t) > 2 else None, t[-1]) for i, t in enumerate(texts)
    ]


def token_rows(name: str, word: int, tag: int, separator: str) -> list[TokenRow]:
    """Sentences of a CoNLL file."""
    rows: list[TokenRow] = []
    sentence: list[list[str]] = []
    for line in [*lines(name), ""]:
        fields = line.split(separator)
        if line and fields[0] not in ("#", "-DOCSTART-"):
            sentence.append(fields)
        elif not line and sentence:
            words, tags = (tuple(f[column] for f in sentence) for column in (word, tag))
            rows.append(TokenRow(str(len(rows)), words, tags))
            sentence = []
    return rows


def span_rows(name: str) -> list[SpanRow]:
    """Questions of a SQuAD file."""
    content = json.loads("\n".join(lines(name)))
    return [
        SpanRow(
            question["id"],
            question["question"],
            paragraph["context"],
            tuple(Answer(a["answer_start"], a["text"]) for a in question["answers"]),
            question.get("is_impossible", False),
        )
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


GERMEVAL = ("germeval2014/NER-de-dev.tsv", 1, 2, "\t")
WIKIGOLD = tuple((f"wikigold/{part}.conll", 0, 1, " ") for part in ("train", "dev", "test"))
