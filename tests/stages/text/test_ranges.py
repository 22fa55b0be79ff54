"""Any cut of a file gives the records that the whole file gives."""

from __future__ import annotations

import io
import json
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.text.find_files import list_files
from stages.text.listing import FileEntry, Format, Split
from stages.text.ranges import record_range
from stages.text.readers import read
from stages.text.records import ReadOptions
from stages.text.splitting import ascii_white_space, in_ranges, splits

LINES = {
    "plain": b"One.\nTwo.\n\nThree.\n",
    "no newline at the end": b"One.\n\nTwo.\nThree.",
    "carriage returns": b"One.\r\nTwo.\r\n\r\n\r\nThree.\r\n",
    "blank lines all over": b"\n\n \t\nOne.\n\n\n \r\n\nTwo.\n\n",
    "only blank": b" \n\n\t\n",
    "empty": b"",
    "one line": b"One.",
    "mark": b"\xef\xbb\xbfOne.\n\nTwo.\n",
    "marks in the middle": b"One.\n\n\xef\xbb\xbfTwo.\n\xef\xbb\xbfThree.\n\n\xef\xbb\xbf",
    "several bytes a character": "Grüße.\n\n狐狸說。\n😀\u2028x\n\n\u3000\nY.\n".encode(),
    "not UTF-8": b"Caf\xe9.\n\nTea.\n\n\xff\xfe\n\nMilk.",
    "UTF-16": "One.\n\nTwo.\n".encode("utf-16"),
    "NUL and lone carriage returns": b"One\0.\rx\n\n\r\nTwo.\x0b\n\x0b\nThree.",
}


def documents(splits: list[Split], **options: object) -> tuple[list[str], dict[str, int]]:
    texts: list[str] = []
    rejects: dict[str, int] = {}
    for split in splits:
        for batch in read(split, ReadOptions(**options)):  # type: ignore[arg-type]
            texts += batch.documents["text"].to_pylist()
            for reason, count in batch.rejects.items():
                rejects[reason] = rejects.get(reason, 0) + count
    return texts, rejects


def cut(path: Path, format: Format, *places: int) -> list[Split]:
    """The file in ranges between `places`; without places as a whole."""
    size = path.stat().st_size
    if not places:
        return [Split("", str(path.parent), (path.name,), format, "", size)]
    bounds = [0, *sorted(places), size]
    return [
        Split("", str(path.parent), (path.name,), format, "", b - a, start=a, end=b)
        for a, b in pairwise(bounds)
    ]


@pytest.mark.parametrize("format", ["sentences", "blank_lines"])
@pytest.mark.parametrize("data", LINES.values(), ids=LINES)
def test_every_cut_gives_the_documents_of_the_whole(
    tmp_path: Path, data: bytes, format: Format
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    whole = documents(cut(path, format))
    for place in range(len(data) + 1):
        assert documents(cut(path, format, place)) == whole, place
    each = documents(cut(path, format, *range(len(data))))
    assert each == whole


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b" \n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n"])
def test_every_cut_of_json_lines(tmp_path: Path, start: bytes, end: bytes) -> None:
    rows = [{"text": "One."}, {"text": "Grüße.\n\n狐狸。"}, {"body": 1}, {"text": "Last."}]
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    path = tmp_path / "a.jsonl"
    path.write_bytes(start + end.join([*lines[:2], b'{"text": "half', *lines[2:]]))
    whole = documents(cut(path, "jsonl"))
    assert whole == (
        ["One.", "Grüße.\n\n狐狸。", "Last."],
        {"malformed_json": 1, "missing_field": 1},
    )
    for place in range(path.stat().st_size + 1):
        assert documents(cut(path, "jsonl", place)) == whole, place


@pytest.mark.parametrize("encoding", ["gb18030", "latin-1", "utf-16-le", "utf-16", "shift_jis"])
def test_every_cut_in_other_encodings(tmp_path: Path, encoding: str) -> None:
    text = "Eins.\n\nZwei.\n\n" if encoding == "latin-1" else "葡萄。\n\n酸的。\n"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding, "replace"))
    whole = documents(cut(path, "sentences"), encoding=encoding)
    assert len(whole[0]) == 2
    for place in range(path.stat().st_size + 1):
        assert documents(cut(path, "sentences", place), encoding=encoding) == whole, place


