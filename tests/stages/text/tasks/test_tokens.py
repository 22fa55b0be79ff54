from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.tasks.conll import ConllColumns
from stages.text.tasks.rows import TaskFileError, TokenRow
from stages.text.tasks.tokens import TokenColumns, read_tokens

# No line ends or separators: CoNLL has no escape for them.
WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t "), min_size=1, max_size=5
).filter(lambda word: bool(word.strip()) and word != "-DOCSTART-")
TAGS = st.sampled_from(["O", "B-P", "I-P", "NOUN"])
SENTENCES = st.lists(
    st.lists(st.tuples(WORDS, TAGS), min_size=1, max_size=5), min_size=1, max_size=5
)

ANY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5).filter(str.strip)
LISTS = st.lists(st.lists(st.tuples(ANY, TAGS), min_size=1, max_size=4), min_size=1, max_size=4)


def conll(tmp_path: Path, content: str | bytes, name: str = "a.conll") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pairs(row: TokenRow) -> list[tuple[str, str]]:
    assert row.tags is not None
    return list(zip(row.words, row.tags, strict=True))


@settings(max_examples=30, deadline=None)
@given(SENTENCES, st.sampled_from("\t "), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[list[tuple[str, str]]],
    separator: str,
    end: str,
    extra: bool,
) -> None:
    middle = [separator + "_"] if extra else [""]
    text = end.join(
        "".join(word + middle[0] + separator + tag + end for word, tag in sentence)
        for sentence in sentences
    )
    path = conll(tmp_path_factory.mktemp("t"), text)
    columns = TokenColumns(conll=ConllColumns(words=0, comment=""))
    found = read_tokens([path], columns)
    assert [pairs(row) for row in found.rows] == sentences
    assert found.counts == {"in": len(sentences), "rows": len(sentences)}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@settings(max_examples=15, deadline=None)
@given(sentences=LISTS)
def test_lists_of_words_and_tags(
    tmp_path_factory: pytest.TempPathFactory, ending: str, sentences: list[list[tuple[str, str]]]
) -> None:
    path = tmp_path_factory.mktemp("t") / f"a.{ending}"
    rows = [
        {"key": i, "words": [w for w, _ in s], "tags": [t for _, t in s]}
        for i, s in enumerate(sentences)
    ]
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    found = read_tokens([path], TokenColumns(id="key"))
    assert [pairs(row) for row in found.rows] == sentences
    assert [row.id for row in found.rows] == [str(i) for i in range(len(sentences))]


def test_comments_documents_and_words_that_look_like_them(tmp_path: Path) -> None:
    text = (
        "# a comment of more columns O\n-DOCSTART- O\n\nThe O\nPound I-P\n# O\n\n \n"
        "# id\n#1 O\nhit O\n-DOCSTART- O\n# text\n#x y\nnext O\n"
    )
    found = read_tokens([conll(tmp_path, text)], TokenColumns())
    assert [row.words for row in found.rows] == [("The", "Pound", "#"), ("#1", "hit"), ("next",)]
    assert [row.id for row in found.rows] == ["line 4", "line 10", "line 15"]


def test_columns_are_found(tmp_path: Path) -> None:
    conllu = (
        "# sent_id = 1\n# text = Zum Haus\n1-2\tZum\t_\t_\n1\tZu\tzu\tADP\n2\tdem\tder\tDET\n"
        "2.1\tleer\tx\tVERB\n3\tHaus\tHaus\tNOUN\n\n1\tJa\tja\tINTJ\n"
    )
    path = conll(tmp_path, conllu, "a.conllu")
    found = read_tokens([path], TokenColumns())
    assert [pairs(r) for r in found.rows] == [
        [("Zu", "ADP"), ("dem", "DET"), ("Haus", "NOUN")],
        [("Ja", "INTJ")],
    ]
    lemmas = ConllColumns(words=-2, tags=None)
    assert read_tokens([path], TokenColumns(conll=lemmas)).rows[0] == TokenRow(
        "line 4", ("zu", "der", "Haus"), None
    )
    # Numbers that do not count the words are words.
    found = read_tokens([conll(tmp_path, "1 _ O\n3 _ O\n\n1 _ O\n4 _ O\n")], TokenColumns())
    assert [row.words for row in found.rows] == [("1", "3"), ("1", "4")]
    # One column is enough where no tags are read.
    found = read_tokens(
        [conll(tmp_path, "#One\nword\n")], TokenColumns(conll=ConllColumns(tags=None, comment=""))
    )
    assert found.rows == (TokenRow("line 1", ("#One", "word"), None),)


