from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.digest import canonical_json
from stages.text.find_files import list_files
from stages.text.listing import InputNotFound, MixedListing, SourceOptions, Split, file_format
from stages.text.readers import read
from stages.text.splitting import splits


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


def test_names_that_formats_are_known_by() -> None:
    for name, expected in {
        "AA/wiki_00": "wikiextractor",
        "wiki_12.bz2": "wikiextractor",
        "wiki.train.tokens": "wikitext",
        "wiki.valid.raw": "wikitext",
        "photo.raw": None,
        "wiki.train.txt": "text",
        "dewiki-latest-pages-articles.xml.bz2": "mediawiki",
        "enwiki-pages-articles1.xml-p1p41242.bz2": "mediawiki",
        "a.CSV.gz": "csv",
        "a.tsv": "tsv",
        "a.feather": "arrow",
        "a.ipc": "arrow",
        ".txt": None,
        ".gz": None,
    }.items():
        assert file_format(name)[0] == expected, name
    # With --json the extractor gives the same names to JSON lines.
    assert file_format("wiki_00", "jsonl") == ("jsonl", "")


def test_the_index_of_a_dump_is_no_document(tmp_path: Path) -> None:
    write(tmp_path, "w-multistream.xml.bz2", "w-multistream-index.txt.bz2",
          "w-multistream-index3.txt-p1p9.bz2", "notes-on-multistream-index.txt")  # fmt: skip
    listing = list_files([str(tmp_path)])
    assert [e.path for e in listing.entries] == ["w-multistream.xml.bz2"]
    reasons = {s.path: s.reason for s in listing.skipped}
    assert reasons["w-multistream-index.txt.bz2"] == "the index of a dump, no text"
    assert paths_of("w-multistream-index.txt.bz2", base=tmp_path) == ["w-multistream-index.txt.bz2"]


def test_names_that_are_not_utf8_can_be_said(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    for name in ("a\udcff.txt", "b\udcff.bin"):
        (folder / name).write_text("x")
    listing = list_files([str(folder)])
    said = f"{listing.description()} {listing.skipped}"
    assert "caf\\xe9" in said
    assert listing.skipped[0].path == "b\\xff.bin"
    canonical_json(listing.fingerprint_entries())
    (folder / "a\udcff.txt").unlink()
    for given in (str(folder), str(folder / "a\udcff.txt")):
        with pytest.raises(InputNotFound) as error:
            list_files([given])
        str(error.value).encode()


def test_many_files_are_one_item_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.text.listing.MANY_FILES", 3)
    write(tmp_path, "a/1.txt", "a/2.txt", "b/3.txt", "4.txt")
    before = list_files([str(tmp_path)]).fingerprint_entries()
    assert [(e["path"], e["files"]) for e in before] == [("./", 1), ("a/", 2), ("b/", 1)]
    (tmp_path / "a/2.txt").write_text("Other.")
    after = list_files([str(tmp_path)]).fingerprint_entries()
    assert [e["path"] for e, old in zip(after, before, strict=True) if e != old] == ["a/"]


def test_sources_have_names(tmp_path: Path) -> None:
    write(tmp_path, "x/1.txt", "y/1.txt", "y/2.md")
    web = replace(list_files(["x"], tmp_path), source=SourceOptions("web", sample=0.5, repeat=2))
    own = replace(list_files(["y"], tmp_path), source=SourceOptions("own"))
    mixed = MixedListing((web, own))
    assert [e["path"] for e in mixed.fingerprint_entries()] == ["web/1.txt", "own/1.txt"]
    assert mixed.skipped == (("own/2.md", "unknown ending"),)
    assert "; own: 1 files" in mixed.description()
    first, second = splits(mixed)
    assert (first.name, first.sample, first.repeat) == ("web", 0.5, 2)
    assert (second.name, second.sample, second.repeat) == ("own", 1.0, 1)
    (batch,) = read(second)
    assert batch.documents["source"].to_pylist() == ["own/1.txt"]


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
    whole = [s for s in splits(listing, target_bytes=1) if s.format != "jsonl"]
    assert len(whole) == 41


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys; import stages.text.find_files, stages.text.splitting, stages.text.python_docs;"
        "print(sorted({'numpy', 'pyarrow', 'icu4py', 'ray', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
