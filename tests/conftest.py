"""A small corpus of real sentences, the same on every machine, and a way to run the line on it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
from filelock import FileLock

from tests.ray_by_hand import RayByHand

ROOT = Path(__file__).resolve().parents[1]

# An example that takes long on a busy machine is no fault.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# The Declaration of Independence (1776), the Gettysburg Address (1863), the beginnings of Alice's
# Adventures in Wonderland (1865) and Moby-Dick (1851): public domain.
SENTENCES = (Path(__file__).parent / "data/sentences.txt").read_text("utf-8").splitlines()


LONG = (
    "tests/test_readme.py",
    "tests/stages/test_training_workers.py",
    "tests/stages/test_cluster_by_hand.py",
    "tests/stages/test_served_model.py",
)
"""Files that take minutes. Begun first, so that both processes of `make test` end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file stay together, and in their order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


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


def living(folder: Path, pattern: str) -> set[Path]:
    """What `glob` finds while a run writes there: folders are renamed and go under its hands."""
    while True:
        try:
            return set(folder.glob(pattern))
        except FileNotFoundError:
            time.sleep(0.01)


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


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, once for all processes that share the tests."""
    base = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the whole suite.
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, whole = base / name, base / f"{name}-is-whole"
    with FileLock(base / f"{name}.lock"):
        if not whole.exists():
            # What failed is made again, and where it stays: a run's database has its path.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of documents, 240 in all."""

    def make(folder: Path) -> None:
        write_sentences(folder / "a.txt", documents(150))
        write_sentences(folder / "b.txt", documents(90, first=150))

    return made_once(tmp_path_factory, "corpus", make)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without a run: making its tables takes seconds, so they are made once."""
    return made_once(tmp_path_factory, "mlflow", _make_database) / "mlflow.db"


def _make_database(folder: Path) -> None:
    from pipeline.mlflow_writer import import_mlflow

    import_mlflow()
    from mlflow.tracking import MlflowClient

    path = folder / "mlflow.db"
    # Without our own tracking, which gives a slow machine up after a while.
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        # MLflow makes an experiment of its own.
        connection.execute("DELETE FROM experiments")


@pytest.fixture
def tracked(database: Path, tmp_path: Path) -> Path:
    """`tmp_path` with a database of its own, where runs in it look for one."""
    (tmp_path / "runs").mkdir()
    shutil.copyfile(database, tmp_path / "runs/mlflow.db")
    return tmp_path


@pytest.fixture(scope="session")
def shared_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayByHand]:
    """A node of two CPUs for all tests that need a Ray and not its start: that takes seconds."""
    ray = RayByHand(tmp_path_factory.mktemp("home"))
    try:
        ray.start(cpus=2)
        yield ray
    finally:
        ray.stop()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clozeline(corpus: Path, tracked: Path) -> Run:
    """Runs `clozeline ...` in `tmp_path` on the small corpus; output is text."""
    return runner(corpus, tracked)


@pytest.fixture
def joined(corpus: Path, tracked: Path, shared_ray: RayByHand) -> Run:
    """What `clozeline` is, but `run` joins the Ray of all tests."""
    return runner(corpus, tracked, shared_ray)


@dataclass(frozen=True)
class Line:
    """The whole line, run once for all tests that only look at it, or start from a copy of it."""

    folder: Path

    @property
    def output(self) -> str:
        """What the run printed."""
        return (self.folder / "output.txt").read_text("utf-8")

    @property
    def store(self) -> Path:
        return self.folder / "runs/store"

    def copy(self, target: Path, without: Sequence[str] = ()) -> None:
        """Copy the store, some stages left out."""
        shutil.copytree(self.store, target, ignore=lambda at, names: set(without) & set(names))


@pytest.fixture(scope="session")
def line(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Line:
    """With a Ray and a database of its own, as a person's first run has them."""

    def make(folder: Path) -> None:
        done = runner(corpus, folder)("run")
        (folder / "output.txt").write_text(done.stdout + done.stderr, "utf-8")

    return Line(made_once(tmp_path_factory, "line", make))


VARIED = ("vocab.from=vocab.txt", "objective=sentence_order", "train.length_bins=4")


@pytest.fixture(scope="session")
def varied(
    line: Line,
    corpus: Path,
    database: Path,
    shared_ray: RayByHand,
    tmp_path_factory: pytest.TempPathFactory,
) -> Line:
    """The line with `VARIED`: an existing vocabulary, another objective, rows by their length.

    No special token of the vocabulary is where BERT has it; [PAD] is the last of all.
    """

    def make(folder: Path) -> None:
        (trained,) = line.store.glob("vocab/*/*/vocab.txt")
        ordinary = trained.read_text("utf-8").splitlines()[5:]
        vocab = ["[MASK]", *ordinary[:40], "[SEP]", "[UNK]", *ordinary[40:], "[CLS]", "[PAD]"]
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocab), "utf-8")
        after = ["vocab", "pairs", "mask", "pretrain", "evaluate", "export"]
        line.copy(folder / "runs/store", without=after)
        shutil.copyfile(database, folder / "runs/mlflow.db")
        done = runner(corpus, folder, shared_ray)("run", *VARIED, "train.steps=20")
        (folder / "output.txt").write_text(done.stdout + done.stderr, "utf-8")

    return Line(made_once(tmp_path_factory, "varied", make))


def runner(corpus: Path, folder: Path, ray: RayByHand | None = None) -> Run:
    """What the fixture `clozeline` gives, in `folder`; with `ray`, what `joined` gives."""

    def run(
        *words: str,
        cwd: Path = folder,
        check: int | None = 0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", words[0]]
        if words[0] in ("run", "plan", "status", "why"):
            command += [*SMALL, f"corpus.paths=['{corpus}']"]
        if ray is not None and words[0] == "run":
            command.append(f"cluster.address={ray.address}")
        command += words[1:]
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment_of(ray) | (environment or {}),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if check is not None:
            assert done.returncode == check, f"{done.stdout}\n{done.stderr}"
        return done

    return run


def environment_of(ray: RayByHand | None) -> dict[str, str]:
    """Of a process that runs our code, and joins `ray` if it joins one."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | (ray.token if ray is not None else {})
