from __future__ import annotations

import bz2
import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.mediawiki import mediawiki_records, parse_page
from stages.text.records import ReadOptions, Record, Reject
from tests.reading import read_all

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
  <siteinfo>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
    </namespaces>
  </siteinfo>
"""
END = "</mediawiki>\n"


def page(number: int, text: str, namespace: int = 0, more: str = "", revision: str = "") -> str:
    return f"""  <page>
    <title>Page {number}</title>
    <ns>{namespace}</ns>
    <id>{number}</id>{more}
    <revision>
      <id>{number + 1000}</id>
      <contributor><username>x</username><id>7</id></contributor>{revision}
      <text xml:space="preserve">{text}</text>
    </revision>
  </page>
"""


PAGES = [
    page(
        1,
        "''First'' &lt;b&gt;bold&lt;/b&gt; [[Datei:a.jpg|mini|b]]text &amp;amp; &quot;more&quot;.",
    ),
    page(2, "#REDIRECT [[First]]", more='\n    <redirect title="First" />'),
    page(3, "Talk.", namespace=1),
    page(4, "{{only}}"),
    page(5, "#redirect:[[First]]"),
    page(6, "p { color: red }", revision="\n      <model>css</model>"),
    page(7, "Last &lt;page&gt; of 狐狸 &#233;."),
]
TEXTS = ['First bold text & "more".', "Last <page> of 狐狸 é."]
REJECTS = {"redirect": 2, "not_an_article": 2, "empty": 1}


def test_pages_of_each_kind(tmp_path: Path) -> None:
    data = (HEAD + "".join(PAGES) + END).encode()
    streams = b"".join(bz2.compress(part) for part in (HEAD.encode(), data[len(HEAD) :]))
    for name, stored in {
        "a.xml": data,
        "b.xml.gz": gzip.compress(data),
        "enwiki-pages-articles-multistream1.xml-p1p7.bz2": streams,
        "d.xml": "".join(PAGES).encode(),  # a part cut out of a dump
    }.items():
        (tmp_path / name).write_bytes(stored)
        texts, batch = read_all(tmp_path / name)
        # Without the head it is not known that "Datei" holds files.
        shown = 1 if name == "d.xml" else 0
        assert texts[shown:] == TEXTS[shown:], name
        assert batch.documents["id"].to_pylist() == ["1", "7"]
        assert batch.rejects == REJECTS


def test_damage_costs_its_page(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"

    def rejects(data: str | bytes, texts: int = 2) -> dict[str, int]:
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        found, batch = read_all(path)
        assert len(found) == texts
        return {k: n for k, n in batch.rejects.items() if k not in REJECTS}

    broken = [*PAGES[:3], page(8, "a <b> c"), *PAGES[3:]]
    assert rejects(HEAD + "".join(broken) + END) == {"damaged": 1}
    broken[3] = page(8, "\x08 and &undefined;")
    assert rejects(HEAD + "".join(broken) + END) == {"damaged": 1}
    broken[3] = page(8, "x").replace("</page>", "</pXge>")
    assert rejects(HEAD + "".join(broken) + END) == {"damaged": 1}
    broken[3] = page(8, "x").replace("<page>", "<pXge>")
    assert rejects(HEAD + "".join(broken) + END) == {"damaged": 1}
    data = (HEAD + "".join(PAGES) + END).encode()
    assert rejects(data.replace("狐狸".encode(), b"\xff"), 1) == {"damaged": 1}
    assert rejects(data[: data.index(b"Last")], 1) == {"damaged": 1}
    assert rejects(data[: data.index(b"</mediawiki>")]) == {"damaged": 1}
    assert rejects("<html><page>x</page></html>", 0) == {"unreadable": 1}
    assert rejects("", 0) == {}
    path = tmp_path / "a.xml.bz2"
    large = "".join(page(i, f"Number {i * i * 7919 % 99991}." * 50) for i in range(2000))
    stored = bz2.compress((HEAD + large + END).encode(), 1)
    path.write_bytes(stored[: len(stored) * 2 // 3])
    texts, batch = read_all(path)
    assert batch.rejects == {"truncated": 1}
    assert len(texts) > 500


def test_entities_are_not_expanded(tmp_path: Path) -> None:
    laughs = "".join(
        f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' if i else '<!ENTITY l0 "ha">' for i in range(12)
    )
    path = tmp_path / "a.xml"
    path.write_text(
        f"<!DOCTYPE mediawiki [{laughs}<!ENTITY f SYSTEM 'file:///etc/passwd'>]>{HEAD}"
        f"{page(1, '&l11;')}{page(2, '&f;')}{page(3, 'Fine.')}{END}"
    )
    texts, batch = read_all(path)
    assert texts == ["Fine."]
    assert batch.rejects == {"damaged": 2}


def test_a_page_beyond_the_limit_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(HEAD + PAGES[0] + page(8, "x" * 2_000_000) + PAGES[6] + END)
    texts, batch = read_all(path, max_record_bytes=1_000_000)
    assert (texts, batch.rejects) == (TEXTS, {"too_large": 1})
    assert batch.examples[0].where == "page 2"


def test_the_last_revision_counts() -> None:
    old = "<revision><text>old</text></revision><revision><text>new</text></revision>"
    assert parse_page(f"<page><title>T</title><id>5</id>{old}</page>".encode()).markup == "new"
    assert parse_page(b"<page><revision><text deleted='deleted'/></revision></page>").markup == ""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3000), max_size=6))
def test_pages_do_not_depend_on_pieces(cuts: list[int]) -> None:
    data = (HEAD + "".join(PAGES) + END).encode()
    bounds = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in pairwise(bounds)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.text.mediawiki.read_pieces", lambda path, compression: iter(pieces))
        found = list(mediawiki_records("a.xml", "", ReadOptions()))
    assert [r.id for r in found if isinstance(r, Record)] == ["1", "4", "7"]
    assert len([r for r in found if isinstance(r, Reject)]) == 4
