"""The HTML report: parsed, escaped, complete."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.report import count_rows, marked, page, shown, unbalanced
from pipeline.stage import Histogram, Node, Result, Stage, Table

NODE = Node("shard", Stage("shard", 3, "stages.shard:run"), {"corpus": {"kind": "files"}})
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Checks that tags nest, and keeps text and tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_everything_is_on_the_page() -> None:
    result = Result(
        figures={"bytes_in": 1234567, "share": 0.123456789, "languages": ["en", "de"]},
        counts={"too_short": 3, "in": 10, "out": 7},
        report=[
            Table("Longest documents", ["name", "bytes"], [["a.txt", 900], ["b.txt", 800]]),
            Histogram("Sentence lengths", [0, 10, 20, 40], [5, 9, 1], "words"),
        ],
        samples=["It was the best of times,", "it was the worst of times."],
    )
    manifest = {
        "fingerprint": "a" * 64,
        "output_digest": "b" * 64,
        "inputs": {"vocab": {"node": "vocab", "output_digest": "c" * 64}},
        "versions": {"fingerprinted": {"pyarrow": "25.0.1"}, "recorded": {}},
        "tracking_run_id": "e" * 32,
    }
    reader = read(page(NODE, manifest, result))
    wanted = ["shard", "version 3", "1,234,567", "0.123457", '["en", "de"]', "30.00%", "a.txt"]
    wanted += ["Sentence lengths (words)", "It was the best of times,", "corpus.kind", "files"]
    wanted += ["a" * 64, "b" * 64, "c" * 64, "fingerprinted.pyarrow", "25.0.1", "e" * 32]
    for text in wanted:
        assert text in reader.text, text
    assert reader.tags.count("rect") == 3
    assert ("scope", "col") in reader.attributes and ("scope", "row") in reader.attributes
    assert ("lang", "en") in reader.attributes and "caption" in reader.tags
    # Self-contained: nothing is fetched, nothing runs.
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert not [value for name, value in reader.attributes if name in ("src", "href")]
    assert "url(" not in page(NODE, manifest, result)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_text_is_never_markup(text: str) -> None:
    hostile = f"<script>alert('{text}')</script>&amp;\"><b>"
    result = Result(
        figures={hostile: hostile},
        report=[Table(hostile, [hostile], [[hostile]]), Histogram(hostile, [0, 1], [1], hostile)],
        samples=[hostile],
    )
    reader = read(page(NODE, {"inputs": {hostile: {"node": hostile}}}, result))
    assert not {"script", "b"} & set(reader.tags)
    assert hostile in reader.text


def test_what_is_not_accounted_for_is_said() -> None:
    assert unbalanced({"in": 10, "out": 7, "duplicate": 3}) is None
    assert unbalanced({"out": 7}) is None
    assert unbalanced({"in": 10, "out": 7}) == "3 of 10 are not accounted for."
    assert "not accounted for" in page(NODE, {}, Result(counts={"in": 10, "out": 7}))
    assert count_rows({"short": 1, "out": 3, "in": 4}) == [
        ("in", 4, "100.00%"),
        ("out", 3, "75.00%"),
        ("short", 1, "25.00%"),
    ]


def test_empty_results_and_flat_histograms() -> None:
    read(page(NODE, {}, Result()))
    read(page(NODE, {}, Result(report=[Histogram("one", [5, 5], [0]), Table("t", [], [])])))
    with pytest.raises(ValueError, match="zip"):
        page(NODE, {}, Result(report=[Histogram("bad", [0, 1], [1, 2])]))


def test_bars_are_in_proportion() -> None:
    html = page(NODE, {}, Result(report=[Histogram("h", [0, 1, 4], [2, 1])]))
    assert 'x="0.00" y="0.00" width="159.00" height="160.00"' in html
    assert 'x="160.00" y="80.00" width="479.00" height="80.00"' in html


def test_values() -> None:
    assert [shown(v) for v in (True, None, 12345, 0.5, "x", [1], {"a": "é"})] == [
        "yes",
        "–",
        "12,345",
        "0.5",
        "x",
        "[1]",
        '{"a": "é"}',
    ]


def test_shares_and_their_names_have_the_same_colours() -> None:
    """The n-th piece of the bar is the n-th row below "in", pieces of nothing too."""
    html = page(NODE, {}, Result(counts={"in": 4, "out": 3, "empty": 0, "too_short": 1}))
    pieces = re.findall(r'<span( hidden)? style="flex: (\d+) 0 0" title="([a-z ]+):', html)
    assert pieces == [("", "3", "out"), (" hidden", "0", "empty"), ("", "1", "too short")]


def test_marks_in_samples() -> None:
    assert marked("a [MASK→b] [CLS] <i>") == "a <mark>[MASK→b]</mark> [CLS] &lt;i&gt;"


def test_bins_that_double_are_drawn_equally_wide() -> None:
    html = page(NODE, {}, Result(report=[Histogram("h", [1, 2, 4, 8, 16, 32], [1, 1, 1, 1, 1])]))
    assert html.count('width="127.00"') == 5
