"""A small corpus of real sentences, the same on every machine, and a way to run the line on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# The Declaration of Independence (1776), the Gettysburg Address (1863), the beginnings of Alice's
# Adventures in Wonderland (1865) and Moby-Dick (1851): public domain.
SENTENCES = (Path(__file__).parent / "data/sentences.txt").read_text("utf-8").splitlines()


def documents(count: int, first: int = 0) -> list[list[str]]:
    """Document d has 4 + (5d mod 23) sentences; which ones follows from d alone."""
    made = []
    for d in range(first, first + count):
        length = 4 + (5 * d) % 23
        made.append([SENTENCES[(11 * d + (3 + d % 5) * s) % len(SENTENCES)] for s in range(length)])
    return made


def write_sentences(path: Path, docs: Sequence[Sequence[str]]) -> None:
    """google-research/bert's format."""
    path.write_text("\n\n".join("\n".join(doc) for doc in docs) + "\n", encoding="utf-8")


SMALL = (
    "corpus=sentences",
    "corpus.shards=3",
    "corpus.validation_share=0.3",
    "vocab.size=600",
    "pairs.max_seq_length=64",
    "model=tiny",
    "model.hidden_size=32",
    "train.steps=30",
    "train.global_batch_size=8",
    "train.checkpoint_every_steps=10",
    "train.evaluate_every_steps=20",
    "train.log_every_steps=5",
    "evaluate.sentences=['Call me [MASK].']",
    "seed=7",
)
"""Overrides of a run that takes seconds a stage."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of documents, 240 in all."""
    folder = tmp_path_factory.mktemp("corpus")
    write_sentences(folder / "a.txt", documents(150))
    write_sentences(folder / "b.txt", documents(90, first=150))
    return folder


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clozeline(corpus: Path, tmp_path: Path) -> Run:
    """Runs `clozeline ...` in `tmp_path` on the small corpus; output is text."""
    return runner(corpus, tmp_path)


@dataclass(frozen=True)
class Line:
    """The whole line, run once for all tests that only look at it, or start from a copy of it."""

    folder: Path
    output: str

    @property
    def store(self) -> Path:
        return self.folder / "runs/store"

    def copy(self, target: Path, without: Sequence[str] = ()) -> None:
        """Copy the store, some stages left out."""
        shutil.copytree(self.store, target, ignore=lambda at, names: set(without) & set(names))


@pytest.fixture(scope="session")
def line(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Line:
    folder = tmp_path_factory.mktemp("line")
    done = runner(corpus, folder)("run")
    return Line(folder, done.stdout + done.stderr)


def runner(corpus: Path, folder: Path) -> Run:
    """What the fixture `clozeline` gives, in `folder`."""

    def run(
        *words: str, cwd: Path = folder, check: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", words[0]]
        if words[0] in ("run", "plan", "status", "why"):
            command += [*SMALL, f"corpus.paths=['{corpus}']"]
        command += words[1:]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if check is not None:
            assert done.returncode == check, f"{done.stdout}\n{done.stderr}"
        return done

    return run
