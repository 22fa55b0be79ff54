"""Documents of every real corpus in every format and compression: the same ones come out.

What a format cannot hold is said by `HELD`: nothing else may differ.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import html
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.text.find_files import list_files
from stages.text.listing import file_format
from stages.text.readers import FORMATS, read
from stages.text.records import ReadOptions
from stages.text.splitting import splits
from tests.oracle.shared_corpora import corpora
from tests.reading import read_all

CHARACTERS = 8_000
"""Of each document so many are taken."""


def _zstd(data: bytes) -> bytes:
    return pa.compress(data, "zstd", asbytes=True)  # type: ignore[no-any-return]


WHITE_SPACE = " \t\r\v\f"

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": _zstd,
}


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Beginnings of documents of each file of each corpus."""
    found: list[str] = []
    for path in sorted(path for path in corpora().rglob("*") if path.is_file()):
        format = "sentences" if path.parent.name == "bert-format" else file_format(path.name)[0]
        if path.parent.name == "wikitext-2":
            format = "wikitext"
        (split,) = splits(list_files([str(path)], format=format or "auto"))
        batch = next(read(split, ReadOptions(batch_bytes=4 * CHARACTERS)))
        assert batch.documents.num_rows
        assert batch.rejects.keys() <= {"redirect", "not_an_article", "empty"}
        found += [text[:CHARACTERS] for text in batch.documents["text"].to_pylist()]
    return list(dict.fromkeys(found))


def _lines(text: str, trim: Callable[[str], str], blank: bool) -> str:
    trimmed = [trim(line) for line in text.split("\n")]
    return "\n".join(line for line in trimmed if blank or line)


def _natural(text: str) -> str:
    for mark in "-,.":
        text = text.replace(f" @{mark}@ ", mark)
    return text


def _right(line: str) -> str:
    return line.rstrip(WHITE_SPACE)


def _around(line: str) -> str:
    return line.strip(WHITE_SPACE)


def _as_it_is(text: str) -> str:
    return text


HELD: dict[str, Callable[[str], str]] = {
    # Blank lines, which stand between documents, and white space at the end of a line, or (a
    # sentence a line) at both.
    "blank_lines": lambda text: _lines(text, _right, blank=False),
    "sentences": lambda text: _lines(text, _around, blank=False),
    # Blank lines around a document, and CR before a line end.
    "wikiextractor": lambda text: text.replace("\r\n", "\n").strip("\n"),
    # White space around lines, and its own marks inside of words.
    "wikitext": lambda text: _lines(_natural(text), _around, blank=True).strip("\n"),
    # White space and punctuation that templates leave behind in articles ("word , (; ) word").
    "mediawiki": lambda text: "".join(filter(str.isalnum, text)),
}


def _rows(delimiter: str, texts: list[str]) -> str:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter)
    writer.writerows([["id", "text"], *enumerate(texts)])
    return sink.getvalue()


def _page(text: str) -> str:
    markup = html.escape(f"<nowiki>{html.escape(text)}</nowiki>")
    return f"<page><title>T</title><ns>0</ns><revision><text>{markup}</text></revision></page>\n"


def _columnar(format: str, texts: list[str]) -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table({"text": texts})
    if format == "parquet":
        pq.write_table(table, sink, row_group_size=50)
    else:
        with pa.ipc.new_file(sink, table.schema) as batches:
            batches.write_table(table, 50)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def stored(format: str, texts: list[str]) -> bytes:
    """All texts as one file."""
    if format in ("parquet", "arrow"):
        return _columnar(format, texts)
    if format in ("csv", "tsv"):
        return _rows("," if format == "csv" else "\t", texts).encode()
    if format == "jsonl":
        return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if format == "mediawiki":
        return f"<mediawiki>\n{''.join(map(_page, texts))}</mediawiki>\n".encode()
    wrap = {
        "wikiextractor": lambda text: (
            f'<doc id="1" url="" title="T">\nT\n\n{html.escape(text, quote=False)}\n</doc>\n'
        ),
        "wikitext": lambda text: f" \n = T = \n \n{text}\n",
    }.get(format, lambda text: HELD[format](text) + "\n\n")
    return "".join(map(wrap, texts)).encode()


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"text"}))
@pytest.mark.parametrize("ending", COMPRESS)
def test_the_same_documents(tmp_path: Path, documents: list[str], format: str, ending: str) -> None:
    texts = documents[:: 1 if ending in ("", ".gz") else 7]
    path = tmp_path / f"a{ending}"
    path.write_bytes(COMPRESS[ending](stored(format, texts)))
    found, batch = read_all(path, format=format)
    assert batch.rejects == {}
    held = HELD.get(format, _as_it_is)
    if format == "wikitext":
        found = [text.removeprefix("T").lstrip("\n") for text in found]
    if format == "mediawiki":
        found = list(map(held, found))
    for one, text in zip(found, texts, strict=True):
        assert one == held(text)


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_each(tmp_path: Path, documents: list[str], ending: str) -> None:
    texts = documents[::7]
    for i, text in enumerate(texts):
        (tmp_path / f"{i:04d}.txt{ending}").write_bytes(COMPRESS[ending](text.encode()))
    found, batch = read_all(tmp_path)
    assert batch.rejects == {}
    assert found == texts
