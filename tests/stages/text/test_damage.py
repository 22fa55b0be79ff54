"""Files of every format, cut and altered anywhere: the rest is read, what is lost is counted."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import formats
from stages.text import readers
from stages.text.find_files import list_files
from stages.text.readers import FORMATS, read
from stages.text.records import ReadOptions, Record, Reject
from stages.text.splitting import splits
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


def _zstd(data: bytes) -> bytes:
    return pa.compress(data, "zstd", asbytes=True)  # type: ignore[no-any-return]


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": _zstd}


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_follows_a_stream_is_read_or_said(tmp_path: Path, ending: str) -> None:
    """Several streams in one file, as `cat a.gz b.gz` makes it, some of them damaged."""
    stream = COMPRESS[ending](b'{"text": "One."}\n{"text": "Two."}\n')
    damaged = bytes([stream[0] ^ 255]) + stream[1:]
    path = tmp_path / f"a.jsonl{ending}"
    for content, texts, rejects in (
        (stream + stream, 4, {}),
        (stream + b"not compressed", 2, {"damaged": 1}),
        (stream + damaged + stream, 2, {"damaged": 1}),
        (stream + stream[:3], 2, {"truncated": 1}),
        (stream + stream[:-4], 2, {"truncated": 1}),
    ):
        path.write_bytes(content)
        found, batch = read_all(path)
        assert found[:2] == ["One.", "Two."]
        assert len(found) >= texts
        assert batch.rejects == rejects
    if ending != ".zst":
        path.write_bytes(stream + bytes(1024))
        assert read_all(path)[1].rejects == {}, "padding"


def test_zstd_is_read_to_its_damage(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{i} " + "x" * (i % 500)}) for i in range(4000)]
    whole = _zstd("\n".join(lines).encode())
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    texts, batch = read_all(path)
    assert batch.rejects == {"truncated": 1}
    assert len(texts) > 1000
    assert texts == [json.loads(line)["text"] for line in lines[: len(texts)]]


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"parquet", "arrow"}))
def test_a_bomb_is_one_reject_and_does_not_fill_memory(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(100):
            file.write(bytes(1_000_000))
    tracemalloc.start()
    try:
        texts, batch = read_all(path, format=format, max_record_bytes=1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not texts
    assert batch.rejects.keys() <= {"too_large", "unreadable", "malformed_doc"}
    assert 1 <= batch.records <= 2
    assert peak < 10_000_000


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_text_that_many_rows_share_is_held_once(tmp_path: Path, format: str) -> None:
    """Unpacked for each row these would be 4 GB."""
    rows = pa.array([0] * 4000 + [None, None], pa.int32())
    column = pa.DictionaryArray.from_arrays(rows, pa.array(["x" * 1_000_000]))
    table = pa.table({"text": column, "id": column, "more": [{"text": "y"}] * 4002})
    path = tmp_path / f"a.{format}"
    if format == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as batches:
            batches.write_table(table)
    records = list(FORMATS[format](str(path), "", ReadOptions()))
    assert len({id(record.text) for record in records if isinstance(record, Record)}) == 1
    assert [record.id for record in records[:2] if isinstance(record, Record)] == ["row 0", "row 1"]
    rejects = [record for record in records if isinstance(record, Reject)]
    assert [(r.reason, r.where) for r in rejects] == [
        ("missing_field", "row 4000"),
        ("missing_field", "row 4001"),
    ]


def test_a_page_of_parquet_and_a_stream_of_arrow(tmp_path: Path) -> None:
    """Of Parquet a row group is lost, of a stream what follows the damage: one reject."""
    table = pa.table({"text": [f"{text} {'x' * 500}" for text in TEXTS]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=10, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    at = data.index(TEXTS[25].encode())
    # The length that stands before a text.
    data[at - 4 : at] = b"\xff\xff\xff\x7f"
    path.write_bytes(bytes(data))
    texts, batch = read_all(path)
    assert texts == table["text"].to_pylist()[:20] + table["text"].to_pylist()[30:]
    assert batch.documents["id"].to_pylist()[20] == "row 30"
    assert batch.rejects == {"damaged": 1}
    assert batch.examples[0].where == "rows 20 to 29"
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(path), table.schema) as batches:
        batches.write_table(table, 10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 5 // 8])
    texts, batch = read_all(path)
    assert texts == table["text"].to_pylist()[:20]
    assert batch.rejects == {"damaged": 1}


def arrow_file(*columns: pa.Array) -> bytes:
    """Each column is a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("text", columns[0].type)])) as batches:
        for column in columns:
            batches.write_batch(pa.record_batch([column], ["text"]))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_offsets_that_lead_elsewhere(tmp_path: Path, kind: pa.DataType) -> None:
    """Arrow believes them: to read the value would end the process."""
    whole = pa.array(["One.", "Two.", "Three."], kind)
    width = "int64" if kind == pa.large_string() else "int32"
    path = tmp_path / "a.arrow"
    for wrong in ([0, 8, 4, 14], [0, 4, 2**30, 14]):
        offsets = pa.py_buffer(np.array(wrong, width).tobytes())
        broken = pa.Array.from_buffers(kind, 3, [None, offsets, whole.buffers()[2]])
        path.write_bytes(arrow_file(whole, broken, whole))
        texts, batch = read_all(path)
        assert texts == ["One.", "Two.", "Three."] * 2
        assert batch.rejects == {"damaged": 1}
        assert batch.examples[0].where == "rows 3 to 5"
        assert batch.documents["id"].to_pylist()[3:] == ["row 6", "row 7", "row 8"]


