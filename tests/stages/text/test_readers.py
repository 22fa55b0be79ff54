from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.find_files import list_files
from stages.text.listing import Split
from stages.text.readers import RECORD_BYTES, UNREADABLE, read
from stages.text.records import ReadOptions
from stages.text.splitting import splits
from stages.text.streams import DamagedFile, lines, to_utf8
from tests.oracle.real_text import corpora
from tests.reading import read_all

AESOP = [
    "A Fox one day spied a beautiful bunch of ripe grapes hanging from a vine.",
    "Der Fuchs über die Trauben: „Sie sind mir zu sauer!“",
    "狐狸說：葡萄是酸的。😀",
    "Line one.\nLine two,\u2028still two.\x85And NEL.",
]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": lambda data: bz2.compress(data, 1),  # small blocks
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


COMPRESSION = {"": "", ".gz": "gzip", ".zst": "zstd"}


def compress_zstd(data: bytes, path: Path) -> None:
    with pa.output_stream(str(path), compression="zstd") as stream:
        stream.write(data)


def store(path: Path, data: bytes) -> Path:
    if path.suffix == ".zst":
        compress_zstd(data, path)
    else:
        path.write_bytes(COMPRESS.get(path.suffix, COMPRESS[""])(data))
    return path


def parquet_bytes(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


@pytest.mark.parametrize("ending", COMPRESS)
def test_every_format_in_every_compression_gives_the_same_documents(
    tmp_path: Path, ending: str
) -> None:
    for i, text in enumerate(AESOP):
        store(tmp_path / f"{i}.txt{ending}", text.encode())
    texts, batch = read_all(tmp_path)
    assert texts == AESOP
    assert batch.documents["source"].to_pylist() == [f"{i}.txt{ending}" for i in range(4)]

    objects = [
        json.dumps({"id": i, "text": t}, ensure_ascii=i % 2 == 0) for i, t in enumerate(AESOP)
    ]
    path = store(tmp_path / f"a.jsonl{ending}", ("\n".join(objects) + "\n\n").encode())
    texts, batch = read_all(path)
    assert texts == AESOP
    assert batch.documents["id"].to_pylist() == ["0", "1", "2", "3"]

    table = pa.table({"text": AESOP, "id": ["a", "b", "c", "d"]})
    path = store(tmp_path / f"a.parquet{ending}", parquet_bytes(table, row_group_size=3))
    texts, batch = read_all(path)
    assert texts == AESOP
    assert batch.documents["id"].to_pylist() == ["a", "b", "c", "d"]

    path = store(tmp_path / f"s.txt{ending}", "One.\r\nTwo.\n\n \n\nThree\u2028.\n".encode())
    texts, batch = read_all(path, format="sentences")
    assert texts == ["One.\nTwo.", "Three\u2028."]
    assert batch.documents["id"].to_pylist() == ["line 1", "line 6"]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("format", ["text", "jsonl", "sentences"])
def test_of_a_truncated_file_the_rest_is_counted(tmp_path: Path, ending: str, format: str) -> None:
    generator = random.Random(3)  # text that does not compress away
    noise = [format + str(generator.randrange(10**12)) for _ in range(60_000)]
    rows = [json.dumps({"text": n}) for n in noise] if format == "jsonl" else noise
    data = "\n".join("\n".join(rows[i : i + 2]) + "\n" for i in range(0, len(rows), 2)).encode()
    name = {"text": "a.txt", "jsonl": "a.jsonl", "sentences": "a.txt"}[format] + ending
    path = store(tmp_path / name, data)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    texts, batch = read_all(path, format=format)
    assert batch.rejects == {"truncated": 1}, batch.examples
    assert batch.records == len(texts) + 1
    if format == "text":
        assert len(texts) == 1
        assert data.startswith(texts[0].encode())
        assert len(texts[0]) > len(data) / 4
    elif format == "jsonl":
        assert texts == noise[: len(texts)]
        assert len(texts) > 15_000


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_nothing_that_was_unpacked_is_lost(tmp_path: Path, ending: str) -> None:
    text = " ".join(str(random.Random(3).random()) for _ in range(2000)) + AESOP[0]
    path = store(tmp_path / f"a.txt{ending}", text.encode())
    path.write_bytes(path.read_bytes()[:-1])
    texts, batch = read_all(path)
    assert batch.rejects == {"truncated": 1}
    assert texts == [text]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_files_that_are_not_what_their_name_says(tmp_path: Path, ending: str) -> None:
    for name in (f"a.txt{ending}", f"a.jsonl{ending}", f"a.parquet{ending}"):
        path = tmp_path / name
        path.write_bytes(b"plain text, not compressed at all")
        texts, batch = read_all(path)
        assert texts == []
        assert sum(batch.rejects.values()) == 1
        assert set(batch.rejects) <= UNREADABLE


def test_bad_records_cost_themselves_and_say_where(tmp_path: Path) -> None:
    rows = [
        b'{"text": "First."}',
        b'{"text": "Half of a li',
        b"",
        b'{"text": null}',
        b'{"body": "Elsewhere."}',
        b'{"text": 12}',
        b'["a list"]',
        b'{"text": "\xff\xfe"}',
        b'{"text": "\\ud800"}',
        b'{"text": "   "}',
        b'{"text": "' + b"x" * 5000 + b'"}',
        b'{"text": "' + b"\\u0000" * 50 + b'"}',
        b"[" * 100_000,
        b'{"text": "Last."}',
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\r\n".join(rows))
    texts, batch = read_all(path, max_record_bytes=4000)
    assert texts == ["First.", "Last."]
    assert batch.rejects == {
        "malformed_json": 2,
        "missing_field": 2,
        "not_text": 2,
        "undecodable": 2,
        "empty": 1,
        "too_large": 2,
    }
    where = {(e.reason, e.where) for e in batch.examples}
    assert {
        ("malformed_json", "line 2"),
        ("missing_field", "line 4"),
        ("too_large", "line 11"),
    } <= where
    (elsewhere,) = [e for e in batch.examples if e.where == "line 5"]
    assert "keys: 'body'" in elsewhere.detail
    assert "corpus.text_field" in elsewhere.detail
    assert "Elsewhere" in elsewhere.snippet


def test_nested_keys_ids_and_sources_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"article": {"body": "Nested.", "n": 7}, "meta": {"url": "http://a"}},
        {"article.body": "With a dot.", "article": {"body": "Not this."}, "meta": {"url": ""}},
        {"article": {"body": None, "n": "x"}},
        {"article": "no object"},
        {"article": {"body": {"en": "Deeper."}}, "meta": {"url": 12}},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    fields = {"text_field": "article.body", "id_field": "article.n", "source_field": "meta.url"}
    texts, batch = read_all(path, **fields)
    assert texts == ["Nested.", "With a dot."]
    assert batch.documents["id"].to_pylist() == ["7", "line 2"]
    assert batch.documents["source"].to_pylist() == ["http://a", "a.jsonl"]
    assert batch.rejects == {"missing_field": 2, "not_text": 1}
    assert read_all(path, text_field="article.body.en")[0] == ["Deeper."]


def test_documents_between_blank_lines_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    first, second = "First,\n  indented\u2028still\0 here.", "Second\n\ttabbed"
    for end in ("\n", "\r\n"):
        text = f"\n \t\n{first}\n\n\n{second}\n \n"
        path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", end).encode())
        texts, batch = read_all(path, format="blank_lines")
        assert texts == [first, second]
        assert batch.documents["id"].to_pylist() == ["line 3", "line 7"]
    path.write_text("One.\n\n" + "word " * 50 + "\n" + "word " * 50 + "\n\nTwo.")
    for limit in (100, 300):  # a line, a document
        texts, batch = read_all(path, format="blank_lines", max_record_bytes=limit)
        assert (texts, batch.rejects) == (["One.", "Two."], {"too_large": 1})


def test_parquet_columns_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pa.array([b"caf\xc3\xa9 au lait", b"caf\xe9", None, b""])
    pq.write_table(pa.table({"text": raw}), path)
    texts, batch = read_all(path)
    assert texts == ["café au lait"]
    assert batch.rejects == {"undecodable": 1, "missing_field": 1, "empty": 1}

    pq.write_table(pa.table({"text": pa.array(["x", "y", "x"]).dictionary_encode()}), path)
    assert read_all(path)[0] == ["x", "y", "x"]
    pq.write_table(pa.table({"text": pa.array(["big"], pa.large_string())}), path)
    assert read_all(path)[0] == ["big"]
    pq.write_table(pa.table({"text": [1, 2]}), path)
    assert read_all(path)[1].rejects == {"not_text": 2}
    pq.write_table(pa.table({"body": ["x", "y"]}), path)
    texts, batch = read_all(path)
    assert batch.rejects == {"missing_field": 2}
    assert "columns: body" in batch.examples[0].detail
    assert read_all(path, text_field="body")[0] == ["x", "y"]
    data = parquet_bytes(pa.table({"text": ["x" * 50] * 1000}))
    path.write_bytes(data[: len(data) // 2])
    assert read_all(path)[1].rejects == {"unreadable": 1}


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", codecs.BOM_UTF8),
        ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE),
        ("utf-32-le", codecs.BOM_UTF32_LE),
        ("utf-32-be", codecs.BOM_UTF32_BE),
    ],
)
def test_a_byte_order_mark_tells_the_encoding(tmp_path: Path, encoding: str, mark: bytes) -> None:
    path = tmp_path / "a.txt"
    for text in (AESOP[2], "x"):
        path.write_bytes(mark + text.encode(encoding))
        assert read_all(path, encoding="latin-1")[0] == [text]
    path.write_bytes(mark)
    assert read_all(path)[1].rejects == {"empty": 1}


