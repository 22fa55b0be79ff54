"""A few hundred short documents, and a vocabulary that spells them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from bench.settings import Settings
from stages.text.vocabulary import train
from stages.text.words import Normalisation, count_words

# The documents of the whole suite's own conftest, which is no module that can be imported by name.
SENTENCES = (Path(__file__).parents[1] / "data/sentences.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """240 documents, 400 kB."""
    made = []
    for d in range(240):
        picked = [(11 * d + (3 + d % 5) * s) % len(SENTENCES) for s in range(4 + (5 * d) % 23)]
        made.append(" ".join(SENTENCES[i] for i in picked))
    return made


@pytest.fixture(scope="session")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as JSON lines."""
    path = tmp_path_factory.mktemp("bench") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


@pytest.fixture(scope="session")
def vocab_file(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    words, counts = count_words(pa.array(texts, pa.large_string()), Normalisation())
    vocab, _ = train(words, counts, 600)
    path = tmp_path_factory.mktemp("bench") / "vocab.txt"
    path.write_text("\n".join(vocab) + "\n", "utf-8")
    return path


@pytest.fixture
def settings(corpus: Path, vocab_file: Path, tmp_path: Path) -> Settings:
    return Settings(
        work=str(tmp_path),
        corpus=(str(corpus),),
        vocab=str(vocab_file),
        base_megabytes=1,
        rounds=1,
        peers=False,
        distinct_words=1500,
    )