def test_values_of_a_dictionary_that_are_not_in_it(tmp_path: Path) -> None:
    words = pa.array(["One.", "Two."])
    path = tmp_path / "a.arrow"
    for wrong in (2, -1):
        index = pa.array([0, wrong, None], pa.int32())
        column = pa.DictionaryArray.from_arrays(index, words, safe=False)
        path.write_bytes(arrow_file(column))
        assert read_all(path)[1].rejects == {"damaged": 1}
    path.write_bytes(arrow_file(pa.DictionaryArray.from_arrays(pa.array([1, None]), words)))
    texts, batch = read_all(path)
    assert (texts, batch.rejects) == (["Two."], {"missing_field": 1})


def test_damaged_ids_cost_no_text(tmp_path: Path) -> None:
    offsets = pa.py_buffer(np.array([0, 8, 4], np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"12345678")])
    table = pa.record_batch([pa.array(["One.", "Two."]), broken], ["text", "id"])
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(path), table.schema) as batches:
        batches.write_batch(table)
    texts, batch = read_all(path)
    assert (texts, batch.rejects) == (["One.", "Two."], {})
    assert batch.documents["id"].to_pylist() == ["row 0", "row 1"]


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_any_bit_of_a_columnar_file(tmp_path: Path, kind: str) -> None:
    """Whatever a file says of its columns: no crash, and no more records than it could hold."""
    generator = random.Random(kind)
    nested = pa.StructArray.from_arrays([pa.array(TEXTS)], ["text"])
    columns = {"text": pa.array(TEXTS), "id": [str(i) for i in range(40)], "article": nested}
    # Parquet has no views.
    types = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
    types += [] if kind == "parquet" else [pa.string_view()]
    for trial in range(120):
        columns["text"] = pa.array(TEXTS, types[trial % len(types)])
        sink, table = pa.BufferOutputStream(), pa.table(columns)
        if kind == "parquet":
            pq.write_table(table, sink, row_group_size=20, compression="none")
        else:
            new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
            with new(sink, table.schema) as batches:
                batches.write_table(table, 20)
        data = bytearray(sink.getvalue().to_pybytes())
        for _ in range(1 + trial % 4):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path = tmp_path / "a"
        path.write_bytes(data)
        reader = FORMATS["parquet" if kind == "parquet" else "arrow"]
        for field in ("text", "article.text", "none"):
            records = list(reader(str(path), "", ReadOptions(text_field=field)))
            assert len(records) <= 2 * len(TEXTS)


def with_values(format: str) -> bytes:
    """Records whose text is null, a number, a list, empty, or of 5 MB, between good ones."""
    if format == "jsonl":
        values = [TEXTS[0], None, 7, 7.5, True, [TEXTS[0]], {"text": "x"}, "", LONG, TEXTS[1]]
        lines = [json.dumps({"text": value, "id": i}) for i, value in enumerate(values)]
        return "\n".join([*lines, '{"text": "half', "null", "7", "[]", "{}"]).encode()
    table = pa.table({"text": [TEXTS[0], None, "", LONG, TEXTS[1]]})
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as batches:
            batches.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


LONG = "A line of five megabytes. " * 200_000


