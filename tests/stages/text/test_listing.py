from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stages.text.listing import (
    InputNotFound,
    Split,
    file_format,
    list_files,
    splits,
)


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The content of {name}.")


def paths_of(*given: str, base: Path, format: str = "auto") -> list[str]:
    return [e.path for e in list_files(given, base, format).entries]


def test_a_folder_is_listed_in_order_with_formats(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a/z.jsonl.gz", "a/y.parquet", "c.json", "d.TXT.ZST")
    listing = list_files([str(tmp_path)])
    assert [(e.path, e.format, e.compression) for e in listing.entries] == [
        ("a/y.parquet", "parquet", ""),
        ("a/z.jsonl.gz", "jsonl", "gzip"),
        ("b.txt", "text", ""),
        ("c.json", "jsonl", ""),
        ("d.TXT.ZST", "text", "zstd"),
    ]
    assert listing.entries[2].size == len("The content of b.txt.")
    assert listing.entries[2].mtime_ns == (tmp_path / "b.txt").stat().st_mtime_ns


def test_what_is_not_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "README.md", ".hidden.txt", ".git/config.txt", "noending")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "again.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "fifo.txt")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(tmp_path)  # the path of a socket has to be short
        try:
            server.bind("socket.txt")
        finally:
            os.chdir(here)
        listing = list_files(["."], tmp_path)
    assert [e.path for e in listing.entries] == ["a.txt"]
    assert {s.path: s.reason for s in listing.skipped} == {
        ".git": "hidden",
        ".hidden.txt": "hidden",
        "README.md": "unknown ending",
        "again.txt": "the same file as a.txt",
        "broken.txt": "a broken link",
        "fifo.txt": "not a regular file",
        "loop.txt": "a broken link",
        "noending": "unknown ending",
        "round": "a link to a folder that is listed already",
        "socket.txt": "not a regular file",
    }


def test_globs(tmp_path: Path) -> None:
    write(tmp_path, "x/1.txt", "x/2.txt", "x/deep/3.txt", "y/4.txt", "y/5.md", "[z].txt")
    assert paths_of("x/*.txt", base=tmp_path) == ["1.txt", "2.txt"]
    assert paths_of("x/**/*.txt", base=tmp_path) == ["1.txt", "2.txt", "deep/3.txt"]
    assert paths_of("?/[24].txt", base=tmp_path) == ["x/2.txt", "y/4.txt"]
    assert paths_of("*", base=tmp_path) == [
        "[z].txt", "x/1.txt", "x/2.txt", "x/deep/3.txt", "y/4.txt",
    ]  # fmt: skip
    assert paths_of("[z].txt", base=tmp_path) == ["[z].txt"]
    assert paths_of("y/*", base=tmp_path, format="text") == ["4.txt", "5.md"]
    with pytest.raises(InputNotFound, match=r"no file matches the corpus path x/\*\.gz"):
        paths_of("x/*.gz", base=tmp_path)


def test_the_root_holds_everything_given(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt", "b/c/2.txt")
    assert paths_of("a", "b/c", base=tmp_path) == ["a/1.txt", "b/c/2.txt"]
    assert paths_of("b/c/2.txt", base=tmp_path) == ["2.txt"]
    assert paths_of("a", "a/1.txt", "a/*.txt", "./a/../a", base=tmp_path) == ["1.txt"]
    listing = list_files([str(tmp_path / "a")])
    assert listing.root == str(tmp_path / "a")
    moved = tmp_path / "moved"
    (tmp_path / "a").rename(moved)
    assert list_files([str(moved)]).fingerprint_entries() == listing.fingerprint_entries()
    (moved / "1.txt").write_text("other")
    assert list_files([str(moved)]).fingerprint_entries() != listing.fingerprint_entries()


def test_messages_say_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, "only/page.html", "empty/.keep", "data.bin")
    os.mkfifo(tmp_path / "pipe")
    for given, words in {
        "missing": ["does not exist: missing", str(tmp_path)],
        "only": ["no readable file in only", ".txt", ".zst", "corpus.format", "page.html"],
        "empty": ["no readable file in empty"],
        "data.bin": ["cannot tell the format of data.bin", "corpus.format"],
        "pipe": ["pipe is not a regular file"],
    }.items():
        with pytest.raises(InputNotFound) as error:
            list_files([given], tmp_path)
        for word in words:
            assert word in str(error.value)


def test_a_named_format_reads_what_no_other_format_claims(tmp_path: Path) -> None:
    write(tmp_path, "text_00", "text_01.bz2", "a.txt", "rows.parquet")
    assert paths_of(".", base=tmp_path, format="sentences") == ["a.txt", "text_00", "text_01.bz2"]
    assert paths_of(".", base=tmp_path, format="parquet") == [
        "rows.parquet",
        "text_00",
        "text_01.bz2",
    ]
    assert paths_of("a.txt", base=tmp_path, format="jsonl") == ["a.txt"]
    assert file_format("text_01.bz2", "text") == ("text", "bz2")
    assert file_format("archive.gz") == (None, "gzip")


def test_unreadable_folder_is_said(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "closed/b.txt")
    (tmp_path / "closed").chmod(0)
    try:
        if os.access(tmp_path / "closed", os.R_OK):
            pytest.skip("this user may read everything")
        (skipped,) = list_files([str(tmp_path)]).skipped
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert skipped.path == "closed"
    assert "Permission denied" in skipped.reason


def test_splits_hold_every_file_once_and_survive_json(tmp_path: Path) -> None:
    write(tmp_path, *[f"{i:03}.txt" for i in range(40)], "x.jsonl", "y.txt.gz")
    listing = list_files([str(tmp_path)])
    items = splits(listing, target_bytes=100)
    assert sorted(f for s in items for f in s.files) == [e.path for e in listing.entries]
    assert all(s.bytes <= 100 for s in items)
    assert len({(s.format, s.compression) for s in items}) == 3
    assert sum(s.bytes for s in items) == sum(e.size for e in listing.entries)
    again = [Split.from_json(json.loads(json.dumps(s.to_json()))) for s in items]
    assert again == items
    assert len(splits(listing, target_bytes=1)) == 42


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys; import stages.text.listing, stages.text.python_docs;"
        "print(sorted({'numpy', 'pyarrow', 'icu4py', 'ray', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
