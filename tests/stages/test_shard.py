"""The whole stage in this process: same content whatever the way, and nothing lost."""

from __future__ import annotations

import bz2
import functools
import gzip
import itertools
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.stage import Interrupted, StageError
from pipeline.store import ArtifactWriter
from stages import near_duplicates, shard, shard_workers, shuffle
from stages.parallel import JobFailed
from stages.text import pieces
from stages.text.cleaning import clean
from stages.text.sharding import document_hash
from tests.conftest import SENTENCES, documents
from tests.stages.in_process import Jobs, digests, run_shard

TEXTS = [" ".join(doc) for doc in documents(160)]
CORPUS: dict[str, Any] = {"validation_share": 0.2, "shards": 4, "max_document_bytes": 1500}


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts), encoding="utf-8")
    return path


def rows_of(output: ArtifactWriter, side: str = "") -> list[dict[str, Any]]:
    names = [n for n in digests(output) if n.startswith(side) and n.endswith(".parquet")]
    return [row for n in names for row in pq.read_table(Path(output.data) / n).to_pylist()]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files, one document in ten twice."""
    folder = tmp_path_factory.mktemp("shard")
    for i in range(6):
        write_jsonl(folder / f"corpus/{i}.jsonl", TEXTS[i::6] + TEXTS[i : i + 3])
    return folder / "corpus"


@pytest.fixture(scope="module")
def calm(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What comes out of one run without hindrance."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        store = tmp_path_factory.mktemp("store")
        _, output = run_shard(monkeypatch, store, {"paths": [str(files)], **CORPUS})
        assert sum(n.startswith("train-") for n in digests(output)) == 4
        return digests(output)


def many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the corpus were large: many pieces, more than one group of them; in fewer ranges."""
    monkeypatch.setattr(shard_workers, "PIECE_BYTES", 15_000)
    monkeypatch.setattr(shuffle, "DIRECT_PIECES", 5)
    monkeypatch.setattr(shard, "KEPT_ROWS", 0)
    monkeypatch.setitem(pieces.BITS, "train", 3)  # type: ignore[arg-type]
    monkeypatch.setitem(pieces.BITS, "validation", 1)  # type: ignore[arg-type]
    for module in (pieces, shuffle):
        monkeypatch.setattr(module, "FINE_BITS", 2)


@pytest.mark.parametrize("batch_mb", [0.005, 1, 32])
def test_batches_and_workers_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
    files: Path,
    tmp_path: Path,
    calm: dict[str, str],
    batch_mb: float,
) -> None:
    jobs = Jobs(seed=int(batch_mb), fresh=batch_mb != 1)
    _, output = run_shard(
        monkeypatch, tmp_path, {"paths": [str(files)], **CORPUS}, jobs, batch_mb=batch_mb
    )
    assert digests(output) == calm


def test_names_groups_and_compression_of_files_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calm: dict[str, str]
) -> None:
    folder = tmp_path / "other"
    write_jsonl(folder / "z.jsonl", TEXTS[100:])
    packed = write_jsonl(folder / "y.jsonl", TEXTS[:60])
    (folder / "sub").mkdir()
    (folder / "sub/a.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    more = write_jsonl(folder / "x.jsonl", TEXTS[55:100])
    (folder / "x.jsonl.bz2").write_bytes(bz2.compress(more.read_bytes()))
    more.unlink()
    _, output = run_shard(monkeypatch, tmp_path / "store", {"paths": [str(folder)], **CORPUS})
    assert digests(output) == calm


def test_many_pieces_are_regrouped_to_the_same_shards(
    monkeypatch: pytest.MonkeyPatch, files: Path, tmp_path: Path, calm: dict[str, str]
) -> None:
    """Killed in every part of the work; scratch goes when it is spent."""
    many_pieces(monkeypatch)
    corpus = {"paths": [str(files)], **CORPUS}
    made: list[str] = []
    for kill_after in (1, 1, 2, 3, None):
        jobs = Jobs(seed=4, kill_after=kill_after)
        if kill_after is None:
            result, output = run_shard(monkeypatch, tmp_path, corpus, jobs, batch_mb=0.005)
        else:
            with pytest.raises(Interrupted):
                run_shard(monkeypatch, tmp_path, corpus, jobs, batch_mb=0.005)
        made += [next(iter(job)) for job in jobs.done]
    # Nothing was made twice: one split, four groups, all shards.
    assert made == ["number", *["group"] * 4, *["name"] * len(calm)]
    assert digests(output) == calm
    left = output.files.walk(output.work)
    assert not [n for n in left if n.startswith(("pieces/", "runs/"))]
    assert result.counts["in"] == sum(v for k, v in result.counts.items() if k != "in")
    assert result.counts["duplicate"] == result.counts["in"] - len(TEXTS) > 0


@pytest.mark.parametrize("torn", ["pieces", "read", "cuts"])
def test_what_a_power_cut_tore_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
    files: Path,
    tmp_path: Path,
    calm: dict[str, str],
    torn: str,
) -> None:
    corpus = {"paths": [str(files)], **CORPUS}
    with pytest.raises(Interrupted):
        run_shard(monkeypatch, tmp_path, corpus, Jobs(kill_after=2))
    hurt = [p for p in tmp_path.glob("**/data.making/work/**/*") if torn in str(p) and p.is_file()]
    assert hurt
    for path in hurt:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    jobs = Jobs()
    _, output = run_shard(monkeypatch, tmp_path, corpus, jobs)
    assert digests(output) == calm
    assert any("split" in job for job in jobs.done) == (torn != "cuts")


