from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.delimited import csv_records, tsv_records
from stages.text.records import ReadOptions, Record, Reject
from tests.reading import read_all

FOX = [
    'He said, "They are sour."',
    "First line.\r\nSecond line,\n\nand a third.",
    "Trauben; Käse\tund 😀",
    "A\0NUL and\u2028a separator",
    '"',
]


def written(rows: list[list[str]], delimiter: str = ",", **options: object) -> str:
    sink = io.StringIO(newline="")
    csv.writer(sink, delimiter=delimiter, **options).writerows(rows)  # type: ignore[arg-type]
    return sink.getvalue()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_what_csv_writes_is_read(tmp_path: Path, delimiter: str, mark: str) -> None:
    path = tmp_path / "a.csv"
    rows = [["id", "text", "more"], *([f"r{i}", text, ""] for i, text in enumerate(FOX))]
    path.write_text(mark + written(rows, delimiter), newline="")
    texts, batch = read_all(path)
    assert texts == FOX
    assert batch.documents["id"].to_pylist() == ["r0", "r1", "r2", "r3", "r4"]
    assert batch.rejects == {}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.text('ab",;\n\r \t\0\u2028é', max_size=12), min_size=2, max_size=2), max_size=8
    ),
    st.sampled_from(["\n", "\r\n"]),
)
def test_every_table_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], end: str
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    table = [["id", "text"], *rows]
    path = folder / "a.csv"
    path.write_bytes(written(table, quoting=csv.QUOTE_ALL, lineterminator=end).encode())
    found = list(csv_records(str(path), "", ReadOptions()))
    assert [r.text.decode() for r in found if isinstance(r, Record)] == [row[1] for row in rows]
    assert len(found) == len(rows)

    path = folder / "a.tsv"
    table[1:] = [[a.replace("\t", " "), b.replace("\t", " ")] for a, b in rows]
    path.write_bytes(written(table, "\t", quoting=csv.QUOTE_ALL, lineterminator=end).encode())
    found = list(tsv_records(str(path), "", ReadOptions()))
    assert [r.text.decode() for r in found if isinstance(r, Record)] == [
        row[1] for row in table[1:]
    ]


def test_a_bad_row_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"id,text\n"
        b"1,First.\n"
        b"2,too,many\n"
        b"few\n"
        b'4,"stray" quote\n'
        b'5,a 5" pipe\n'
        b"\n"
        b"6,\xff\xfe\n"
        b"7," + b"x" * 300 + b"\n"
        b"8,\n"
        b'9,"never closed\n'
        b"10,Last.\n"
        b"11,The end"
    )
    texts, batch = read_all(path, max_record_bytes=200)
    assert texts == ["First.", 'a 5" pipe', "Last.", "The end"]
    assert batch.rejects == {"malformed_csv": 4, "undecodable": 1, "too_large": 1, "empty": 1}
    (many,) = [e for e in batch.examples if e.where == "line 3"]
    assert many.detail == "3 fields, the header has 2"
    assert many.snippet == "2 too many"


def test_an_unclosed_quote_in_a_truncated_file_loses_one_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    rows = [f"{i},row {i * 7919 % 10007}\n" for i in range(20_000)]
    rows[10] = '10,"opened\n'
    path.write_bytes(gzip.compress(("id,text\n" + "".join(rows)).encode()))
    path.write_bytes(path.read_bytes()[:-5000])
    texts, batch = read_all(path)
    assert batch.rejects == {"malformed_csv": 1, "truncated": 1}
    assert len(texts) > 10_000
    assert texts[9:12] == [f"row {i * 7919 % 10007}" for i in (9, 11, 12)]


def test_a_missing_column_and_a_bad_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,body\n1,x\n2,y\n")
    texts, batch = read_all(path)
    assert (texts, batch.rejects) == ([], {"missing_field": 2})
    assert "columns: id, body" in batch.examples[0].detail
    assert read_all(path, text_field="body", source_field="id")[0] == ["x", "y"]
    path.write_text('"id","te\n1,x\n2,y\n')
    assert read_all(path)[1].rejects == {"malformed_csv": 1, "unreadable": 1}
    path.write_text("")
    assert read_all(path)[1].rejects == {}
    path.write_text("text\n")
    assert read_all(path)[1].rejects == {}


def test_tsv_with_and_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    # GLUE's files are written without quoting; those of spreadsheets and pandas with.
    path.write_text(
        "index\ttext\n"
        '1\t"It was," he said\n'
        '2\t"quoted ""as"" a whole"\n'
        '3\t"lone quote\n'
        '4\t"two lines\n'
        'of one field"\n'
        '5\tlone "\n'
        '6\t"with\ta tab"\n'
        "7\ttoo\tmany\n"
        "\n"
        '8\t"open to the end\n'
    )
    texts, batch = read_all(path)
    assert texts == [
        '"It was," he said',
        'quoted "as" a whole',
        '"lone quote',
        "two lines\nof one field",
        'lone "',
        "with\ta tab",
        '"open to the end',
    ]
    assert batch.rejects == {"malformed_csv": 1}


def test_a_long_quoted_text_with_tabs_in_it(tmp_path: Path) -> None:
    """The quotes are meant where most lines in them are no rows; else each line is one."""
    path = tmp_path / "a.tsv"
    code = "A program:\n\n\tfor x in y:\n\t\tz\n\nends here."
    path.write_text(written([["id", "text"], ["1", code], ["2", "next"]], "\t"))
    assert read_all(path)[0] == [code, "next"]
    path.write_text('id\ttext\n1\t"Open\n2\tsecond\n3\tthird\nbroken\n4\tclosed"\n5\tlast\n')
    texts, batch = read_all(path)
    assert texts == ['"Open', "second", "third", 'closed"', "last"]
    assert batch.rejects == {"malformed_csv": 1}


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (found,) = csv_records(str(tmp_path / "gone.csv"), "", ReadOptions())
    assert isinstance(found, Reject)
    assert found.reason == "unreadable"
