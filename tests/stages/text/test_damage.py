"""Files of every format, cut and altered anywhere: the rest is read, what is lost is counted."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.text.readers import FORMATS
from tests.reading import read_all

TEXTS = [f"Document {i}: the fox, „so sauer“, said {i * 7919 % 1009} times." for i in range(40)]

HEADER_BYTES = 12
"""Without its header a table or dump is lost."""


def stored(format: str) -> bytes:
    if format in ("csv", "tsv"):
        sink = io.StringIO(newline="")
        writer = csv.writer(sink, delimiter="," if format == "csv" else "\t")
        writer.writerows([["id", "text"], *enumerate(TEXTS)])
        return sink.getvalue().encode()
    if format in ("parquet", "arrow"):
        buffer, table = pa.BufferOutputStream(), pa.table({"text": TEXTS})
        if format == "parquet":
            pq.write_table(table, buffer, row_group_size=10)
        else:
            with pa.ipc.new_file(buffer, table.schema) as batches:
                batches.write_table(table, 10)
        return buffer.getvalue().to_pybytes()  # type: ignore[no-any-return]
    if format == "mediawiki":
        page = (
            "<page><title>T</title><ns>0</ns><id>{}</id><revision><text>{}</text></revision></page>"
        )
        pages = "\n".join(page.format(i, text) for i, text in enumerate(TEXTS))
        return f"<mediawiki>\n{pages}\n</mediawiki>\n".encode()
    join = {
        "text": "\n",
        "sentences": "\n\n",
        "blank_lines": "\n\n",
        "jsonl": "\n",
        "wikiextractor": "\n",
        "wikitext": "\n",
    }[format]
    wrap = {
        "jsonl": lambda t: json.dumps({"text": t}),
        "wikiextractor": lambda t: f'<doc id="1" url="" title="T">\nT\n\n{t}\n</doc>',
        "wikitext": lambda t: f" \n = T = \n \n {t} \n",
    }.get(format, lambda t: t)
    return (join.join(map(wrap, TEXTS)) + "\n").encode()


@pytest.mark.parametrize("format", FORMATS)
def test_whole_files_are_read_whole(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(stored(format))
    texts, batch = read_all(path, format=format)
    assert batch.rejects == {}
    assert len(texts) == (1 if format == "text" else len(TEXTS))
    assert all(text in "\n".join(texts) for text in TEXTS)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("ending", ["", ".gz", ".bz2"])
def test_damage_is_counted_and_readable(tmp_path: Path, format: str, ending: str) -> None:
    generator = random.Random(format + ending)
    compress = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[ending]
    whole = compress(stored(format))
    path = tmp_path / f"a{ending}"
    for trial in range(12):
        data = bytearray(whole)
        at = generator.randrange(len(data))
        if trial % 3 == 0:
            del data[at:]
        elif trial % 3 == 1:
            data[at] ^= 1 << generator.randrange(8)
        else:
            data[at:at] = generator.choice(
                [b"\0", b"\xff\xfe", b'"', b"<page>", b"\n\n", b"</doc>"]
            )
        path.write_bytes(bytes(data))
        texts, batch = read_all(path, format=format, encoding="detect")
        assert batch.records == len(texts) + sum(batch.rejects.values())
        assert batch.records <= 2 * len(TEXTS) + 3
        for example in batch.examples:
            assert example.reason in batch.rejects
            assert example.detail
            assert example.snippet.replace("\n", "").replace("\t", "").isprintable()
        by_record = format not in ("parquet", "arrow", "text")
        if not ending and by_record and trial % 3 == 1 and at > HEADER_BYTES:
            # One bit costs one record, or both its neighbours where it stood between them.
            found = "\n".join(texts)
            assert sum(text in found for text in TEXTS) >= len(TEXTS) - 2
