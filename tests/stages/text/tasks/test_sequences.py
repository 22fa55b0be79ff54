from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.tasks.glue import LAYOUTS, glue_layout
from stages.text.tasks.rows import SequenceRow, TaskFileError, require_usable
from stages.text.tasks.sequences import SequenceColumns, read_sequences
from stages.text.tasks.tables import TableOptions

PAIR = SequenceColumns("first", "second", "label", "id")
NAMES = ["id", "first", "second", "label"]

CHARACTERS = st.one_of(
    st.sampled_from('ab\t\n\r",; \u2028\x85é😀'), st.characters(exclude_categories=["Cs"])
)
TEXTS = st.text(CHARACTERS, min_size=1, max_size=12)
FULL = TEXTS.filter(lambda text: bool(text.strip()))
LABELS = st.sampled_from(["yes", "no", "0"])
ROWS = st.lists(st.tuples(FULL, FULL, LABELS), min_size=1, max_size=6).map(
    lambda rows: [(f"r{i}", *row) for i, row in enumerate(rows)]
)


def write(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    """As common tools write it."""
    if path.suffix in (".csv", ".tsv"):
        sink = io.StringIO(newline="")
        mark = "," if path.suffix == ".csv" else "\t"
        csv.writer(sink, delimiter=mark, quoting=csv.QUOTE_ALL).writerows([NAMES, *rows])
        path.write_bytes(sink.getvalue().encode())
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in rows]
        path.write_text("".join(line + "\n" for line in lines))
    else:
        table = pa.table(
            {name: list(v) for name, v in zip(NAMES, zip(*rows, strict=True), strict=True)}
        )
        pq.write_table(table, path) if path.suffix == ".parquet" else feather.write_feather(
            table, path
        )
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "arrow"])
@settings(max_examples=20, deadline=None)
@given(rows=ROWS)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, ending: str, rows: list[tuple[str, str, str, str]]
) -> None:
    path = write(tmp_path_factory.mktemp("s") / f"a.{ending}", rows)
    found = read_sequences([path], PAIR)
    assert found.rows == tuple(SequenceRow(*row) for row in rows)
    assert found.counts == {"in": len(rows), "rows": len(rows)}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.text('ab" ;,é\u2028\x85', min_size=1, max_size=6).filter(str.strip)] * 2),
        min_size=1,
        max_size=6,
    )
)
def test_without_quoting_a_line_is_a_row_as_it_stands(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("s") / "a.tsv"
    lines = ["question\tsentence\tlabel", *("\t".join((*row, "yes")) for row in rows)]
    path.write_bytes("\r\n".join(lines).encode())
    found = read_sequences([path], glue_layout("qnli"))
    assert [(row.text_a, row.text_b) for row in found.rows] == rows


def test_quoted_tsv_is_read_where_quoting_may_be(tmp_path: Path) -> None:
    rows = [("r0", 'He said "no"', "a\tb", "yes"), ("r1", "two\nlines", "so", "no")]
    found = read_sequences([write(tmp_path / "a.tsv", rows)], PAIR)
    assert found.rows == tuple(SequenceRow(*row) for row in rows)


def test_each_bad_row_is_counted_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    lines = [
        b"text\tlabel",
        b"fine\tyes",
        b" \tyes",
        b"no label\t",
        b"one field",
        b"one\ttoo\tmany",
        b"caf\xe9\tyes",
        b"misspelt\tYess",
        b"",
        b"fine too\tno",
    ]
    path.write_bytes(b"\n".join(lines))
    found = read_sequences([path], SequenceColumns(), ["yes", "no"])
    assert found.counts == {
        "in": 8,
        "rows": 2,
        "empty": 1,
        "missing_label": 1,
        "ragged_line": 2,
        "undecodable": 1,
        "unknown_label": 1,
    }
    assert [row.id for row in found.rows] == ["line 2", "line 10"]
    assert found.reasons["ragged_line"] == 2
    first, second = found.examples["ragged_line"]
    assert first == f"{path} line 5: 1 fields, the header has 2: one field"
    assert f"{path} line 6: 3 fields" in second
    assert "did you mean 'yes'?" in found.examples["unknown_label"][0]
    require_usable(found, "train", 0.75)
    with pytest.raises(TaskFileError, match=r"train: 6 of 8 rows .*\(75\.0%; 10\.0%") as e:
        require_usable(found, "train", 0.1)
    assert "ragged_line (2): " in str(e.value) and "line 5" in str(e.value)


def test_json_values_of_the_wrong_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    labels: list[Any] = ["a", 3, True, None, 1.0, ["a"], "", " b "]
    rows = [{"text": "t", "label": label} for label in labels]
    rows += [{"text": text, "label": "a"} for text in (None, 3, "\ud800", "")]
    rows += [{"label": "a"}]
    path.write_text("\n".join([*map(json.dumps, rows), "{", "[1]"]))
    found = read_sequences([path], SequenceColumns())
    assert [row.label for row in found.rows] == ["a", "3", "true", "b"]
    assert found.reasons == {
        "empty": 1,
        "malformed_json": 2,
        "missing_field": 2,
        "missing_label": 2,
        "undecodable": 1,
        "wrong_type": 3,
    }
    assert found.counts["in"] == len(rows) + 2


def test_values_of_regression(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good: list[Any] = [1, 2.5, "3.5", " -4e-1 ", "+.5"]
    bad: list[Any] = ["nan", "1_0", "٣", "3,5", float("inf"), 10**400]
    other: list[Any] = [True, [1]]
    rows = [{"text": "t", "label": label} for label in good + bad + other]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_sequences([path], SequenceColumns(regression=True))
    assert [row.label for row in found.rows] == [1.0, 2.5, 3.5, -0.4, 0.5]
    assert all(isinstance(row.label, float) for row in found.rows)
    assert found.reasons == {"not_a_number": len(bad), "wrong_type": 2}


def test_parquet_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array(["a", None, "b", ""]).dictionary_encode()
    nested = pa.array([{"label": i} for i in (0, 1, None, 1)])
    pq.write_table(pa.table({"text": texts, "gold": nested}), path, row_group_size=3)
    found = read_sequences([path], SequenceColumns(label="gold.label"))
    assert found.rows == (SequenceRow("row 0", "a", None, "0"),)
    assert found.reasons == {"empty": 1, "missing_field": 1, "missing_label": 1}
    broken = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    pq.write_table(pa.table({"text": broken, "label": ["x", "y", "z"]}), path)
    found = read_sequences([path], SequenceColumns())
    assert [row.text_a for row in found.rows] == ["a", "c"]
    assert found.reasons == {"undecodable": 1}


def test_encodings_and_compression(tmp_path: Path) -> None:
    text = "text\tlabel\nWeiße Füchse mögen süße Trauben, heißt es überall.\tja\n"
    for name, data, encoding in (
        ("a.tsv", text.encode("utf-16"), "utf-8"),
        ("b.tsv", ("\ufeff" + text).encode(), "utf-8"),
        ("c.tsv", text.encode("cp1252"), "cp1252"),
        ("d.tsv", text.encode("cp1252"), "detect"),
        ("e.tsv.gz", gzip.compress(text.encode()), "utf-8"),
    ):
        (tmp_path / name).write_bytes(data)
        columns = SequenceColumns(table=TableOptions(encoding=encoding))
        (row,) = read_sequences([tmp_path / name], columns).rows
        assert row.text_a.startswith("Weiße Füchse mögen süße"), name


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_a_column_that_is_not_there(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.{ending}", [("r0", "one", "two", "yes")])
    for columns, wanted in (
        (SequenceColumns("first", label="Lable"), "no column 'Lable': did you mean 'label'?"),
        (SequenceColumns("first", "third"), "no column 'third'. Columns: 'id', 'first', 'second'"),
    ):
        with pytest.raises(TaskFileError) as error:
            read_sequences([path], columns)
        assert str(path) in str(error.value) and wanted in str(error.value)


WRONG: dict[str, tuple[bytes, str]] = {
    "empty.tsv": (b"", "is empty"),
    "empty.csv": (b"", "is empty"),
    "twice.tsv": (b"text\ttext\tlabel\na\tb\tc\n", "2 columns named 'text'"),
    "array.jsonl": (b'[{"text": "a"},\n{"text": "b"}]', "not JSON lines"),
    "tsv.jsonl": (b"text\tlabel\na\tb\n", "not JSON lines"),
    "none.parquet": (b"text\tlabel\n", "cannot be read"),
    "none.arrow": (b"text\tlabel\n", "cannot be read"),
    "cut.tsv.gz": (gzip.compress(b"text\tlabel\na\tb\n" * 99)[:-20], "ends too early"),
    "a.docx": (b"text", "set the format to one of tsv, csv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_the_whole_file_is_one_error(tmp_path: Path, name: str) -> None:
    content, message = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskFileError, match=message) as error:
        read_sequences([tmp_path / name], SequenceColumns())
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("name", ["absent.tsv", "absent.jsonl", "absent.parquet", "folder.tsv"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(TaskFileError, match=f"{name} cannot be read: "):
        read_sequences([tmp_path / name], SequenceColumns())


def test_sets_without_a_row_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    for content, message in (
        ("text\tlabel\n", "dev holds no rows"),
        ("text\tlabel\na\t\n", "dev: its only row cannot be used"),
        ("text\tlabel\na\t\nb\t\n", "dev: none of its 2 rows can be used"),
    ):
        path.write_text(content)
        with pytest.raises(TaskFileError, match=message):
            require_usable(read_sequences([path], SequenceColumns()), "dev", 1.0)
    with pytest.raises(TaskFileError, match="no file is given"):
        read_sequences([], SequenceColumns())


def test_files_of_one_name_keep_their_places_apart(tmp_path: Path) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "x.tsv")
        paths[-1].write_text("text\tlabel\none\tyes\n")
    found = read_sequences(paths, SequenceColumns())
    assert [row.id for row in found.rows] == ["x.tsv#1 line 2", "x.tsv#2 line 2"]


def test_glue_layouts(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('gj04\t1\t\tThe "fox" ran.\ngj04\t0\t*\tFox the ran.\n')
    found = read_sequences([path], glue_layout("CoLA"))
    assert [(r.text_a, r.label) for r in found.rows] == [
        ('The "fox" ran.', "1"),
        ("Fox the ran.", "0"),
    ]
    path.write_text("index\tsentence\n0\tFox ran.\n")
    assert read_sequences([path], glue_layout("cola", labels=False)).rows[0].label is None
    path.write_text("index\tsentence1\tsentence2\tgold_label\n0\ta\tb\t-\n1\ta\tb\tneutral\n")
    found = read_sequences([path], glue_layout("mnli"))
    assert found.counts == {"in": 2, "rows": 1, "missing_label": 1}
    path.write_text("index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.500\n")
    assert read_sequences([path], glue_layout("STS-B")).rows[0].label == 2.5
    with pytest.raises(TaskFileError, match=r"'sst3': did you mean 'sst2'\? There are cola, "):
        glue_layout("sst3")
    assert set(LAYOUTS) == {"cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"}
