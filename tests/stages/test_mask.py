"""Parts of stage mask that need no Ray."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.store import Store
from stages.mask import _label_counts
from stages.scratch import write_scratch
from stages.tables import write_table

LABELS = [[7, 3, 7], [], [65_000], [3]]


@pytest.mark.parametrize("scratch", ["whole", "torn", "gone"])
def test_labels_are_counted_whatever_a_power_cut_left(tmp_path: Path, scratch: str) -> None:
    output = Store(str(tmp_path)).begin("mask/16", "0" * 64, "a")
    names = ["train-c0m0-00000.parquet", "train-c0m0-00001.parquet"]
    labels = pa.array(LABELS, pa.list_(pa.uint16()))
    for name in names:
        write_table(output, name, [pa.table({"mlm_labels": labels})], row_group_rows=2)
        counts = pa.table({"id": pa.array([3, 7, 65_000], pa.uint32()), "count": [2, 2, 1]})
        write_scratch(output, f"labels/{name}", counts, durable=False)
    path = Path(f"{output.work}/labels/{names[1]}")
    if scratch == "torn":
        path.write_bytes(path.read_bytes()[:100])
    elif scratch == "gone":
        path.unlink()
    found = _label_counts(output, names).to_pydict()
    assert found == {"id": [3, 7, 65_000], "count": [4, 4, 2]}
