from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reading import read_all

TEXTS = ["Sour grapes.", "Trauben, „zu sauer“", "狐狸😀", "A\0NUL,\u2028a separator and\r\nCRLF."]


def write(path: Path, table: pa.Table, batch_rows: int = 3) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=batch_rows)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, batch_rows)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, batch_rows)


@pytest.fixture(params=["a.parquet", "a.arrow", "a.ipc"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_rows_of_each_kind_of_file(path: Path) -> None:
    write(path, pa.table({"text": TEXTS, "id": [4, 3, 2, 1], "url": ["a", "b", None, ""]}))
    texts, batch = read_all(path, source_field="url")
    assert texts == TEXTS
    assert batch.documents["id"].to_pylist() == ["4", "3", "2", "1"]
    assert batch.documents["source"].to_pylist() == ["a", "b", path.name, path.name]
    # A batch of the file is cut where it holds too much.
    assert read_all(path, batch_bytes=10)[0] == TEXTS


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_once_more(path: Path, ending: str) -> None:
    write(path, pa.table({"text": TEXTS}))
    packed = path.with_name(path.name + ending)
    with pa.output_stream(str(packed), compression="gzip" if ending == ".gz" else "zstd") as stream:
        stream.write(path.read_bytes())
    assert read_all(packed)[0] == TEXTS
    assert read_all(packed, max_record_bytes=10)[1].rejects == {"too_large": 1}


def test_nested_fields_and_names_with_dots(path: Path) -> None:
    article = pa.array(
        [{"body": {"en": "x"}, "id": "one"}, {"body": None, "id": "two"}, None],
        pa.struct([("body", pa.struct([("en", pa.string())])), ("id", pa.string())]),
    )
    write(path, pa.table({"article": article, "other": [1, 2, 3]}))
    texts, batch = read_all(path, text_field="article.body.en", id_field="article.id")
    assert texts == ["x"]
    assert batch.documents["id"].to_pylist() == ["one"]
    assert batch.rejects == {"missing_field": 2}
    assert read_all(path, text_field="article.body.de")[1].rejects == {"missing_field": 3}
    assert read_all(path, text_field="article.body")[1].rejects == {"not_text": 3}

    write(path, pa.table({"article": article, "article.body.en": ["a", "b", "c"]}))
    assert read_all(path, text_field="article.body.en")[0] == ["a", "b", "c"]


def test_columns_of_other_kinds(path: Path) -> None:
    write(path, pa.table({"text": pa.array([b"good", b"\xff\xfe", None, b""])}))
    assert read_all(path)[1].rejects == {"undecodable": 1, "missing_field": 1, "empty": 1}
    write(path, pa.table({"text": pa.array(["x", "y", "x"]).dictionary_encode()}))
    assert read_all(path)[0] == ["x", "y", "x"]
    write(path, pa.table({"text": ["x", "y"], "id": [[1], [2]]}))
    assert read_all(path)[1].documents["id"].to_pylist() == ["row 0", "row 1"]
    write(path, pa.table({"body": ["x", "y"]}))
    batch = read_all(path)[1]
    assert batch.rejects == {"missing_field": 2}
    assert "columns: body" in batch.examples[0].detail
    write(path, pa.table({"text": pa.array([], pa.string())}))
    assert read_all(path)[1].records == 0


@pytest.mark.parametrize("name", ["a.arrow", "a.ipc"])
def test_of_a_damaged_arrow_file_the_first_batches_are_kept(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(path, pa.table({"text": [f"{i} grapes" * 20 for i in range(3000)]}), batch_rows=100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    texts, batch = read_all(path)
    assert batch.rejects == {"damaged": 1}
    assert len(texts) in range(1000, 2000, 100)
    assert texts[-1].startswith(f"{len(texts) - 1} grapes")
    path.write_bytes(b"no Arrow at all")
    assert read_all(path)[1].rejects == {"unreadable": 1}
    path.write_bytes(b"")
    assert read_all(path)[1].rejects == {"unreadable": 1}
