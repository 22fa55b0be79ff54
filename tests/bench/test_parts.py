from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import parts
from bench.documents import DOCUMENT_BYTES, load, read_lines, write_lines
from bench.peers import Missing, find
from bench.peers.absent import stand_ins
from bench.processes import call
from bench.report import lines
from bench.rounds import alternate
from bench.serial import Chain
from bench.settings import Settings
from bench.stages import _two_points
from pipeline.cli import main
from pipeline.stage import StageError


@pytest.mark.slow
def test_chain_kernels_and_vocabulary(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"base": parts.prepare(asdict(settings))}
    assert figures["base"]["documents"] == 240
    for part in ("chain", "kernels", "vocabulary"):
        figures[part] = json.loads(json.dumps(getattr(parts, part)(asdict(settings))))
        assert len(list(lines(part, figures))) > 2
    assert set(figures["chain"]["ms_per_mb"]) >= {"shard", "pairs/128", "mask/128"}
    assert list(figures["chain"]["mb_per_second_core"]) == ["clozeline"]
    names = set(figures["kernels"]["kernels"])
    assert {"clean", "sentences, icu", "tokenise, tokenizers, cold", "masks, whole word"} <= names
    assert figures["vocabulary"]["distinct_words"] == 1500


@pytest.mark.slow
def test_in_process_and_through_ray_make_the_same_bytes(settings: Settings, tmp_path: Path) -> None:
    texts = load(settings)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    size = write_lines(corpus / "a.jsonl", texts)
    job = {
        "corpus": str(corpus),
        "store": str(tmp_path / "store"),
        "vocab_file": settings.vocab,
        "bytes": size,
        "documents": len(texts),
        "cpus": 2,
        "memory": True,
    }
    run = call("bench.through_ray:measure", job, tmp_path)
    share = max(0.02, 10 / len(texts), 100_000 / size)
    words = f"corpus.validation_share={share}"
    here = Chain(corpus, tmp_path / "own", settings.vocab_file, words)()
    assert run["digests"] == {name: here.digests[name] for name in run["digests"]}
    assert set(run["digests"]) == {"shard", "vocab", "pairs/128", "mask/128"}
    assert set(run["seconds"]) == {"shard", "pairs/128", "mask/128"} and run["rows"] > 0
    for stage in run["seconds"]:
        assert 50e6 < run["peaks"][stage]["worker"] < 3e9
    memory = {"megabytes": [size / 1e6], "worst_worker_bytes": [1], "differ": 0.0, "runs": [run]}
    assert any(line.startswith("worker, mask/128") for line in lines("memory", {"memory": memory}))
    two = _two_points({**run, "megabytes": size / 4e6}, run)
    stages = {"megabytes": 1.0, "documents": 1, "new_words_per_mb": 2300.0, "runs": [two]}
    chain = {"mb_per_second_core": {"NVIDIA LDDL": 0.5}}
    table = list(lines("stages", {"stages": stages, "chain": chain}))
    assert any("fixed seconds" in line for line in table)


def test_two_points_give_a_fixed_cost_and_a_rate() -> None:
    def run(megabytes: float) -> dict[str, object]:
        # 3, 2 and 1 seconds fixed; 0.1, 0.2 and 0.1 seconds a MB.
        seconds = {"shard": 3 + 0.1 * megabytes, "pairs/128": 2 + 0.2 * megabytes}
        seconds["mask/128"] = 1 + 0.1 * megabytes
        return {"megabytes": megabytes, "seconds": seconds, "cpus": 2}

    two = _two_points(run(2), run(100))
    assert two["fixed_seconds"] == pytest.approx({"shard": 3, "pairs/128": 2, "mask/128": 1})
    assert two["work_seconds"] == pytest.approx(40)
    assert two["mb_per_second_core"] == pytest.approx(100 / 46 / 2)
    assert two["mb_per_second_core_without_fixed_cost"] == pytest.approx(100 / 40 / 2)


def test_peers_make_rows_or_say_how_to_install_them(vocab_file: Path, texts: list[str]) -> None:
    peers, absent = find(vocab_file, texts)
    assert len(peers) + len(absent) == 2
    for line in absent:
        assert "pip install" in line
    if not peers:
        pytest.skip("; ".join(absent))
    for peer in peers:
        assert peer(texts[:40]) > 40


def test_stand_ins_go_when_the_block_ends() -> None:
    import sys

    with stand_ins({"no_such_module": {}, "no_such_module.part": {"seven": 7}}):
        import no_such_module.part as part  # type: ignore[import-not-found]

        assert part.seven == 7
    assert not any(name.startswith("no_such_module") for name in sys.modules)
    assert issubclass(Missing, Exception)


def test_sides_take_turns() -> None:
    called: list[str] = []
    sides = {name: (lambda name=name: called.append(name)) for name in "ab"}
    times = alternate(sides, 3)
    assert "".join(called) == "abbaab"
    assert all(len(t.clock) == len(t.cpu) == 3 for t in times.values())


def test_books_are_cut_and_duplicates_left_out(settings: Settings, tmp_path: Path) -> None:
    book = "\n".join(f"line {i} of a long book" for i in range(20_000))
    path = tmp_path / "more.jsonl"
    write_lines(path, [book, "short text", book])
    texts = load(replace(settings, corpus=(str(path),)))
    assert "".join(text for text in texts if text != "short text") == book
    assert max(map(len, texts)) <= DOCUMENT_BYTES
    assert read_lines(path)[1] == "short text"


@pytest.mark.slow
def test_without_a_corpus_pythons_documentation_is_read(tmp_path: Path) -> None:
    settings = Settings(work=str(tmp_path), base_megabytes=0.2, peers=False)
    made = parts.prepare(asdict(settings))
    assert 0.05 < made["megabytes"] <= 0.2 and made["entries"] > 1000
    assert settings.vocab_file.read_text("utf-8").startswith("[PAD]\n")


def test_a_failure_says_what_happened(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="KeyError: 'store'"):
        call("bench.through_ray:measure", {"cpus": 1, "corpus": "nowhere"}, tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "bench takes prep"),
        (["prep", "cooking"], "no part 'cooking'"),
        (["prep", "--corpus", "/no/such/place"], "does not exist"),
        (["prep", "--cpus", "two"], "--cpus takes numbers"),
        (["prep", "--rounds", "0"], "above 0"),
    ],
)
def test_wrong_usage_is_exit_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_and_writes_figures(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    words = ["bench", "prep", "vocabulary", "--corpus", settings.corpus[0], "--json", str(out)]
    words += ["--rounds", "1", "--distinct-words", "800", "--work", str(tmp_path / "work")]
    assert main([*words, "--vocab", settings.vocab]) == 0
    figures = json.loads(out.read_text("utf-8"))
    assert figures["vocabulary"]["distinct_words"] == 800 and figures["machine"]["cpus"] >= 1
    printed = capsys.readouterr().out
    assert "800 distinct words" in printed and "Measured on" in printed
    assert not list((tmp_path / "work").iterdir())
