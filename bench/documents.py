"""The text that everything is measured on: real documents, read by our own readers."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.settings import Settings
from stages.corpus_config import CorpusConfig
from stages.raw import corpus_listing
from stages.text.listing import Split
from stages.text.readers import read
from stages.text.records import ReadOptions

SPLIT_BYTES = 300_000
"""Work items so small that a sample of them is a sample of the corpus."""

DOCUMENT_BYTES = 100_000
"""Longer documents (books) are cut at line ends: a corpus has more documents than this has books,
and no part of the measurement may hang on one of them."""

PACKAGES = ("numpy", "pandas", "pyarrow", "ray", "mlflow", "torch")


def load(settings: Settings) -> list[str]:
    """Documents of `corpus`, or of Python's own documentation, about `base_megabytes` of them.

    Exact duplicates are left out: only our chain would look for them.

    Raises:
        ValueError: there is no text in it.
    """
    wanted = settings.base_megabytes * 1e6
    seen: set[bytes] = set()
    texts: list[str] = []
    size = 0
    for text in _pieces(_documents(settings)):
        data = text.encode()
        key = hashlib.blake2b(data, digest_size=16).digest()
        if key in seen:
            continue
        if size and size + len(data) > wanted:
            break
        seen.add(key)
        texts.append(text)
        size += len(data)
    if len(texts) < 2:
        raise ValueError("the corpus of the measurement holds less than two documents")
    return texts


def _documents(settings: Settings) -> Iterator[str]:
    """Work items in an order that their names decide, not their folders."""
    options = ReadOptions(text_field=settings.text_field, batch_bytes=SPLIT_BYTES)
    if settings.corpus:
        corpus = CorpusConfig(paths=settings.corpus, text_field=settings.text_field)
    else:
        corpus = CorpusConfig(kind="python_docs", distributions=PACKAGES)
    for split in sorted(work_items(corpus, SPLIT_BYTES), key=_key):
        for batch in read(split, options):
            yield from batch.documents.column("text").to_pylist()


def work_items(corpus: CorpusConfig, target_bytes: int | None = None) -> list[Split]:
    """What stage shard would have its workers read."""
    stage = importlib.import_module("stages.shard")
    found: list[Split] = stage.splits(corpus_listing(corpus, Path.cwd()), target_bytes)
    return found


def _key(split: Split) -> bytes:
    return hashlib.blake2b("\n".join((split.source, *split.files)).encode()).digest()


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        start = 0
        while len(text) - start > DOCUMENT_BYTES:
            end = text.rfind("\n", start, start + DOCUMENT_BYTES)
            end = start + DOCUMENT_BYTES if end <= start else end + 1
            yield text[start:end]
            start = end
        if text[start:].strip():
            yield text[start:]


def write_lines(path: Path, texts: Iterable[str]) -> int:
    """JSON lines with "id" and "text"; returns bytes of text."""
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": str(number), "text": text}, ensure_ascii=False) + "\n")
            size += len(text.encode())
    return size


def read_lines(path: Path) -> list[str]:
    """The texts that `write_lines` wrote."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]
