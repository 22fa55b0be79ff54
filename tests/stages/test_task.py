"""Stage task: what it writes, what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.stage import StageError
from pipeline.store import Artifact
from stages import task as stage
from stages.vocabulary_files import load_tokenizer
from tests.oracle.real_text import google_vocab, tasks
from tests.stages.task_runs import (
    SMALL,
    begin,
    context_of,
    model_folder,
    node_of,
    run_task,
    task_config,
    vocab_artifact,
)

CSV = "text,label\nA good one,yes\nA bad one,no\nthe third,yes\n"
CONLL = "Ann B-PER\nLee I-PER\nran O\n\nin O\nRome B-LOC\n\n"
SQUAD: dict[str, Any] = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Ann ran home. " * 12 + "Bob sat.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who sat?",
                            "answers": [{"text": "Bob", "answer_start": 168}],
                        },
                        {"id": "2", "question": "Who?", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ]
}


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def classification(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "objective": "classification",
        "train": [str(folder / "a.csv")],
        "dev": [str(folder / "b.csv")],
        **more,
    }


def described(artifact: Artifact) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(artifact.read_bytes("task.json"))
    return found


def table(artifact: Artifact, name: str) -> Any:
    with artifact.open(name) as file:
        return pq.read_table(file)


def pieces(artifact: Artifact, name: str) -> list[str]:
    vocab = artifact.read_bytes("vocab.txt").decode().split("\n")
    rows = table(artifact, name)["input_ids"].to_pylist()
    return [" ".join(vocab[i] for i in row) for row in rows]


def test_classification(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV, b__csv=CSV)
    vocab = vocab_artifact(tmp_path / "store")
    result, made, _ = run_task(tmp_path / "store", task_config("x", classification(data)), vocab)
    train, dev = table(made, "train.parquet"), table(made, "dev.parquet")
    kinds = {name: str(train.schema.field(name).type) for name in train.column_names}
    assert list(kinds) == ["row", "input_ids", "a_length", "label"]
    assert kinds["input_ids"].startswith("list<") and "int32" in kinds["input_ids"]
    assert (kinds["row"], kinds["a_length"], kinds["label"]) == ("int64", "int32", "int64")
    assert train["label"].to_pylist() == [1, 0, 1] == dev["label"].to_pylist()
    assert pieces(made, "train.parquet")[1] == "[CLS] a b ##a ##d o ##n ##e [SEP]"
    rows = table(made, "dev-rows.parquet").to_pylist()
    assert rows[1] == {
        "id": "line 3", "text_a": "A bad one", "text_b": None, "label": "no", "value": None,
    }  # fmt: skip
    said = described(made)
    assert said["classes"] == ["no", "yes"] and said["positive"] == "yes"
    assert said["class_counts"]["train"] == {"no": 1, "yes": 2}
    assert (said["kind"], said["metric"], said["higher_is_better"]) == (
        "sequence",
        "accuracy",
        True,
    )
    assert said["train"]["features"] == said["train"]["in"] == said["train"]["rows"] == 3
    assert result.counts == {"in": 6, "out": 6}
    assert "label: no" in result.samples[1]
    # The artifact holds the vocabulary of the run, byte for byte, and can be read as one.
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert made.read_bytes(name) == vocab.read_bytes(name)
    assert load_tokenizer(made).vocab == list(SMALL)


def test_pairs_and_what_is_cut(tmp_path: Path) -> None:
    data = written(
        tmp_path / "data",
        a__jsonl='{"q": "abcdefgh", "p": "ab", "y": 1}\n{"q": "a", "p": "b", "y": 0}\n',
    )
    file = [str(data / "a.jsonl")]
    task = {
        "objective": "classification", "train": file, "dev": file, "text": "q", "text_b": "p",
        "label": "y", "max_length": 8,
    }  # fmt: skip
    result, made, _ = run_task(
        tmp_path / "store", task_config("x", task), vocab_artifact(tmp_path / "store")
    )
    assert pieces(made, "train.parquet") == [
        "[CLS] a ##b ##c [SEP] a ##b [SEP]", "[CLS] a [SEP] b [SEP]",
    ]  # fmt: skip
    assert table(made, "train.parquet")["a_length"].to_pylist() == [3, 1]
    assert result.figures["truncated/train"] == 1


def test_regression(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv="text,label\na,1.5\nb,0.25\n")
    task = classification(data, objective="regression", dev=[str(data / "a.csv")])
    _, made, _ = run_task(
        tmp_path / "store", task_config("x", task), vocab_artifact(tmp_path / "store")
    )
    label = table(made, "train.parquet")["label"]
    assert str(label.type) == "float" and label.to_pylist() == [1.5, 0.25]
    said = described(made)
    assert (said["classes"], said["metric"]) == ([], "pearson")
    assert table(made, "dev-rows.parquet")["value"].to_pylist() == [1.5, 0.25]


def test_tagging_with_windows(tmp_path: Path) -> None:
    long = "".join(f"w{i} O\n" for i in range(20))
    data = written(tmp_path / "data", a__conll=CONLL + long)
    file = [str(data / "a.conll")]
    task = {"objective": "tagging", "train": file, "dev": file, "max_length": 20, "overlap": 6}
    result, made, _ = run_task(
        tmp_path / "store", task_config("x", task), vocab_artifact(tmp_path / "store")
    )
    dev = table(made, "dev.parquet").to_pylist()
    assert Counter(row["row"] for row in dev) == {0: 1, 1: 1, 2: 4}
    assert dev[0]["labels"] == [-100, 1, -100, -100, 3, -100, -100, 4, -100, -100, -100]
    assert dev[0]["own"] == [label != -100 for label in dev[0]["labels"]]
    assert dev[0]["char_start"][:5] == [-1, 0, 0, 0, 1]
    # Each word is scored in one window.
    assert sum(sum(row["own"]) for row in dev) == 5 + 20
    assert "own" not in table(made, "train.parquet").column_names
    said = described(made)
    assert said["classes"] == ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
    assert (said["scheme"], said["kind"], said["metric"]) == ("BIO", "token", "f1")
    assert result.figures["long_rows/dev"] == 1
    assert "a ##n ##n".replace("a", "a/B-PER", 1) in result.samples[0]


def test_tags_that_mark_no_entities_are_judged_by_accuracy(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__conll="a DET\nb NOUN\n\nc VERB\n")
    file = [str(data / "a.conll")]
    _, made, notes = run_task(
        tmp_path / "store",
        task_config("x", {"objective": "tagging", "train": file, "dev": file}),
        vocab_artifact(tmp_path / "store"),
    )
    assert (described(made)["scheme"], described(made)["metric"]) == ("plain", "accuracy")
    assert any("accuracy" in note for note in notes)


def test_answers_with_windows(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__json=json.dumps(SQUAD))
    file = [str(data / "a.json")]
    task = {
        "objective": "answers", "train": file, "dev": file, "max_length": 60, "overlap": 10,
        "max_question_length": 10,
    }  # fmt: skip
    _, made, _ = run_task(
        tmp_path / "store", task_config("x", task), vocab_artifact(tmp_path / "store")
    )
    dev = table(made, "dev.parquet").to_pylist()
    vocab = made.read_bytes("vocab.txt").decode().split("\n")
    held = [row for row in dev if row["start"] > 0]
    assert held and {row["row"] for row in held} == {0}
    for row in held:
        answer = [vocab[i] for i in row["input_ids"][row["start"] : row["end"] + 1]]
        assert answer == ["b", "##o", "##b"]
        assert row["char_start"][row["start"]] == 168 and row["char_end"][row["end"]] == 171
    assert all((row["start"], row["end"]) == (0, 0) for row in dev if row not in held)
    rows = table(made, "dev-rows.parquet").to_pylist()
    assert rows[0]["answers"] == ["Bob"] and rows[1]["is_impossible"]
    assert described(made)["dev"]["rows_impossible"] == 1


def test_given_model_brings_its_vocabulary(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV, b__csv=CSV)
    folder = model_folder(tmp_path / "bert")
    config = task_config("x", classification(data), finetune={"init_from": str(folder)})
    assert node_of(config).inputs == {}
    _, made, _ = run_task(tmp_path / "store", config)
    assert made.read_bytes("vocab.txt") == (folder / "vocab.txt").read_bytes()
    assert json.loads(made.read_bytes("tokenizer_config.json"))["model_max_length"] == 128
    # The same features as with the run's own vocabulary of the same entries.
    _, own, _ = run_task(
        tmp_path / "other",
        task_config("x", classification(data)),
        vocab_artifact(tmp_path / "other"),
    )
    assert table(made, "train.parquet").equals(table(own, "train.parquet"))


def test_a_vocabulary_with_capitals_keeps_them(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV, b__csv=CSV)
    folder = model_folder(tmp_path / "bert", (*SMALL, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    config = task_config("x", classification(data), finetune={"init_from": str(folder)})
    _, made, _ = run_task(tmp_path / "store", config)
    assert pieces(made, "train.parquet")[1].startswith("[CLS] A b ##a ##d")


def test_same_bytes_whatever_tokenises(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV, b__csv=CSV)
    digests = set()
    for engine in ("auto", "dictionary", "tokenizers"):
        store = tmp_path / engine
        config = task_config("x", classification(data), speed={"tokenizer": engine})
        _, made, _ = run_task(store, config, vocab_artifact(store))
        digests.add(made.output_digest)
    # Moved, and under another name: the same set.
    moved = data.rename(tmp_path / "elsewhere")
    config = task_config("y", classification(moved))
    _, made, _ = run_task(tmp_path / "moved", config, vocab_artifact(tmp_path / "moved"))
    assert digests == {made.output_digest}


def test_a_killed_attempt_is_taken_up(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV, b__csv=CSV)
    config = task_config("x", classification(data))
    node = node_of(config)
    vocab = vocab_artifact(tmp_path / "store")
    stage.run(context_of(node, begin(tmp_path / "store", node), vocab))  # no manifest
    _, made, _ = run_task(tmp_path / "store", config, vocab, attempt="second")
    _, fresh, _ = run_task(tmp_path / "fresh", config, vocab)
    assert made.output_digest == fresh.output_digest and made.damage() == {}


GOLDEN = {
    "classification": "777d488734cd17580fb942ee668e2299839cc61e60fe93faf310a0e0a0e31c0a",
    "regression": "a4553fc4fd75dcc347f34a769c11b9322ea9bc7bbff69006d6ffb5a2d6ecd556",
    "tagging": "6bd98d7fa4100c495559313224330c837ab8e6ddef1454856cd8e1d55d3bd28b",
    "answers": "b65375b9dca2c08ba3ccd3a1abbabafbdd6120567dba54701a69bac6ad33f0a1",
}


@pytest.mark.parametrize("objective", GOLDEN)
def test_golden_digests(tmp_path: Path, objective: str) -> None:
    """Another digest: raise the stage's version in `stages/task_nodes.py`, and write it here."""
    values = CSV.replace("yes", "1").replace("no", "0.5")
    data = written(
        tmp_path / "data", c__csv=CSV, r__csv=values, t__conll=CONLL, a__json=json.dumps(SQUAD)
    )
    names = {"classification": "c.csv", "regression": "r.csv", "tagging": "t.conll"}
    file = [str(data / names.get(objective, "a.json"))]
    config = task_config("x", {"objective": objective, "train": file, "dev": file})
    _, made, _ = run_task(tmp_path / "store", config, vocab_artifact(tmp_path / "store"))
    assert (node_of(config).stage.version, made.output_digest) == (1, GOLDEN[objective])


