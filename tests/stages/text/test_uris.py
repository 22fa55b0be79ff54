"""Corpora on other filesystems. fsspec's filesystem in memory stands for them all."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stages.text.find_files import list_files
from stages.text.listing import InputNotFound, shown
from stages.text.readers import read
from stages.text.records import ReadOptions
from stages.text.splitting import splits
from stages.text.uris import RemoteFailure, is_remote, join_uri, local_path, split_uri

TEXT = "The Fox and the Grapes.\n\nA Fox one day spied a beautiful bunch of ripe grapes.\n"


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """What stands under `fsspec+memory:///`."""
    filesystem = MemoryFileSystem()
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()


def fill(filesystem: MemoryFileSystem, **more: bytes) -> None:
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["In a table."]}), table)
    for path, data in {
        "books/a.txt": TEXT.encode(),
        "books/deep/b c.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
        "books/deep/rows.jsonl": b'{"text": "In a line."}\n',
        "books/deep/rows.parquet": table.getvalue().to_pybytes(),
        "books/deep/.hidden/c.txt": b"x",
        "books/cover.jpg": b"x",
        "books/100%#.txt": b"A name of many signs, which stand for nothing else.",
        **more,
    }.items():
        filesystem.pipe(f"/{path}", data)


def texts(*paths: str, format: str = "auto", target: int | None = None) -> list[str]:
    listing = list_files(list(paths), format=format)
    return [
        text
        for split in splits(listing, target)
        for batch in read(split, ReadOptions())
        for text in batch.documents["text"].to_pylist()
    ]


def test_folders_files_and_globs(memory: MemoryFileSystem) -> None:
    fill(memory)
    listing = list_files(["fsspec+memory:///books"])
    assert [(e.path, e.format, e.compression) for e in listing.entries] == [
        ("100%#.txt", "text", ""),
        ("a.txt", "text", ""),
        ("deep/b c.txt.gz", "text", "gzip"),
        ("deep/rows.jsonl", "jsonl", ""),
        ("deep/rows.parquet", "parquet", ""),
    ]
    assert {s.path: s.reason for s in listing.skipped} == {
        "cover.jpg": "unknown ending",
        "deep/.hidden/c.txt": "hidden",
    }
    found = texts("fsspec+memory:///books")
    assert sorted(found) == sorted(
        [TEXT, TEXT, "In a line.", "In a table.",
         "A name of many signs, which stand for nothing else."]
    )  # fmt: skip
    for given, expected in {
        "fsspec+memory:///books/a.txt": ["a.txt"],
        "fsspec+memory:///books/*.txt": ["100%#.txt", "a.txt"],
        "fsspec+memory:///books/d*/*.gz": ["deep/b c.txt.gz"],
        "fsspec+memory:///books/deep/b%20c.txt.gz": ["b c.txt.gz"],
        "fsspec+memory:///**/rows.jsonl": ["books/deep/rows.jsonl"],
        "fsspec+memory:///books/*": ["100%#.txt", "a.txt", "deep/b c.txt.gz", "deep/rows.jsonl",
                                     "deep/rows.parquet"],
    }.items():  # fmt: skip
        assert [e.path for e in list_files([given]).entries] == expected
    several = list_files(["fsspec+memory:///books/deep", "fsspec+memory:///books/a.txt"])
    assert several.root == "fsspec+memory:///books"
    assert len(several.entries) == 4


def test_a_changed_file_is_another_corpus(memory: MemoryFileSystem) -> None:
    fill(memory)
    before = list_files(["fsspec+memory:///books"]).fingerprint_entries()
    assert before == list_files(["fsspec+memory:///books"]).fingerprint_entries()
    memory.pipe("/books/a.txt", TEXT.upper().encode())
    after = list_files(["fsspec+memory:///books"]).fingerprint_entries()
    assert [a["path"] for a, b in zip(after, before, strict=True) if a != b] == ["a.txt"]


def test_ranges_of_a_large_file(memory: MemoryFileSystem) -> None:
    rows = [f"Sentence number {i}." for i in range(500)]
    memory.pipe("/big/a.txt", "\n\n".join(rows).encode())
    assert texts("fsspec+memory:///big", format="sentences", target=1000) == rows


class Flaky(MemoryFileSystem):
    """Lists files as the one in memory does, and fails when one is read."""

    protocol = "flaky"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("flaky://")))

    def _open(self, *args: Any, **options: Any) -> Any:
        file = super()._open(*args, **options)
        file.read = self._fail
        return file

    def _fail(self, *args: Any) -> bytes:
        raise OSError("the connection was reset\nby the peer")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl.zst", "a.parquet", "a.csv"])
def test_a_filesystem_that_fails_is_no_damage_of_the_file(
    memory: MemoryFileSystem, name: str
) -> None:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    memory.pipe(f"/far/{name}", b"some bytes that are there")
    with pytest.raises(RemoteFailure, match=r"flaky:///far/.* the connection was reset\. Run"):
        texts("fsspec+flaky:///far")


def test_messages_are_one_line_and_hold_no_key(memory: MemoryFileSystem) -> None:
    fill(memory)
    for given, words in {
        "https://example.org/dump.xml.bz2": ["https://example.org", "download it first"],
        "nosuch://x/y": ["nosuch://x/y cannot be reached", "nosuch"],
        "fsspec+memory:///nowhere": ["does not exist", "nowhere"],
        "fsspec+memory:///books/*.csv": ["no file matches", "books/*.csv"],
        "fsspec+memory:///books/cover.jpg": ["cannot tell the format", "corpus.format"],
    }.items():
        with pytest.raises(InputNotFound) as error:
            list_files([given])
        assert "\n" not in str(error.value)
        for word in words:
            assert word in str(error.value)
    for paths in (["fsspec+memory:///books", "/tmp"], ["s3://a/x", "s3://b/x"]):
        with pytest.raises(InputNotFound, match=r"one filesystem.*corpus\.sources"):
            list_files(paths)
    assert shown("s3://key:secret@bucket/x?secret_key=y") == "s3://bucket/x"
    assert shown("/data/what?") == "/data/what?"


def test_parts_of_uris() -> None:
    uri = "s3://key@bucket/a%20b?region=eu-west-1&endpoint_override=host:9000"
    assert split_uri(uri) == ("s3", "key@bucket", "/a b", uri[uri.index("?") :])
    assert str(split_uri(uri)) == uri
    assert join_uri(uri, "c/d?e.txt") == uri.replace("?", "/c/d%3Fe.txt?")
    assert is_remote(uri)
    assert not is_remote("/data/s3://x")
    assert not is_remote("file:///data")
    assert local_path("file:///data/a%20b") == "/data/a b"
    assert local_path("/data/a%20b") == "/data/a%20b"


def test_pyarrow_is_imported_for_uris_alone(tmp_path: Any) -> None:
    (tmp_path / "a b.txt").write_text(TEXT)
    code = (
        "import sys; from stages.text.find_files import list_files;"
        "print(list_files([sys.argv[1]]).entries[0].path, 'pyarrow' in sys.modules)"
    )
    given = f"{tmp_path.as_uri()}/a%20b.txt"
    result = subprocess.run(
        [sys.executable, "-c", code, given], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "a b.txt False"
