"""The same documents in every format that is read, and every compression of it."""

from __future__ import annotations

import bz2
import csv
import gzip
import html
import io
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stages.text.find_files import list_files
from stages.text.listing import file_format
from stages.text.readers import FORMATS, read
from stages.text.records import ReadOptions
from stages.text.splitting import splits

WHITE_SPACE = " \t\r\v\f"

TITLE = "T"
"""Of every article of a format that has titles."""


def zstd(data: bytes) -> bytes:
    """One frame of Zstandard, with its length at its head."""
    return pa.compress(data, "zstd", asbytes=True)  # type: ignore[no-any-return]


COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": zstd,
}


def beginnings(corpora: Path, characters: int, batch_bytes: int | None = None) -> list[str]:
    """The first `characters` of each distinct document below a folder of corpora.

    Args:
        batch_bytes: of each file only so much is looked at; None: all of it.

    Raises:
        ValueError: a file cannot be read to its end.
    """
    found: dict[str, None] = {}
    for path in sorted(path for path in corpora.rglob("*") if path.is_file()):
        format = "sentences" if path.parent.name == "bert-format" else file_format(path.name)[0]
        if path.parent.name == "wikitext-2":
            format = "wikitext"
        for split in splits(list_files([str(path)], format=format or "auto")):
            for batch in read(split, ReadOptions(batch_bytes=batch_bytes or 4_000_000)):
                if other := batch.rejects.keys() - {"redirect", "not_an_article", "empty"}:
                    raise ValueError(f"{path}: {', '.join(sorted(other))}")
                texts = batch.documents["text"].to_pylist()
                found |= dict.fromkeys(text[:characters] for text in texts)
                if batch_bytes:
                    break
    return list(found)


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


HELD: Mapping[str, Callable[[str], str]] = {
    # Blank lines, which stand between documents, and white space at the end of a line, or (a
    # sentence a line) at both.
    "blank_lines": lambda text: _lines(text, _right, blank=False),
    "sentences": lambda text: _lines(text, _around, blank=False),
    # Blank lines around a document, and CR before a line end.
    "wikiextractor": lambda text: text.replace("\r\n", "\n").strip("\n"),
    # White space around lines, and its own marks inside of words.
    "wikitext": lambda text: _natural(_lines(text, _around, blank=True).strip("\n")),
    # White space and punctuation that templates leave behind in articles ("word , (; ) word").
    "mediawiki": lambda text: "".join(filter(str.isalnum, text)),
}
"""What is left of a text in a format that cannot hold all of it. Nothing else may differ."""


def held(format: str, text: str) -> str:
    """`text` as the format holds it."""
    return HELD[format](text) if format in HELD else text


def _rows(delimiter: str, texts: Sequence[str]) -> str:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter)
    writer.writerows([["id", "text"], *enumerate(texts)])
    return sink.getvalue()


def _page(number: int, text: str) -> str:
    markup = html.escape(f"<nowiki>{html.escape(text)}</nowiki>")
    return (
        f"<page><title>{TITLE}</title><ns>0</ns><id>{number}</id>"
        f"<revision><text>{markup}</text></revision></page>\n"
    )


def _columnar(format: str, texts: Sequence[str]) -> bytes:
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": list(texts)})
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table, sink, row_group_size=50)
    else:
        with pa.ipc.new_file(sink, table.schema) as batches:
            batches.write_table(table, 50)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def stored(format: str, texts: Sequence[str]) -> bytes:
    """All texts as one file; where the format has ids, they are the places of the texts."""
    if format in ("parquet", "arrow"):
        return _columnar(format, texts)
    if format in ("csv", "tsv"):
        return _rows("," if format == "csv" else "\t", texts).encode()
    if format == "jsonl":
        lines = (json.dumps({"id": str(i), "text": text}) for i, text in enumerate(texts))
        return "".join(f"{line}\n" for line in lines).encode()
    if format == "mediawiki":
        return (
            f"<mediawiki>\n{''.join(map(_page, range(len(texts)), texts))}</mediawiki>\n".encode()
        )
    if format == "wikiextractor":
        return "".join(
            f'<doc id="{i}" url="" title="{TITLE}">\n{TITLE}\n\n'
            f"{html.escape(text, quote=False)}\n</doc>\n"
            for i, text in enumerate(texts)
        ).encode()
    if format == "wikitext":
        return "".join(f" \n = {TITLE} = \n \n{text}\n" for text in texts).encode()
    return "".join(f"{held(format, text)}\n\n" for text in texts).encode()


def write(folder: Path, format: str, ending: str, texts: Sequence[str]) -> int:
    """Write a folder of one format and compression; returns bytes on disk.

    Of `text` each document is a file, of all other formats all of them are one.
    """
    folder.mkdir(parents=True)
    files = (
        {f"{i:06d}.txt{ending}": text.encode() for i, text in enumerate(texts)}
        if format == "text"
        else {f"all{ending}": stored(format, texts)}
    )
    for name, content in files.items():
        (folder / name).write_bytes(COMPRESS[ending](content))
    return sum(path.stat().st_size for path in folder.iterdir())


ALL = tuple((format, ending) for format in FORMATS for ending in COMPRESS)
"""Every format with every compression."""
