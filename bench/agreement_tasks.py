"""Small tasks of real text for `bench.agreement`: files cut short, and rows to predict from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Task:
    """A task, how its files are cut, and how they are read as plain rows.

    Attributes:
        name: of the task, and of its folder of files.
        objective: one of the four.
        command: of `clozeline predict`, with the options that it needs.
        files: of train and of dev, in the folder `source`.
        sizes: rows (sentences, questions) of train and dev that are kept.
        cut: text of a file and a number of rows -> the text with these alone.
        rows: text of a file -> rows to predict from.
        overrides: what makes the task known to a run, where no file of the group task does.
    """

    name: str
    objective: str
    command: tuple[str, ...]
    files: Pair
    sizes: tuple[int, int]
    cut: Callable[[str, int], str]
    rows: Callable[[str], Iterator[Row]]
    source: str = ""
    overrides: tuple[str, ...] = ()

    def write(self, data: Path, folder: Path) -> None:
        """The files, cut, under `folder`; what they are cut from lies under `data`.

        Raises:
            SystemExit: it does not.
        """
        (folder / self.name).mkdir(parents=True)
        for name, size in zip(self.files, self.sizes, strict=True):
            (folder / self.name / name).write_text(self.cut(self._read(data, name), size), "utf-8")

    def real_rows(self, data: Path) -> Iterator[Row]:
        """Rows of the whole of dev, then of train."""
        for name in reversed(self.files):
            yield from self.rows(self._read(data, name))

    def _read(self, data: Path, name: str) -> str:
        path = data / (self.source or self.name) / name
        if not path.is_file():
            raise SystemExit(f"{path} is not there: --data DIR is a folder that holds {self.name}")
        return path.read_text("utf-8")


def _columns(text: str) -> Iterator[Row]:
    """Rows of a TSV as GLUE has them: a header, no quoting."""
    header, *lines = text.rstrip("\n").split("\n")
    names = header.split("\t")
    return (dict(zip(names, line.split("\t"), strict=False)) for line in lines)


def _first_lines(text: str, size: int) -> str:
    return "".join(f"{line}\n" for line in text.split("\n")[: size + 1])


def _one_text(text: str) -> Iterator[Row]:
    return ({"text": row["sentence"]} for row in _columns(text))


def _question_and_sentence(text: str) -> Iterator[Row]:
    return ({"text": row["question"], "text_b": row["sentence"]} for row in _columns(text))


def _two_sentences(text: str) -> Iterator[Row]:
    return ({"text": row["sentence1"], "text_b": row["sentence2"]} for row in _columns(text))


def _numbers(text: str, size: int) -> str:
    """MED's labels as numbers: 1 where the second sentence follows, else 0."""
    rows = itertools.islice(_columns(text), size)
    return "".join(
        json.dumps({
            "first": row["sentence1"],
            "second": row["sentence2"],
            "follows": float(row["gold_label"] == "entailment"),
        }) + "\n"
        for row in rows
    )  # fmt: skip


def _first_sentences(text: str, size: int) -> str:
    return "\n\n".join(text.strip("\n").split("\n\n")[: size + 1]) + "\n\n"


def _words(text: str) -> Iterator[Row]:
    for sentence in text.strip("\n").split("\n\n"):
        words = [line.split()[0] for line in sentence.split("\n") if line.strip()]
        if words and words[0] != "-DOCSTART-":
            yield {"words": words}


def _first_questions(text: str, size: int) -> str:
    whole = json.loads(text)
    left = size
    for article in whole["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][:left]
            left -= len(paragraph["qas"])
        article["paragraphs"] = [p for p in article["paragraphs"] if p["qas"]]
    whole["data"] = [article for article in whole["data"] if article["paragraphs"]]
    return json.dumps(whole)


def _questions(text: str) -> Iterator[Row]:
    for article in json.loads(text)["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield {"question": asked["question"].strip(), "context": paragraph["context"]}


TASKS = (
    Task(
        "sst2", "classification", ("classify",), ("train.tsv", "dev.tsv"), (600, 200),
        _first_lines, _one_text,
    ),
    Task(
        "qnli", "classification", ("pair",), ("train.tsv", "dev.tsv"), (600, 200),
        _first_lines, _question_and_sentence,
    ),
    Task(
        "follows", "regression", ("pair",), ("train.tsv", "dev_matched.tsv"), (600, 200),
        _numbers, _two_sentences, "med",
        (
            "tasks.follows.objective=regression", "tasks.follows.train=[follows/train.tsv]",
            "tasks.follows.dev=[follows/dev_matched.tsv]", "tasks.follows.format=jsonl",
            "tasks.follows.text=first", "tasks.follows.text_b=second",
            "tasks.follows.label=follows",
        ),
    ),
    Task(
        "wikigold", "tagging", ("tag", "--words", "words"), ("train.conll", "dev.conll"),
        (600, 200), _first_sentences, _words,
    ),
    # Questions have long contexts: fewer take as long.
    Task(
        "squad_v1", "answers", ("answer",), ("train-v1.1.json", "dev-v1.1.json"), (300, 100),
        _first_questions, _questions,
    ),
)  # fmt: skip
