"""Any cut of a dump gives the pages that the whole dump gives."""

from __future__ import annotations

import bz2
from itertools import pairwise
from pathlib import Path

import pytest

from stages.text.listing import FileEntry, Split
from stages.text.readers import read
from stages.text.splitting import in_ranges

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">
  <siteinfo><namespaces><namespace key="6" case="first-letter">Datei</namespace></namespaces>
  </siteinfo>
"""
PAGES = [
    f"""  <page>
    <title>Page {i}</title><ns>0</ns><id>{i}</id>
    <revision><text>{"Größe " * (3 * i)}[[Datei:a.jpg|mini|not text]] of page {i}.</text></revision>
  </page>
"""
    for i in range(1, 8)
] + ["  <page><title>R</title><ns>0</ns><id>9</id><redirect title='x'/></page>\n"]
DUMP = (HEAD + "".join(PAGES) + "</mediawiki>\n").encode()


def streams(*parts: bytes) -> bytes:
    return b"".join(bz2.compress(part) for part in parts)


def pages_a_stream(count: int) -> bytes:
    groups = ["".join(PAGES[i : i + count]).encode() for i in range(0, len(PAGES), count)]
    return streams(HEAD.encode(), *groups, b"</mediawiki>\n")


def bytes_a_stream(count: int) -> bytes:
    return streams(*(DUMP[i : i + count] for i in range(0, len(DUMP), count)))


STORED = {
    "plain": (DUMP, ""),
    "a page a stream": (pages_a_stream(1), "bz2"),
    "three pages a stream": (pages_a_stream(3), "bz2"),
    "one stream": (streams(DUMP), "bz2"),
    "streams end anywhere": (bytes_a_stream(97), "bz2"),
    "streams end inside of tags": (
        streams(*(part + b"<pa" for part in DUMP.split(b"<pa")[:-1]), DUMP.split(b"<pa")[-1]),
        "bz2",
    ),
}


def pages(path: Path, compression: str, *cuts: int) -> tuple[list[tuple[str, str]], dict[str, int]]:
    size = path.stat().st_size
    bounds = [0, *cuts, size]
    found: list[tuple[str, str]] = []
    rejects: dict[str, int] = {}
    for start, end in pairwise(bounds):
        whole = {} if not cuts else {"start": start, "end": end}
        split = Split("", str(path.parent), (path.name,), "mediawiki", compression, size, **whole)
        for batch in read(split):
            texts = batch.documents["text"].to_pylist()
            found += zip(batch.documents["id"].to_pylist(), texts, strict=True)
            for reason, count in batch.rejects.items():
                rejects[reason] = rejects.get(reason, 0) + count
    return found, rejects


@pytest.mark.parametrize(("data", "compression"), STORED.values(), ids=STORED)
def test_every_cut_gives_the_pages_of_the_whole(
    tmp_path: Path, data: bytes, compression: str
) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(data)
    whole = pages(path, compression)
    assert [own for own, _ in whole[0]] == [str(i) for i in range(1, 8)]
    assert not any("not text" in text for _, text in whole[0])
    assert whole[1] == {"redirect": 1}
    for cut in range(1, len(data), 5):
        assert pages(path, compression, cut) == whole, cut
    assert pages(path, compression, *range(20, len(data), 20)) == whole


def test_a_cut_dump_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    data = pages_a_stream(2)
    path.write_bytes(data[: len(data) - 60])
    found, rejects = pages(path, "bz2", len(data) // 2)
    assert len(found) >= 4
    assert sum(n for reason, n in rejects.items() if reason in ("truncated", "damaged")) == 1


def test_dumps_are_cut_where_streams_can_be() -> None:
    for compression, expected in {"": True, "bz2": True, "gzip": False, "xz": False}.items():
        entry = FileEntry("x", 3000, 0, "mediawiki", compression)
        assert in_ranges(entry, "utf-8", 1000) == expected