def test_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, files: Path, tmp_path: Path) -> None:
    short = write_jsonl(tmp_path / "more/short.jsonl", ["Too short.", "", "Also."])
    corpus = {"paths": [str(files), str(short)], **CORPUS}
    result, output = run_shard(monkeypatch, tmp_path / "store", corpus)
    counts = dict(result.counts)
    assert counts == {
        "in": len(TEXTS) + 18 + 3,
        "out": len(TEXTS),
        "duplicate": 18,
        "too_short": 2,
        "empty": 1,
    }
    quarantined = json.loads((Path(output.data) / "quarantine.json").read_text())
    found = [e for e in quarantined if e["reason"] == "too_short"]
    assert [e["snippet"] for e in found] == ["Too short.", "Also."]
    assert "corpus.min_characters" in found[0]["detail"] and found[0]["where"] == "line 1"
    # Each row's text is what its origin says, and the rows of a document are its text.
    rows = rows_of(output)
    assert len({row["document"] for row in rows}) == len(TEXTS)
    assert sum(len("".join(row["text"].split())) for row in rows) == sum(
        len("".join(text.split())) for text in TEXTS
    )
    # Row i of the provenance belongs to row i of the shard.
    for name in digests(output):
        if name.endswith(".parquet"):
            ours = pq.read_table(Path(output.data) / name, columns=["document", "part"])
            theirs = pq.read_table(Path(output.data) / "provenance" / name)
            assert ours.equals(theirs.select(["document", "part"]).cast(ours.schema))


@pytest.mark.parametrize("many", [False, True])
def test_samples_and_repeats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, many: bool) -> None:
    """Two sources share documents; what one keeps is kept, the larger repeat counts."""
    half = write_jsonl(tmp_path / "half.jsonl", TEXTS[:100])
    thrice = write_jsonl(tmp_path / "thrice.jsonl", TEXTS[80:])
    sources = [
        {"name": "half", "paths": [str(half)], "sample": 0.5},
        {"name": "thrice", "paths": [str(thrice)], "repeat": 3},
    ]
    if many:
        many_pieces(monkeypatch)
    result, output = run_shard(
        monkeypatch, tmp_path / "store", {"sources": sources, **CORPUS}, batch_mb=0.005
    )
    counts = dict(result.counts)
    assert counts["in"] == 180 == sum(v for k, v in counts.items() if k != "in")
    assert 30 < counts["not_sampled"] < 70
    times = Counter(row["document"] for row in rows_of(output) if row["part"] == 0)
    shard_of: dict[bytes, set[str]] = {}
    for name in digests(output):
        if name.endswith(".parquet"):
            for row in rows_of(output, name):
                shard_of.setdefault(row["document"], set()).add(name)
    held_out = {d for d, names in shard_of.items() if min(names).startswith("validation")}
    wanted = document_hash(clean(pa.array(TEXTS)).texts).to_pylist()
    assert set(wanted[80:]) <= times.keys()
    assert counts["out"] == len(times) == result.figures["documents/train"] + len(held_out)
    for i, document in enumerate(wanted):
        thrice_here = 1 if document in held_out else 3
        assert times[document] in ((thrice_here,) if i >= 80 else (0, 1))
    assert result.figures["copies/train"] == sum(times.values()) - len(times)
    assert result.figures["copies/validation"] == 0
    # Parts of one document lie anywhere; all copies of a part lie in one shard, and no two of
    # them stand side by side.
    for name in digests(output):
        if name.startswith("train"):
            rows = [(row["document"], row["part"]) for row in rows_of(output, name)]
            assert all(a != b for a, b in itertools.pairwise(rows))
    sizes = [sum(len(r["text"]) for r in rows_of(output, f"train-{i:05d}")) for i in range(4)]
    assert max(sizes) < 1.15 * min(sizes)