def refused(tmp_path: Path, task: dict[str, Any], **groups: Any) -> str:
    """The message; and nothing is written."""
    node = node_of(task_config("x", task, **groups))
    output = begin(tmp_path / "store", node)
    with pytest.raises(StageError) as caught:
        stage.run(context_of(node, output, vocab_artifact(tmp_path / "store")))
    assert output.finished() == {}
    assert "tasks.x" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("train", "dev", "more", "words"),
    [
        (CSV, CSV, {"text": "txt"}, ["a.csv", "no column 'txt'", "'text'", "tasks.x.text="]),
        ("text,label\na,1\nb,1\n", CSV, {}, ["one label only, '1' (2 times)", "right column"]),
        (CSV, CSV.replace("no", "maybe"), {}, ["'maybe'", "1 times", "line 3", "'no', 'yes'"]),
        (CSV + "x\n", CSV, {}, ["train: 1 of 4 rows", "ragged_line", "line 5", "25.0%"]),
        (CSV, "text,label\n", {}, ["dev holds no rows"]),
        (CSV, CSV, {"labels": ["yes", "noo"]}, ["unknown_label", "'noo'"]),
        (CSV, CSV, {"positive": "maybe"}, ["positive=maybe", "'no' and 'yes'"]),
        ("text,label\na,x\nb,y\nc,z\n", CSV[:11] + "a,x\n", {"metric": "f1"}, ["f1/macro"]),
        (CSV, CSV, {"encoding": "utf-16"}, ["a.csv"]),
        (CSV, CSV, {"objective": "regression"}, ["train", "not_a_number", "none of its 3 rows"]),
        ("text,label\na,1\nb,1\n", CSV, {"objective": "regression"}, ["dev", "not_a_number"]),
    ],
)  # fmt: skip
def test_bad_tables(
    tmp_path: Path, train: str, dev: str, more: dict[str, Any], words: list[str]
) -> None:
    data = written(tmp_path / "data", a__csv=train, b__csv=dev)
    text = refused(tmp_path, classification(data, **more))
    for word in words:
        assert word in text, text


