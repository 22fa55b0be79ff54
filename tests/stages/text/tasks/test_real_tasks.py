"""All real tasks: as many rows as their list says, and each as a plain twin reads it."""

from __future__ import annotations

import csv
import json
from collections import Counter

import pytest

from stages.text.tasks.conll import ConllColumns
from stages.text.tasks.glue import glue_layout
from stages.text.tasks.labels import find_classes, require_known
from stages.text.tasks.rows import require_usable
from stages.text.tasks.sequences import SequenceColumns, read_sequences
from stages.text.tasks.spans import read_spans
from stages.text.tasks.tags import convert_tags, detect_scheme, entities
from stages.text.tasks.tokens import TokenColumns, read_tokens
from tests.oracle.real_text import tasks

GLUE = [
    ("sst2", "sst2/train.tsv", 6920, ("0", "1")),
    ("sst2", "sst2/dev.tsv", 872, ("0", "1")),
    ("sst2", "sst2/test.tsv", 1821, ("0", "1")),
    ("qnli", "qnli/train.tsv", 4252, ("entailment", "not_entailment")),
    ("qnli", "qnli/dev.tsv", 1000, ("entailment", "not_entailment")),
    ("mnli", "med/train.tsv", 4382, ("entailment", "neutral")),
    ("mnli", "med/dev_matched.tsv", 1000, ("entailment", "neutral")),
]


@pytest.mark.parametrize(("layout", "file", "count", "classes"), GLUE)
def test_glue_files(layout: str, file: str, count: int, classes: tuple[str, ...]) -> None:
    path = tasks() / file
    columns = glue_layout(layout)
    found = read_sequences([path], columns)
    assert found.counts == {"in": count, "rows": count}
    with path.open(encoding="utf-8", newline="\n") as lines:
        twin = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    names = [n for n in (columns.text_a, columns.text_b, columns.label) if n]
    assert [tuple(row[n] for n in names) for row in twin] == [
        tuple(v for v in (row.text_a, row.text_b, row.label) if v is not None) for row in found.rows
    ]
    assert find_classes(found) == classes
    # Read by named columns, where quotes may be quoting, it comes to the same.
    named = SequenceColumns(columns.text_a, columns.text_b, columns.label)
    assert read_sequences([path], named) == found


def test_train_knows_the_labels_of_dev() -> None:
    train = read_sequences([tasks() / "qnli/train.tsv"], glue_layout("qnli"))
    dev = read_sequences([tasks() / "qnli/dev.tsv"], glue_layout("QNLI"))
    require_known(dev, find_classes(train))
    require_usable(train, "train", 0.0)


def test_files_of_a_set_are_read_one_after_the_other() -> None:
    paths = [tasks() / "sst2/dev.tsv", str(tasks() / "sst2/test.tsv")]
    both = read_sequences(paths, glue_layout("sst2"))
    one, other = (read_sequences([path], glue_layout("sst2")) for path in paths)
    assert both.counts["rows"] == 872 + 1821
    texts = [row.text_a for row in both.rows]
    assert texts == [row.text_a for row in one.rows + other.rows]
    assert both.rows[0].id == "dev.tsv line 2" and both.rows[872].id == "test.tsv line 2"
    assert one.rows[0].id == "line 2"


@pytest.mark.parametrize(("name", "count"), [("train", 1277), ("dev", 185), ("test", 234)])
def test_wikigold(name: str, count: int) -> None:
    path = tasks() / f"wikigold/{name}.conll"
    found = read_tokens([path], TokenColumns())
    assert found.counts == {"in": count, "rows": count}
    twin = [
        [line.rsplit(" ", 1) for line in block.splitlines()]
        for block in path.read_text().replace("-DOCSTART- O\n", "\n").strip().split("\n\n")
        if block.strip()
    ]
    assert [
        [list(pair) for pair in zip(r.words, r.tags or (), strict=True)] for r in found.rows
    ] == twin
    assert detect_scheme(row.tags or () for row in found.rows) == "IO"
    assert find_classes(found, scheme="IO") == ("I-LOC", "I-MISC", "I-ORG", "I-PER", "O")


def test_germeval() -> None:
    path = tasks() / "germeval2014/NER-de-dev.tsv"
    outer = read_tokens([path], TokenColumns(conll=ConllColumns(tags=2)))
    nested = read_tokens([path], TokenColumns(conll=ConllColumns()))
    plain = read_tokens([path], TokenColumns(conll=ConllColumns(tags=None)))
    assert outer.counts == nested.counts == plain.counts == {"in": 2200, "rows": 2200}
    lines = [line.split("\t") for line in path.read_text().split("\n")]
    words = [(line[1], line[2], line[3]) for line in lines if line[0].isdigit()]
    for read, column in ((outer, 1), (nested, 2)):
        pairs = [pair for row in read.rows for pair in zip(row.words, row.tags or (), strict=True)]
        assert pairs == [(word[0], word[column]) for word in words]
    assert [row.words for row in plain.rows] == [row.words for row in outer.rows]
    assert detect_scheme(row.tags or () for row in outer.rows) == "BIO"
    classes = find_classes(outer, scheme="BIO")
    assert len(classes) == 12 * 2 + 1
    for row in outer.rows:
        there = convert_tags(row.tags or (), "BIOES")
        assert convert_tags(there, "BIO") == row.tags
        assert entities(there) == entities(row.tags or ())


SPANS = [
    ("squad_v1/train-v1.1.json", 896, 0, 1),
    ("squad_v1/dev-v1.1.json", 220, 0, 1),
    ("squad_v2/train-v2.0.json", 4330, 2209, 6),
    ("squad_v2/dev-v2.0.json", 1748, 959, 4),
    ("xquad/xquad.de.json", 1116, 0, 1),
    ("xquad/xquad.vi.json", 1116, 0, 1),
    ("xquad/xquad.zh.json", 1116, 0, 1),
]


@pytest.mark.parametrize(("file", "count", "impossible", "references"), SPANS)
def test_squad_files(file: str, count: int, impossible: int, references: int) -> None:
    path = tasks() / file
    found = read_spans([path])
    assert found.counts == {"in": count, "rows": count}
    twin = {
        question["id"]: (paragraph["context"], question)
        for article in json.loads(path.read_bytes())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    assert [row.id for row in found.rows] == list(twin)
    for row in found.rows:
        context, question = twin[row.id]
        assert (row.context, row.question) == (context, question["question"])
        assert [(a.text, a.start) for a in row.answers] == [
            (a["text"], a["answer_start"]) for a in question["answers"]
        ]
        for answer in row.answers:
            assert row.context[answer.start :][: len(answer.text)] == answer.text
        assert row.is_impossible == question.get("is_impossible", False)
        assert row.is_impossible != bool(row.answers)
    assert sum(row.is_impossible for row in found.rows) == impossible
    assert max(len(row.answers) for row in found.rows) == references


def test_a_file_to_predict_has_no_gold() -> None:
    path = tasks() / "squad_v2/test-unlabelled-v2.0.json"
    found = read_spans([path], answers=False)
    assert found.counts == {"in": 5134, "rows": 5134}
    assert Counter((row.answers, row.is_impossible) for row in found.rows) == {((), False): 5134}
    # Taken for a set with answers, it is no use.
    assert read_spans([path]).counts == {"in": 5134, "rows": 0, "missing_answer": 5134}
