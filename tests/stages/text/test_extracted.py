from __future__ import annotations

from pathlib import Path

from stages.text.extracted import DocHead, doc_head
from tests.reading import read_all

DOCS = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">
Anarchism

Anarchism is a philosophy of R&amp;D &lt; &amp;lt;.
History.

Later.

</doc>
<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="A "quoted" title">
A "quoted" title

A "quoted" title is not repeated twice.
A "quoted" title
</doc>
<doc id="14" url="" title="Empty">
Empty

</doc>
<doc id="15" url="" title="Never closed">
Never closed

Lost.
<doc id="16" url="" title="Other first line">
Text begins at once.
</doc>
"""


def test_docs(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    for end in ("\n", "\r\n"):
        path.write_text(DOCS, newline=end)
        texts, batch = read_all(path)
        assert texts == [
            "Anarchism is a philosophy of R&D < &lt;.\nHistory.\n\nLater.",
            'A "quoted" title is not repeated twice.\nA "quoted" title',
            "Text begins at once.",
        ]
        assert batch.documents["id"].to_pylist() == ["12", "13", "16"]
        assert batch.rejects == {"empty": 1, "malformed_doc": 1}
        (lost,) = [e for e in batch.examples if e.reason == "malformed_doc"]
        assert lost.where == "line 20"
        assert "Lost." in lost.snippet


def test_what_is_no_doc(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text("stray\nlines\n" + DOCS + "after\n\nit\n<doc>\nNo head.\n</doc>\n")
    texts, batch = read_all(path)
    assert len(texts) == 3
    assert batch.rejects == {"empty": 1, "malformed_doc": 3}
    path.write_text(DOCS[: DOCS.index("History")])
    assert read_all(path)[1].rejects == {"malformed_doc": 1}
    path.write_text(DOCS.replace("Later.", "Later.\n" * 30))
    assert read_all(path, max_record_bytes=150)[1].rejects == {
        "too_large": 1,
        "empty": 1,
        "malformed_doc": 1,
    }


def test_heads_of_docs() -> None:
    title = 'The "x" title="y"'
    line = f'<doc id="7" revid="3" url="http://a/?curid=7" title="{title}">'
    assert doc_head(line.encode()) == DocHead("7", title.encode())
    assert doc_head(b"<doc>") is None
    assert doc_head(b"<document id='1'>") is None


WIKITEXT = r""" \
 = Robert <unk> = \
 \
 Robert is an actor . He had a guest @-@ starring role for 1 @,@ 000
 in 2 @.@ 5 films . \
 \
 = = Career = = \
 \
 = 1 / s and a value k = \
 1 . \
 \
 = = = 2000 = = = \

 = Du Fu = \
 \
 A poet . \
""".replace("\\", "")


def test_wikitext(tmp_path: Path) -> None:
    path = tmp_path / "wiki.test.tokens"
    path.write_text(WIKITEXT)
    texts, batch = read_all(path)
    assert texts == [
        "Robert <unk>\n\nRobert is an actor . He had a guest-starring role for 1,000\n"
        "in 2.5 films .\n\nCareer\n\n= 1 / s and a value k =\n1 .\n\n2000",
        "Du Fu\n\nA poet .",
    ]
    assert batch.documents["id"].to_pylist() == ["line 2", "line 14"]
    assert batch.rejects == {}
    path.write_text("Text before a title.\n\n = Title = ")
    assert read_all(path)[0] == ["Text before a title.", "Title"]
    assert read_all(path, max_record_bytes=10)[1].rejects == {"too_large": 1}
    path.write_text("\n \n")
    assert read_all(path)[1].records == 0
