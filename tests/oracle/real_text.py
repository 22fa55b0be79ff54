"""Real corpora beside the repository (`../shared/data`), as lists of paragraphs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "english": ["gutenberg-en/1661.txt", "gutenberg-en/1342-0.txt", "peps/peps.jsonl.gz"],
    "german": ["german/34811-0.txt.gz"],
    "chinese": ["chinese/rust-book-zh.jsonl", "chinese/24264-0.txt.gz"],
    "hindi": ["hindi/ramcharitmanas-6.txt", "hindi/ramcharitmanas-7.txt"],
    "vietnamese": ["vietnamese/d2l-vn.jsonl.gz"],
}


def shared_data() -> Path:
    """`../shared/data`, seen from the repository or from a worktree of it; skips when absent."""
    folders = [ROOT.parent, ROOT.parent.parent]
    for folder in folders:
        if (folder / "shared" / "data").is_dir():
            return folder / "shared" / "data"
    pytest.skip("no ../shared/data beside the repository")


def corpora() -> Path:
    """The corpora of `shared_data`."""
    return shared_data() / "corpora"


def tasks() -> Path:
    """The task sets of `shared_data`."""
    return shared_data() / "tasks"


def paragraphs(language: str, max_characters: int) -> list[str]:
    """Paragraphs of a language's corpora, about `max_characters` of each file."""
    corpora = shared_data() / "corpora"
    found: list[str] = []
    for name in FILES[language]:
        raw = (corpora / name).read_bytes()
        text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf-8-sig")
        if ".jsonl" in name:
            rows, size = [], 0
            for line in text.split("\n"):
                if line and size < max_characters:
                    rows.append(json.loads(line)["text"])
                    size += len(rows[-1])
            text = "\n\n".join(rows)
        parts = text[:max_characters].replace("\r\n", "\n").split("\n\n")
        found += [part for part in parts if part.strip()]
    return found


def google_vocab(name: str) -> list[str]:
    """One of Google's BERT vocabularies ("uncased", "cased", "chinese")."""
    path = shared_data() / "vocab" / f"bert-base-{name}-vocab.txt"
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def whole_corpora() -> dict[str, list[str]]:
    """Every corpus of the folder, by file: documents of JSONL and Parquet, else paragraphs."""
    folder = shared_data() / "corpora"
    found: dict[str, list[str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.suffix == ".parquet":
            texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
        else:
            with pa.input_stream(str(path), compression="detect") as stream:
                content = stream.read().decode("utf-8-sig", "replace")
            if ".jsonl" in path.name:
                texts = [json.loads(line)["text"] for line in content.split("\n") if line]
            else:
                texts = [part for part in content.split("\n\n") if part.strip()]
        found[path.relative_to(folder).as_posix()] = texts
    return found
