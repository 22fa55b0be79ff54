"""The same 106 articles as a MediaWiki dump, as WikiExtractor's files and as its JSON lines.

In WikiExtractor's text headings end in a full stop, italics are in quotation marks, formulas and
code are `formula_1` and `codice_1`, and some items of lists inside lists are kept.
"""

from __future__ import annotations

import bz2
import re
from collections import Counter
from pathlib import Path

import pytest

from stages.text.extracted import doc_head
from stages.text.mediawiki import parse_page
from tests.oracle.real_text import corpora
from tests.reading import read_all

PLACEHOLDER = re.compile(r"\b(?:formula|codice)_\d+\b")

Forms = tuple[dict[str, str], dict[str, str], dict[str, str]]


def documents(path: Path) -> dict[str, str]:
    texts, batch = read_all(path)
    redirects = 100 if path.name == "wikipedia-en-dump" else 0
    assert batch.records == 106 + redirects
    assert {**batch.rejects, "redirect": batch.rejects.get("redirect", 0)} == {
        "empty": 1,
        "redirect": redirects,
    }
    empty = [e.where for e in batch.examples if e.reason == "empty"]
    return dict(zip(batch.documents["id"].to_pylist(), texts, strict=True)) | dict.fromkeys(
        empty, ""
    )


@pytest.fixture(scope="module")
def forms() -> Forms:
    """Texts by id: of the dump, of the `<doc>` files, of the JSON lines."""
    return (
        documents(corpora() / "wikipedia-en-dump"),
        documents(corpora() / "wikipedia-en-extracted/AA"),
        documents(corpora() / "wikipedia-en-extracted/wiki.jsonl.gz"),
    )


def test_all_forms_hold_the_same_articles(forms: Forms) -> None:
    dump, docs, rows = forms
    assert len(dump) == 106
    assert set(dump) == set(docs) == set(rows)
    # The extractor's article without text is a disambiguation page: a list.
    assert [i for i in dump if not dump[i]] == [i for i in docs if not docs[i]] == ["728"]


def test_titles_are_equal() -> None:
    data = bz2.decompress(next((corpora() / "wikipedia-en-dump").iterdir()).read_bytes())
    pages = [parse_page(raw) for raw in re.findall(rb"<page>.*?</page>", data, re.DOTALL)]
    of_dump = {page.id: page.title.encode() for page in pages if not page.redirect}
    of_docs = {}
    for path in (corpora() / "wikipedia-en-extracted/AA").iterdir():
        raw = path.read_bytes()
        for line in (bz2.decompress(raw) if path.suffix == ".bz2" else raw).splitlines():
            if head := doc_head(line):
                of_docs[head.id] = head.title
    assert of_docs == of_dump


def test_docs_and_json_differ_in_entities_alone(forms: Forms) -> None:
    _, docs, rows = forms
    different = [i for i in docs if docs[i] != rows[i].strip("\n")]
    assert len(different) == 25
    for i in different:
        text = rows[i].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        assert text.strip("\n") == docs[i]


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", PLACEHOLDER.sub("", text).lower()))


def test_dump_and_docs_hold_the_same_words(forms: Forms) -> None:
    dump, docs, _ = forms
    both: Counter[str] = Counter()
    only_dump, only_docs = both.copy(), both.copy()
    for i in dump:
        ours, theirs = words(dump[i]), words(docs[i])
        shared = (ours & theirs).total()
        # One list of places has six of its items kept by the extractor.
        assert shared >= 0.93 * max(ours.total(), theirs.total()) or i == "632", i
        both["words"] += shared
        only_dump += ours - theirs
        only_docs += theirs - ours
    assert only_dump.total() < 0.003 * both.total()
    assert only_docs.total() < 0.001 * both.total()


def test_dump_and_docs_hold_the_same_paragraphs(forms: Forms) -> None:
    dump, docs, _ = forms

    def paragraphs(text: str) -> Counter[str]:
        bare = re.sub(r"[^\w\n]+", " ", PLACEHOLDER.sub("", text))
        return Counter(line.strip() for line in bare.split("\n") if line.strip())

    of_dump, of_docs = Counter[str](), Counter[str]()
    for i in dump:
        of_dump += paragraphs(dump[i])
        of_docs += paragraphs(docs[i])
    shared = (of_dump & of_docs).total()
    assert shared > 0.96 * max(of_dump.total(), of_docs.total())
