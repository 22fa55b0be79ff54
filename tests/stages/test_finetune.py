"""Tasks through the command line: killed, resumed, cached, opened by transformers, registered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
import transformers

from stages.predictor import Predictor
from tests.conftest import SENTENCES, SMALL, Line, Run, environment_of, living

pytestmark = pytest.mark.slow


@pytest.fixture
def tasks(tmp_path: Path) -> list[str]:
    """Two tasks on real sentences: which half of the texts one is from, and words with capitals."""
    halves = [f"{text}\t{'late' if 2 * i >= len(SENTENCES) else 'early'}"
              for i, text in enumerate(SENTENCES)]  # fmt: skip
    tagged = [
        "".join(f"{word} {'I-CAP' if word[0].isupper() else 'O'}\n" for word in text.split())
        for text in SENTENCES
    ]
    for which, keep in (("train", range(0, 10_000, 2)), ("dev", range(1, 10_000, 2))):
        chosen = [i for i in keep if i < len(SENTENCES)]
        table = "\n".join(["text\tlabel", *(halves[i] for i in chosen)])
        (tmp_path / f"{which}.tsv").write_text(f"{table}\n", "utf-8")
        (tmp_path / f"{which}.conll").write_text("\n".join(tagged[i] for i in chosen), "utf-8")
        lengths = [f"{SENTENCES[i]}\t{len(SENTENCES[i]) / 100}" for i in chosen]
        (tmp_path / f"{which}-long.tsv").write_text("\n".join(["text\tlabel", *lengths]), "utf-8")
        questions = [question(i, SENTENCES[i]) for i in chosen]
        squad = {"version": "1.1", "data": [{"title": "", "paragraphs": questions}]}
        (tmp_path / f"{which}.json").write_text(json.dumps(squad), "utf-8")
    return [
        f"finetune.data={tmp_path}",
        "finetune.epochs=40",
        # Two side by side.
        "cluster.cpus_per_worker=1",
        "finetune.learning_rate=1e-3",
        "finetune.global_batch_size=8",
        "finetune.checkpoint_every_steps=2",
        "tasks.half.objective=classification",
        "tasks.half.train=[train.tsv]",
        "tasks.half.dev=[dev.tsv]",
        "tasks.half.seeds=2",
        "tasks.capitals.objective=tagging",
        "tasks.capitals.train=[train.conll]",
        "tasks.capitals.dev=[dev.conll]",
        "tasks.capitals.register=false",
        "tasks.length.objective=regression",
        "tasks.length.train=[train-long.tsv]",
        "tasks.length.dev=[dev-long.tsv]",
        "tasks.first.objective=answers",
        "tasks.first.train=[train.json]",
        "tasks.first.dev=[dev.json]",
        "tasks.first.max_question_length=16",
    ]


def question(number: int, text: str) -> dict:
    """Which word comes first?"""
    first = text.split()[0]
    answers = [{"text": first, "answer_start": text.index(first)}]
    asked = {"id": str(number), "question": "Which word is first?", "answers": answers}
    return {"context": text, "qas": [asked]}


def manifest_of(store: Path, node: str) -> dict:
    (path,) = store.glob(f"{node}/*/manifest.json")
    return json.loads(path.read_text())


def model_of(store: Path, node: str) -> Path:
    (path,) = store.glob(f"{node}/*/data/config.json")
    return path.parent


@pytest.mark.timeout(600)
def test_tasks(line: Line, joined: Run, corpus: Path, tmp_path: Path, tasks: list[str]) -> None:
    store = tmp_path / "runs/store"
    line.copy(store)
    checkpoints = "finetune/**/step-*[0-9]/state.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", *SMALL, f"corpus.paths=['{corpus}']", *tasks],
        cwd=tmp_path,
        env=environment_of(None),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    while not living(store, checkpoints) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    # Its worker would go on for a second, and be done.
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
    psutil.wait_procs(children, timeout=60)

    done = joined("run", *tasks)
    said = done.stdout + done.stderr
    # Killed with a Ray of its own, which may have counted its CPUs otherwise.
    assert re.search(r"finetune/\w+: (goes on from the checkpoint of|resuming at) step", said), said
    states = {r["node"]: r["state"] for r in json.loads(joined("plan", *tasks, "--json").stdout)}
    assert set(states.values()) == {"cached"}
    assert {"task/half", "finetune/half", "task/capitals", "finetune/capitals"} <= set(states)
    # What was pretrained stays as it was.
    assert (store / "pretrain").stat().st_mtime < (store / "finetune").stat().st_mtime

    half = manifest_of(store, "finetune/half")["figures"]
    assert half["seeds"] == 2 and 0 <= half["dev/accuracy_deviation"] <= 1
    assert half["dev/accuracy"] > 0.5
    tagging = manifest_of(store, "finetune/capitals")["figures"]
    assert tagging["dev/accuracy"] > 0.9
    assert "finetune/capitals" in said and f"{half['dev/accuracy']:.4f}" in said
    assert manifest_of(store, "finetune/length")["figures"]["dev/pearson"] > 0.8
    assert manifest_of(store, "finetune/first")["figures"]["dev/exact"] > 0.8
    for name in ("half", "length", "first"):
        assert f"registered in MLflow as models:/clozeline-{name}/1" in said
    assert "clozeline-capitals" not in said

    for node, auto in (
        ("finetune/half", transformers.AutoModelForSequenceClassification),
        ("finetune/capitals", transformers.AutoModelForTokenClassification),
    ):
        folder = model_of(store, node)
        assert (folder / "README.md").read_text().startswith("---\n")
        assert (folder / "mistakes.html").stat().st_size > 1000
        theirs = auto.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        text = SENTENCES[3]
        with torch.no_grad():
            logits = theirs(**tokenizer(text, return_tensors="pt")).logits[0]
        ours = Predictor.load(folder)
        if node == "finetune/half":
            (row,) = list(ours.predict([{"text": text}]))
            labels = theirs.config.id2label
            expected = {labels[i]: p for i, p in enumerate(logits.softmax(-1).tolist())}
            assert row["scores"] == pytest.approx(expected, abs=1e-4)
        else:
            (row,) = list(ours.predict([{"words": text.split()}]))
            assert [word["tag"] for word in row["words"]]
            assert {word["tag"] for word in row["words"]} <= {"O", "I-CAP"}