def test_one_value_only(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv="text,label\na,1\nb,1.0\n")
    task = classification(data, objective="regression", dev=[str(data / "a.csv")])
    assert "one value only" in refused(tmp_path, task)


def test_conll_line_without_a_tag(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__conll=CONLL + "Bob\n")
    file = [str(data / "a.conll")]
    text = refused(tmp_path, {"objective": "tagging", "train": file, "dev": file})
    assert "missing_tag" in text and "line 8" in text


def test_scheme_that_the_tags_are_not_in(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__conll=CONLL)
    file = [str(data / "a.conll")]
    task = {"objective": "tagging", "train": file, "dev": file, "scheme": "IO"}
    text = refused(tmp_path, task)
    assert "scheme=IO" in text and "'B-PER'" in text and "line 1" in text


@pytest.mark.parametrize("start", [500, 170])
def test_answer_past_its_context(tmp_path: Path, start: int) -> None:
    squad = json.loads(json.dumps(SQUAD))
    squad["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = start
    data = written(tmp_path / "data", a__json=json.dumps(squad))
    file = [str(data / "a.json")]
    text = refused(tmp_path, {"objective": "answers", "train": file, "dev": file})
    assert ("answer_past_end" if start == 500 else "answer_not_there") in text


def test_what_cannot_be_used_is_counted_and_shown(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV + "x\n,no\n", b__csv=CSV)
    task = classification(data, max_unusable_share=0.5)
    result, made, _ = run_task(
        tmp_path / "store", task_config("x", task), vocab_artifact(tmp_path / "store")
    )
    assert result.counts == {"in": 8, "out": 6, "train/empty": 1, "train/ragged_line": 1}
    assert described(made)["train"]["reasons"] == {"empty": 1, "ragged_line": 1}
    # Both files hold the same three rows.
    assert described(made)["dev"]["rows_in_train"] == 3
    left_out = next(t for t in result.report if t.title == "Rows left out")
    assert [row[:3] for row in left_out.rows] == [  # type: ignore[union-attr]
        ["train", "empty", 1], ["train", "ragged_line", 1],
    ]  # fmt: skip
    assert "line 5" in left_out.rows[1][3]  # type: ignore[union-attr]


def test_files_that_change_under_the_run(tmp_path: Path) -> None:
    data = written(tmp_path / "data", a__csv=CSV, b__csv=CSV)
    node = node_of(task_config("x", classification(data)))
    context = context_of(node, begin(tmp_path / "s", node), vocab_artifact(tmp_path / "s"))
    (data / "b.csv").write_text(CSV + "more,yes\n")
    with pytest.raises(StageError, match=r"tasks\.x changed while the run began"):
        stage.run(context)


REAL = {
    "sst2": (6920, 872), "qnli": (4252, 1000), "med": (4382, 1000), "wikigold": (1277, 185),
    "squad_v1": (896, 220), "squad_v2": (4330, 1748),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL, "germeval2014"])