def test_declared_and_wrong_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("Né à Paris".encode("latin-1"))
    texts, batch = read_all(path)
    assert texts == []
    assert batch.rejects == {"undecodable": 1}
    assert "byte 1" in batch.examples[0].detail
    assert "corpus.encoding" in batch.examples[0].detail
    assert read_all(path, encoding="latin-1")[0] == ["Né à Paris"]

    good, bad = "葡萄是酸的".encode("gb18030"), b"\x81\xff\xff"
    path.write_bytes(good + b"\n\n" + bad + b"\n\n" + good)
    texts, batch = read_all(path, format="sentences", encoding="gb18030")
    assert texts == ["葡萄是酸的", "葡萄是酸的"]
    assert batch.rejects == {"undecodable": 1}

    path.write_bytes(AESOP[0].encode("utf-16-le"))  # no mark: NULs between the letters
    assert read_all(path)[1].rejects == {"not_text": 1}
    with pytest.raises(LookupError):
        read_all(path, encoding="no-such-encoding")


def test_odd_files(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text(" \n\r\n")
    (tmp_path / "nul.txt").write_bytes(b"A fox\0 saw a crow, and the crow saw the fox below.")
    (tmp_path / "bin\udcff.txt").write_bytes(bytes(range(256)))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty.txt.gz").touch()
    (tmp_path / "empty.parquet").touch()
    texts, batch = read_all(tmp_path)
    assert texts == ["A fox\0 saw a crow, and the crow saw the fox below."]
    assert batch.rejects == {"empty": 3, "not_text": 1, "unreadable": 1}
    assert {e.source for e in batch.examples if e.reason == "not_text"} == {"bin\\xff.txt"}
    gone = Split("", str(tmp_path), ("gone.txt",), "text", "", 3)
    assert next(read(gone)).rejects == {"unreadable": 1}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_what_took_the_place_of_a_file_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"a.txt{ending}")
    (tmp_path / f"b.txt{ending}").mkdir()
    for name in ("a.txt", "b.txt"):
        split = Split("", str(tmp_path), (name + ending,), "text", COMPRESSION[ending], 3)
        (batch,) = read(split)
        assert batch.rejects == {"unreadable": 1}
        assert "not a regular file" in batch.examples[0].detail
    for format in ("parquet", "arrow", "jsonl", "csv", "mediawiki"):
        (batch,) = read(Split("", str(tmp_path), (f"a.txt{ending}",), format, "", 3))
        assert batch.rejects == {"unreadable": 1}


