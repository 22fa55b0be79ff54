"""The same documents give the same shards, whatever files they stand in."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.text.find_files import list_files
from stages.text.readers import read
from stages.text.records import ReadOptions
from stages.text.sentences import sentence_ends
from stages.text.sharding import document_rows
from stages.text.splitting import splits

WORDS = (
    *("A", "fox", "one", "day", "spied", "a", "beautiful", "bunch", "of", "ripe", "grapes."),
    *("Über", "„Trauben“!", "狐狸說：酸。", "\n"),
)
_generator = random.Random(5)
TEXTS = [
    f"{i}. " + " ".join(_generator.choices(WORDS, k=_generator.randrange(5, 200)))
    for i in range(60)
]


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts).encode()


def a_file_a_document(folder: Path) -> None:
    for i, text in enumerate(reversed(TEXTS)):
        path = folder / f"{i % 7}" / f"{i}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())


def one_file_of_lines(folder: Path) -> None:
    (folder / "all.jsonl").write_bytes(lines(TEXTS))


def several_compressions(folder: Path) -> None:
    (folder / "z.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS[:20])))
    (folder / "a.jsonl.xz").write_bytes(lzma.compress(lines(TEXTS[20:25])))
    with pa.output_stream(str(folder / "m.jsonl.zst"), compression="zstd") as stream:
        stream.write(lines(TEXTS[25:]))


def tables(folder: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS[30:]}), folder / "a.parquet", row_group_size=7)
    with pa.ipc.new_file(str(folder / "b.arrow"), pa.schema({"text": pa.string()})) as file:
        file.write_table(pa.table({"text": TEXTS[:15]}))
    with (folder / "c.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([["id", "text"], *enumerate(TEXTS[15:30])])


def in_another_encoding(folder: Path) -> None:
    (folder / "all.jsonl").write_bytes(lines(TEXTS).decode().encode("utf-16"))


def rows(folder: Path, target: int | None) -> pa.Table:
    found = []
    for split in splits(list_files([str(folder)]), target):
        for batch in read(split, ReadOptions(batch_bytes=3000)):
            assert not batch.rejects
            ends = sentence_ends(batch.documents["text"], "icu")
            found.append(
                document_rows(
                    batch.documents, ends, seed=3, validation_share=0.2, max_document_bytes=400
                )
            )
    table = pa.concat_tables(found).sort_by([("key", "ascending"), ("part", "ascending")])
    return table.drop_columns(["source", "id"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("corpus")
    one_file_of_lines(folder)
    return rows(folder, None)


@pytest.mark.parametrize("target", [None, 1000])
@pytest.mark.parametrize(
    "write",
    [a_file_a_document, one_file_of_lines, several_compressions, tables, in_another_encoding],
)
def test_the_same_documents_give_the_same_rows(
    tmp_path: Path, expected: pa.Table, write: Callable[[Path], None], target: int | None
) -> None:
    write(tmp_path)
    found = rows(tmp_path, target)
    assert found.num_rows > len(TEXTS)
    assert found.equals(expected)