def test_real_sets(tmp_path: Path, name: str) -> None:
    """The packaged groups on the real files: every row is there."""
    from pipeline.config import compose
    from stages.config import Config

    more = [f"finetune.data='{tasks()}'"]
    if name == "germeval2014":  # without its train file
        more.append(f"tasks.{name}.train=[germeval2014/NER-de-dev.tsv]")
    config = compose([f"task={name}", *more], None, Config).config
    assert isinstance(config, Config)
    tokens = google_vocab("cased" if name == "germeval2014" else "uncased")
    vocab = vocab_artifact(tmp_path / "store", tokens, lowercase=name != "germeval2014")
    result, made, _ = run_task(tmp_path / "store", config, vocab)
    rows = REAL.get(name, (2200, 2200))
    said = described(made)
    assert (said["train"]["in"], said["dev"]["in"]) == rows
    assert (said["train"]["rows"], said["dev"]["rows"]) == rows
    for which, count in zip(("train", "dev"), rows, strict=True):
        features = table(made, f"{which}.parquet")
        assert set(features["row"].to_pylist()) == set(range(count))
        assert max(map(len, features["input_ids"].to_pylist())) <= said["max_length"]
    assert len(table(made, "dev-rows.parquet")) == rows[1]
    assert result.samples and result.report
    schemes = {"wikigold": "IO", "germeval2014": "BIO"}
    assert said["scheme"] == schemes.get(name)