def test_a_mark_wins_in_every_range(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffGrüße.\n\nGrüße zwei.\n\nGrüße drei.\n".encode())
    whole = documents(cut(path, "sentences"), encoding="latin-1")
    assert whole[0][0] == "Grüße."
    assert documents(cut(path, "sentences", 20), encoding="latin-1") == whole


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"\n", b"a", b" ", b"\t", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"  \x0c"]),
        max_size=40,
    ).map(b"".join),
    st.lists(st.integers(0, 80), max_size=6),
    st.booleans(),
)
@example(b" " * 700 + b"\n" + b" " * 700 + b"\na", [650, 1300], True)
def test_ranges_tile_the_file_at_ends_of_records(
    data: bytes, places: list[int], blank_lines: bool
) -> None:
    bounds = sorted({0, len(data), *(p for p in places if p < len(data))})
    found = [
        record_range(io.BytesIO(data), len(data), a, b, blank_lines) for a, b in pairwise(bounds)
    ]
    found = [(first, last) for first, last in found if first < last]
    assert b"".join(data[first:last] for first, last in found) == data
    assert all(a[1] == b[0] for a, b in pairwise(found))
    for first, _ in found[1:]:
        before = data[:first]
        assert before.endswith(b"\n")
        if blank_lines:
            assert not before[:-1].rpartition(b"\n")[2].strip()


def test_a_range_inside_of_a_record_reads_no_further(tmp_path: Path) -> None:
    """One record of many ranges would otherwise be read once for each of them."""
    data = b"word " * 100_000 + b"\n\nNext.\n"

    class Counted(io.BytesIO):
        bytes_read = 0

        def read(self, size: int | None = -1) -> bytes:
            piece = super().read(size)
            Counted.bytes_read += len(piece)
            return piece

    assert record_range(Counted(data), len(data), 100, 200, True) == (200, 200)
    assert Counted.bytes_read < 70_000


def test_rejects_say_where_a_range_began(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "One."}\n{"text": "Two."}\n{"text": "half\n')
    _, second = cut(path, "jsonl", 5)
    (batch,) = read(second)
    assert batch.documents["id"].to_pylist() == ["line 1 after byte 17"]
    assert [e.where for e in batch.examples] == ["line 2 after byte 17"]


def test_large_files_of_lines_are_cut_and_others_are_not(tmp_path: Path) -> None:
    lines = "".join(f"Sentence number {i}.\n\n" for i in range(2000))
    for name in ("a.txt", "b.jsonl", "c.txt.gz", "d.csv", "e.txt"):
        (tmp_path / name).write_text(lines if name != "e.txt" else "Small.")
    listing = list_files([str(tmp_path)], format="sentences")
    items = splits(listing, target_bytes=1000)
    ranges = [s for s in items if s.end is not None]
    assert {s.files for s in ranges} == {("a.txt",)}
    assert len(ranges) == -(-len(lines) // 1000)
    assert [s.start for s in ranges[1:]] == [s.end for s in ranges[:-1]]
    assert sum(s.bytes for s in items) == sum(e.size for e in listing.entries)
    for target in (7, 100, 1000, 10_000_000):
        cut_up = documents([s for s in splits(listing, target) if s.files != ("c.txt.gz",)])
        assert len(cut_up[0]) == 2001

    def entry(format: Format, compression: str = "") -> FileEntry:
        return FileEntry("x", 3000, 0, format, compression)

    assert in_ranges(entry("jsonl"), "utf-8", 1000)
    assert not in_ranges(entry("jsonl"), "utf-8", 1500)
    assert not in_ranges(entry("jsonl"), "utf-16", 1000)
    assert not in_ranges(entry("jsonl", "gzip"), "utf-8", 1000)
    assert not in_ranges(entry("tsv"), "utf-8", 1000)
    assert not in_ranges(entry("text"), "utf-8", 1000)


def test_encodings_that_can_be_cut() -> None:
    for name in ("utf-8", "UTF8", "utf-8-sig", "latin-1", "cp1252", "koi8-r", "gbk", "euc-jp"):
        assert ascii_white_space(name), name
    for name in ("utf-16", "utf-16-le", "utf-32", "utf-7", "iso2022_jp", "hz", "cp037", "cp500"):
        assert not ascii_white_space(name), name


def test_many_pairs_of_cuts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"A b.\nC.\n \n\nD.\r\n\r\nE")
    whole = documents(cut(path, "sentences"))
    for places in combinations(range(path.stat().st_size), 2):
        assert documents(cut(path, "sentences", *places)) == whole
