"""Documents of every real corpus in every format and compression: the same ones come out.

What a format cannot hold is said by `formats.HELD`: nothing else may differ. `bench.every_format`
has the stage itself do the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.formats import COMPRESS, TITLE, beginnings, held, stored, write
from stages.text.readers import FORMATS
from tests.oracle.real_text import corpora
from tests.reading import read_all

CHARACTERS = 8_000
"""Of each document so many are taken."""


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Beginnings of documents of each file of each corpus."""
    return beginnings(corpora(), CHARACTERS, batch_bytes=4 * CHARACTERS)


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"text"}))
@pytest.mark.parametrize("ending", COMPRESS)
def test_the_same_documents(tmp_path: Path, documents: list[str], format: str, ending: str) -> None:
    texts = documents[:: 1 if ending in ("", ".gz") else 7]
    path = tmp_path / f"a{ending}"
    path.write_bytes(COMPRESS[ending](stored(format, texts)))
    found, batch = read_all(path, format=format)
    assert batch.rejects == {}
    if format == "wikitext":
        found = [text.removeprefix(TITLE).lstrip("\n") for text in found]
    if format == "mediawiki":
        found = [held(format, text) for text in found]
    for one, text in zip(found, texts, strict=True):
        assert one == held(format, text)


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_each(tmp_path: Path, documents: list[str], ending: str) -> None:
    texts = documents[::7]
    write(tmp_path / "a", "text", ending, texts)
    found, batch = read_all(tmp_path / "a")
    assert batch.rejects == {}
    assert found == texts