@pytest.mark.parametrize("format", ["jsonl", "parquet", "arrow"])
def test_null_and_numbers_instead_of_text(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(with_values(format))
    texts, batch = read_all(path, format=format)
    assert texts == [TEXTS[0], LONG, TEXTS[1]]
    rows = {"missing_field": 1, "empty": 1}
    lines = {"missing_field": 2, "not_text": 5, "malformed_json": 4, "empty": 1}
    assert batch.rejects == (lines if format == "jsonl" else rows)


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.string())])
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_columns_of_other_types(tmp_path: Path, format: str, kind: pa.DataType) -> None:
    path = tmp_path / f"a.{format}"
    table = pa.table({"text": pa.nulls(5, kind)})
    if format == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as batches:
            batches.write_table(table)
    assert read_all(path)[1].rejects == {"not_text": 5}


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"parquet", "arrow", "jsonl"}))
def test_lines_of_five_megabytes(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(stored(format).replace(TEXTS[20].encode(), LONG.strip().encode()))
    texts, batch = read_all(path, format=format)
    assert batch.rejects == {}
    assert LONG.strip() in "\n".join(texts)
    assert len(texts) == (1 if format == "text" else len(TEXTS))


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"parquet", "arrow", "mediawiki"}))
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "utf-16"])
def test_wrong_encoding(tmp_path: Path, format: str, encoding: str) -> None:
    """Declared as UTF-8 it costs records, each counted; detected, or with a mark, none."""
    path = tmp_path / "a"
    path.write_bytes(stored(format).decode().encode(encoding))
    texts, batch = read_all(path, format=format)
    if encoding == "utf-16":
        assert batch.rejects == {}
    elif format != "jsonl":  # whose writers escape all but ASCII
        assert batch.rejects
        assert not any("„" in text for text in texts)
    found, detected = read_all(path, format=format, encoding="detect")
    assert detected.rejects == {}
    assert len(found) == (1 if format == "text" else len(TEXTS))
    assert all("„so sauer“" in text for text in found)


@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_a_long_record_is_held_a_few_times(tmp_path: Path, format: str) -> None:
    """While a batch is worked on, its text is there once; while it is read, three times."""
    path, size = tmp_path / "a", 20_000_000
    path.write_bytes(stored(format))
    read_all(path, format=format)  # imports what is imported late
    text = "A sentence. " * (size // 12)
    path.write_text(text if format == "text" else json.dumps({"text": text}))
    (split,) = splits(list_files([str(path)], format=format), target_bytes=size)
    tracemalloc.start()
    try:
        for batch in read(split):
            assert batch.bytes == len(text)
            now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Arrow's own memory is not seen here: that is where the text is.
    assert now < size / 10
    assert peak < (2.1 if format == "text" else 3.1) * size


def test_the_largest_record_of_each_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(readers, "LARGEST", {"text": 5000, "mediawiki": 1000})
    monkeypatch.setattr(readers, "LARGEST_OTHER", 2000)
    path = tmp_path / "a"
    for format in FORMATS:
        limit = readers.LARGEST.get(format, readers.LARGEST_OTHER)
        for size in (limit // 2, 2 * limit):
            path.write_bytes(formats.stored(format, ["word " * (size // 5)]))
            texts, batch = read_all(path, format=format)
            assert len(texts) == (size < limit)
            assert batch.rejects == ({} if size < limit else {"too_large": 1})


def test_ids_and_details_of_megabytes_are_not_kept(tmp_path: Path) -> None:
    huge = "y" * 1_000_000
    path = tmp_path / "a.jsonl"
    rows = [{"text": "", "id": huge}, {huge: 1}, {"text": "Fine.", "id": huge}]
    path.write_text("\n".join(map(json.dumps, rows)))
    texts, batch = read_all(path, source_field="id")
    assert texts == ["Fine."]
    assert batch.documents["id"].to_pylist() == ["line 3"]
    assert batch.documents["source"].to_pylist() == ["a.jsonl"]
    assert all(len(str(example)) < 5000 for example in batch.examples)


def test_many_small_records_fill_a_batch(tmp_path: Path) -> None:
    """By their text alone they would be one batch of all, which takes a hundred times its size."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 3000)
    (split,) = splits(list_files([str(path)]))
    assert max(batch.records for batch in read(split, ReadOptions(batch_bytes=10_000))) <= 100


def test_a_bomb_in_a_range_of_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "a.xml.bz2"
    packer = bz2.BZ2Compressor(9)
    head = packer.compress(b"<mediawiki>\n<page>")
    zeros = b"".join(packer.compress(bytes(1_000_000)) for _ in range(50))
    path.write_bytes(head + zeros + packer.flush())
    options = ReadOptions(max_record_bytes=1_000_000, start=0, end=path.stat().st_size)
    tracemalloc.start()
    try:
        (reject,) = FORMATS["mediawiki"](str(path), "bz2", options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(reject, Reject)
    assert reject.reason == "damaged"
    assert peak < 10_000_000