@pytest.mark.parametrize("many", [False, True])
def test_near_duplicates_stay_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, many: bool
) -> None:
    """Of each text and its copy with another end one stays; all else is as without."""
    distinct = [" ".join(random.Random(i).sample(SENTENCES, 12)) for i in range(30)]
    alike = [f"{text} The end." for text in distinct[::2]]
    path = write_jsonl(tmp_path / "a.jsonl", distinct + alike + distinct[:3])
    corpus = {"paths": [str(path)], **CORPUS, "shards": 2, "near_duplicates": {"enabled": True}}
    monkeypatch.setattr(near_duplicates, "BAND_BITS", 4)
    if many:
        many_pieces(monkeypatch)
        monkeypatch.setattr(shuffle, "DIRECT_PIECES", 2)
        with pytest.raises(Interrupted):
            run_shard(monkeypatch, tmp_path / "store", corpus, Jobs(kill_after=2), batch_mb=0.002)
    result, output = run_shard(monkeypatch, tmp_path / "store", corpus, batch_mb=0.002)
    assert result.counts == {
        "in": len(distinct) + len(alike) + 3,
        "out": len(distinct),
        "duplicate": 3,
        "near_duplicate": len(alike),
    }
    assert result.figures["largest_shard_over_mean/train"] < 1.5
    hashes = document_hash(clean(pa.array(distinct + alike)).texts).to_pylist()
    kept = {row["document"] for row in rows_of(output)}
    for i in range(len(distinct)):
        same = [hashes[i], *([hashes[len(distinct) + i // 2]] if i % 2 == 0 else [])]
        assert kept & set(same) == {min(same)}
    quarantined = json.loads((Path(output.data) / "quarantine.json").read_text())
    assert {e["reason"] for e in quarantined} == {"near_duplicate"}


def test_shards_are_equal_and_the_report_says_how_much(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Documents of at most 1 % of a shard, of unequal sizes."""
    generator = np.random.default_rng(3)
    words = " ".join(TEXTS).split()
    texts = [
        " ".join(words[at : at + length]) + f" {i}."
        for i, (at, length) in enumerate(
            zip(
                generator.integers(0, len(words) - 400, 3000),
                np.minimum(generator.lognormal(3.5, 1, 3000), 120).astype(int) + 6,
                strict=True,
            )
        )
    ]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    corpus = {"paths": [str(path)], "shard_bytes": 100_000, "min_characters": 1}
    result, output = run_shard(monkeypatch, tmp_path / "store", corpus)
    sizes = [
        sum(len(row["text"].encode()) for row in rows_of(output, name))
        for name in digests(output)
        if name.startswith("train-")
    ]
    assert len(sizes) > 5
    assert max(sizes) <= 1.05 * np.mean(sizes) and min(sizes) >= 0.95 * np.mean(sizes)
    assert result.figures["largest_shard_over_mean/train"] == pytest.approx(
        max(sizes) / np.mean(sizes)
    )
    assert result.figures["smallest_shard_over_mean/train"] == pytest.approx(
        min(sizes) / np.mean(sizes)
    )


def test_shards_too_large_for_a_worker_are_refused(
    monkeypatch: pytest.MonkeyPatch, files: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(shard, "MAX_SHARD_BYTES", 20_000)
    with pytest.raises(StageError, match=r"set corpus.shards to \d+ or more"):
        run_shard(monkeypatch, tmp_path, {"paths": [str(files)], **CORPUS})


def test_what_a_disk_says_becomes_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that cannot be written to stands in for a full disk."""
    write_jsonl(tmp_path / "corpus/a.jsonl", TEXTS[:80])
    (tmp_path / "corpus/b.txt").write_text(TEXTS[80], encoding="utf-8")
    corpus = {"paths": [str(tmp_path / "corpus")], **CORPUS}
    with pytest.raises(Interrupted):
        run_shard(monkeypatch, tmp_path, corpus, Jobs(kill_after=1))
    folder = next(tmp_path.rglob("pieces"))
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(JobFailed, match=r"^reading [ab]\.\w+ .*(exists|directory)"):
        run_shard(monkeypatch, tmp_path, corpus)


def test_a_file_that_vanishes_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calm: dict[str, str]
) -> None:
    """One line, nothing half done; when it is back, as if nothing had been."""
    first = write_jsonl(tmp_path / "corpus/a.jsonl", TEXTS[:80])
    write_jsonl(tmp_path / "corpus/b.jsonl", TEXTS[80:])
    corpus = {"paths": [str(tmp_path / "corpus")], **CORPUS}
    away = tmp_path / "away.jsonl"
    with pytest.raises(StageError, match="changed while it was read"):
        run_shard(monkeypatch, tmp_path, corpus, Jobs(meanwhile=lambda: first.rename(away)))
    away.rename(first)
    _, output = run_shard(monkeypatch, tmp_path, corpus)
    assert digests(output) == calm


def test_a_file_that_can_be_opened_again_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calm: dict[str, str]
) -> None:
    """Its size and time are what they were, so the next run goes on with this one's work."""
    first = write_jsonl(tmp_path / "corpus/a.jsonl", TEXTS[:80])
    write_jsonl(tmp_path / "corpus/b.jsonl", TEXTS[80:])
    corpus = {"paths": [str(tmp_path / "corpus")], **CORPUS}
    away = tmp_path / "away.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(shard, "corpus_listing", functools.cache(shard.corpus_listing))
        with pytest.raises(StageError, match=r"corpus\.max_unreadable_share"):
            run_shard(patch, tmp_path, corpus, Jobs(meanwhile=lambda: first.rename(away)))
    away.rename(first)
    _, output = run_shard(monkeypatch, tmp_path, corpus)
    assert digests(output) == calm