def test_a_line_without_a_tag_costs_its_sentence(tmp_path: Path) -> None:
    text = (
        b"Good\tO\n\nNo\tO\ntag\n\nNo\tO\ntag\t\n\nToo\tmany\tO\n\n\tO\n\ncaf\xe9\tO\n\n"
        b"Misspelt\tB-PRE\n\nFine\tB-PER\nNBSP\xc2\xa0in\xc2\xa0it\tO\n"
    )
    path = conll(tmp_path, text)
    found = read_tokens([path], TokenColumns(), ["O", "B-PER"])
    assert [row.words for row in found.rows] == [("Good",), ("Fine", "NBSP\xa0in\xa0it")]
    assert found.counts == {
        "in": 8,
        "rows": 2,
        "empty_word": 1,
        "missing_tag": 2,
        "ragged_line": 1,
        "undecodable": 1,
        "unknown_label": 1,
    }
    assert found.examples["missing_tag"][0] == (
        f"{path} line 4: a word without a tag: 1 columns, others have 2: tag"
    )
    assert "did you mean 'B-PER'?" in found.examples["unknown_label"][0]


def test_bad_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows: list[object] = [
        {"words": ["a", "b"], "tags": [0, 1]},
        {"words": ["a"], "tags": ["O", "O"]},
        {"words": [], "tags": []},
        {"words": ["a", " "], "tags": ["O", "O"]},
        {"words": ["a"], "tags": [""]},
        {"words": "a", "tags": ["O"]},
        {"words": ["a"], "tags": [None]},
        {"words": [1], "tags": ["O"]},
        {"words": ["\ud800"], "tags": ["O"]},
        {"tags": ["O"]},
        7,
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_tokens([path], TokenColumns())
    assert found.rows == (TokenRow("line 1", ("a", "b"), ("0", "1")),)
    assert found.reasons == {
        "empty": 1,
        "empty_word": 1,
        "malformed_json": 1,
        "missing_field": 1,
        "missing_tag": 1,
        "undecodable": 1,
        "unequal_lengths": 1,
        "wrong_type": 3,
    }
    assert found.counts["in"] == len(rows)


def test_mistakes_of_the_whole_file(tmp_path: Path) -> None:
    for text, columns, message in (
        ("", ConllColumns(), "is empty: a word and its tag a line"),
        ("one\ncolumn\n", ConllColumns(), "column 0 of 1 cannot hold both words and tags"),
        ("a O\n", ConllColumns(tags=2), "no column 2 for tags: most of its lines have 2"),
        ("a O\n", ConllColumns(words=-3), "no column -3 for words"),
    ):
        with pytest.raises(TaskFileError, match=message):
            read_tokens([conll(tmp_path, text)], TokenColumns(conll=columns))
    with pytest.raises(TaskFileError, match=r"absent\.conll cannot be read"):
        read_tokens([tmp_path / "absent.conll"], TokenColumns())
    (tmp_path / "a.jsonl").write_text('{"tokens": ["a"], "ner_tags": ["O"]}\n')
    with pytest.raises(TaskFileError, match=r"no column 'words'.*'tokens', 'ner_tags'"):
        read_tokens([tmp_path / "a.jsonl"], TokenColumns())
