"""Project Gutenberg's headers and footers: real books, wordings over the years, ordinary text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.boilerplate import MOST_BYTES, strip_boilerplate
from tests.oracle.real_text import shared_data

TERMS = "This eBook is for the use of anyone anywhere at no cost and with\nalmost no restrictions"
LICENCE = "***** This file should be named 1.txt or 1.zip *****\nProject Gutenberg-tm licence " * 9
BODY = "CHAPTER I.\n\nIt was a dark night. Project Gutenberg is named once.\n\nThe End."


def stripped(text: str) -> str:
    return strip_boilerplate(pa.array([text])).texts[0].as_py()


def book(start: str, end: str, header: str = TERMS, footer: str = LICENCE) -> str:
    title = "The Project Gutenberg EBook of A Book, by A. Writer"
    return f"\n{title}\n\n{header}\n\n{start}\n\n\n{BODY}\n\n\n{end}\n\n{footer}\n"


# As they stand in books, over the years.
STARTS = [
    "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
    "***START OF THE PROJECT GUTENBERG EBOOK A BOOK***",
    "*** START OF THE PROJECT GUTENBERG EBOOK A BOOK, WITH A LONG TITLE,\nOR TWO ***",
    "*** START OF THE PROJECT GUTENBERG ETEXT A BOOK ***",
    "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
    "*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*",
    "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\n\n\n\n"
    "Produced by Some One and the Online\nDistributed Proofreading Team\n",
    "***START OF THE PROJECT GUTENBERG EBOOK A BOOK***\n\n\nE-text prepared by Some One",
]
ENDS = [
    "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
    "***END OF THE PROJECT GUTENBERG EBOOK A BOOK***",
    "*** END OF THE PROJECT GUTENBERG EBOOK A BOOK, WITH A LONG TITLE,\nOR TWO ***",
    "End of the Project Gutenberg EBook of A Book, by\nA. Writer\n\n"
    "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
    "End of Project Gutenberg's A Book, by A. Writer",
    "End of The Project Gutenberg Etext of A Book",
    "Ende dieses Projekt Gutenberg Etextes Ein Buch, von Jemand",
]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_wordings(start: str, end: str, newline: str) -> None:
    text = book(start, end).replace("\n", newline)
    assert stripped(text).strip() == BODY.replace("\n", newline)
    bare = book(start, end, footer="").replace("\n", newline)
    assert stripped(bare).strip() == BODY.replace("\n", newline)


def test_counts_and_neighbours() -> None:
    whole = book(STARTS[0], ENDS[0])
    texts = ["plain", whole, "", "about Project Gutenberg", whole, "no Guten", "berg at all"]
    result = strip_boilerplate(pa.array(texts))
    result.texts.validate(full=True)
    expected = [stripped(text) for text in texts]
    assert result.texts.to_pylist() == expected
    assert [a == b for a, b in zip(texts, expected, strict=True)] == [
        True, False, True, True, False, True, True
    ]  # fmt: skip
    assert result.counts == {
        "boilerplate_documents": 2,
        "boilerplate_bytes": 2 * (len(whole) - len(expected[1])),
    }


def test_several_books_in_one_text() -> None:
    text = book(STARTS[0], ENDS[3]) + book(STARTS[1], ENDS[0]) + book(STARTS[6], ENDS[1])
    assert [part for part in stripped(text).split(BODY) if part.strip()] == []
    assert stripped(text).count(BODY) == 3


@pytest.mark.parametrize(
    "text",
    [
        "Project Gutenberg was founded in 1971. It holds eBooks.",
        "He wrote: *** START OF THIS PROJECT GUTENBERG EBOOK X *** and went on.",
        # The line alone, without what a header says.
        f"How to strip books\n\n{STARTS[0]}\n\nThe line above ends the header.",
        # Quoted in the middle of an article.
        f"{'Long article. ' * 300}\n\n{TERMS}\n\n{STARTS[0]}\n\nThe line above ends the header.",
        f"Their footers begin so:\n\n{ENDS[0]}\n\nand many words follow, " + "on and on " * 100,
        f"Text.\n\nEnd of Project Gutenberg's reign\n\n{'More text. ' * 100}",
        # A footer longer than any.
        book(STARTS[0], ENDS[0], footer=LICENCE + "text " * MOST_BYTES).split(STARTS[0])[1],
        "Transcriber's Note: spelling was kept.\n\nProduced by hand.\n\nThe end of Gutenberg",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert stripped(text) == text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*STARTS, *ENDS, TERMS, LICENCE, BODY, "\n\n", "***", "é\r\n", "Gutenberg"]
        ),
        max_size=8,
    ).map("\n".join)
)
def test_only_whole_stretches_go(text: str) -> None:
    """What is left is some of the text, and stripping says how much went."""
    result = strip_boilerplate(pa.array(["a", text, "b"]))
    left = result.texts[1].as_py()
    assert len(text.encode()) - len(left.encode()) == result.counts["boilerplate_bytes"]
    position = 0
    for line in left.split("\n"):
        position = text.find(line, position)
        assert position >= 0
    assert result.texts[0].as_py() + result.texts[2].as_py() == "ab"


def test_a_giant_line_is_no_trouble() -> None:
    text = "Gutenberg " * 200_000
    assert stripped(text) == text


def read(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")


def test_real_books() -> None:
    """The whole of each book stays, and nothing of the licence."""
    folder = shared_data() / "corpora" / "gutenberg-en"
    books = {path.name: read(path) for path in sorted(folder.iterdir())}
    assert len(books) == 9
    ends = {
        "132.txt": ("SUN TZU ON THE ART OF WAR", '[2]  "Marshal Turenne," p. 311.'),
        "1342-0.txt": ("PRIDE AND PREJUDICE", "the means of uniting them."),
        "2701-0.txt.gz": ("MOBY-DICK;", "only found another orphan."),
        "84-0.txt": ("Frankenstein;", "lost in darkness and distance."),
    }
    for name, text in books.items():
        left = stripped(text)
        assert 19_700 < len(text) - len(left) < 21_500, name
        for phrase in ("PROJECT GUTENBERG EBOOK", "Gutenberg-tm", "Produced by", "anywhere at no"):
            assert phrase not in left, (name, phrase)
        first, last = ends.get(name, ("", ""))
        assert first in left[:400], name
        assert left.rstrip().endswith(last), name


def test_other_real_text() -> None:
    corpora = shared_data() / "corpora"
    german = read(corpora / "german" / "34811-0.txt.gz")
    assert stripped(german) == german.partition("End of the Project Gutenberg EBook of")[0]
    chinese = read(corpora / "chinese" / "24264-0.txt.gz")
    assert stripped(chinese) == chinese
    peps = [json.loads(x)["text"] for x in read(corpora / "peps" / "peps.jsonl.gz").splitlines()]
    assert strip_boilerplate(pa.array(peps)).counts["boilerplate_documents"] == 0