def test_a_text_beyond_the_limit_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 1000)
    assert read_all(path, max_record_bytes=1000)[1].rejects == {"too_large": 1}
    path.write_text("\n".join(["word " * 10] * 100) + "\n\nShort.\n")
    texts, batch = read_all(path, format="sentences", max_record_bytes=1000)
    assert texts == ["Short."]
    assert batch.rejects == {"too_large": 1}


def test_batches_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x" * 100}) for _ in range(1000)))
    (split,) = splits(list_files([str(path)]))
    batches = list(read(split, ReadOptions(batch_bytes=10 * (100 + RECORD_BYTES))))
    assert {b.documents.num_rows for b in batches} == {10}
    assert {b.bytes for b in batches} == {1000}
    assert sum(b.records for b in batches) == 1000


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"a", b"bcd", b"\r", b"\n\n", b"e" * 9]), max_size=30),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_lines_do_not_depend_on_pieces(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    bounds = sorted({0, len(data), *[c for c in cuts if c < len(data)]})
    pieces = [data[a:b] for a, b in pairwise(bounds)]
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert list(lines(iter(pieces), 10)) == [x if len(x) <= 10 else None for x in expected]
    assert b"".join(to_utf8(iter(pieces))) == data


def test_damage_in_the_first_bytes_loses_none_of_them() -> None:
    def pieces() -> object:
        yield b"a\nb"
        raise DamagedFile("truncated", "ends too early")

    found = []
    with pytest.raises(DamagedFile):
        for line in lines(to_utf8(pieces()), 10):  # type: ignore[arg-type]
            found.append(line)  # noqa: PERF402 - what came before the failure counts
    assert found == [b"a"]


@pytest.mark.parametrize(
    ("folder", "format", "documents"),
    [
        ("gutenberg-en", "auto", 9),
        ("hindi", "auto", 7),
        ("peps", "auto", 270),
        ("us-state-of-the-union", "auto", 65),
        ("german", "auto", 220),
        ("chinese", "auto", 114),
        ("vietnamese", "auto", 162),
        ("wikipedia-en-extracted", "auto", 2 * 106),
        ("wikipedia-en-extracted/AA", "wikiextractor", 106),
        ("wikitext-2", "wikitext", 60),
        ("bert-format", "sentences", 3 + 60 + 68 + 397 + 397),
        ("bert-format", "blank_lines", 3 + 60 + 68 + 397 + 397),
    ],
)
def test_real_corpora_are_read_whole(folder: str, format: str, documents: int) -> None:
    texts, batch = read_all(corpora() / folder, format=format)
    assert batch.records == documents
    assert len(texts) == documents - sum(batch.rejects.values())
    # One article of Wikipedia is a list, and empty without it.
    assert batch.rejects in ({}, {"empty": 1}, {"empty": 2})
