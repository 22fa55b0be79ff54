"""The whole line on a small corpus, through the command line, Ray and MLflow."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import SENTENCES, SMALL, Line, Run, documents, environment_of, living
from tests.ray_by_hand import RayByHand

pytestmark = pytest.mark.slow


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {row["node"]: row["state"] for row in json.loads(done.stdout)}


def manifests(store: Path) -> dict[str, dict[str, Any]]:
    # Workers of a run that was killed may still be at it for a moment.
    found = (json.loads(p.read_text()) for p in living(store, "**/manifest.json"))
    return {m["node"]: m for m in found}


def worker_among(processes: list[psutil.Process]) -> psutil.Process:
    (worker,) = [p for p in processes if "RayTrainWorker" in " ".join(p.cmdline())]
    return worker


def newest_step(store: Path) -> int:
    """Finished steps of the newest checkpoint of a training that is not whole."""
    found = [json.loads(p.read_text()) for p in living(store / "pretrain", "**/state.json")]
    return max(state["state"]["step"] for state in found)


def digests(store: Path) -> dict[str, str]:
    return {node: m["output_digest"] for node, m in manifests(store).items()}


@pytest.mark.timeout(600)
def test_line(line: Line, clozeline: Run, joined: Run, tmp_path: Path) -> None:
    line.copy(tmp_path / "runs/store")
    made = manifests(tmp_path / "runs/store")
    assert sorted(made) == [
        "evaluate",
        "export",
        "mask/64",
        "mask/64-heldout",
        "pairs/64",
        "pretrain/64",
        "shard",
        "vocab",
    ]
    for word in ("NotNext 50.0", "unigram", "NSP accuracy", "[MASK]"):
        assert word in line.output

    assert "Warning" not in line.output

    # Nothing lost: in = out + reasons, and each pair label balanced in each shard.
    for manifest in made.values():
        counts = dict(manifest["counts"])
        if counts:
            assert counts.pop("in") == sum(counts.values())
    for part in made["pairs/64"]["files"]:
        if part["name"].startswith("train"):
            assert abs(part["rows"] - 2 * part["figures"]["not_next"]) <= 1
    assert made["mask/64"]["figures"]["rows_under_rule"] == 0
    assert made["mask/64"]["figures"]["rows_over_rule"] == 0

    # Again: everything cached, Ray never started.
    began = time.monotonic()
    again = clozeline("run")
    assert time.monotonic() - began < 60
    assert set(states(clozeline("plan", "--json")).values()) == {"cached"}
    assert "made" not in again.stderr
    # This store is a copy: what is printed is where it lies now.
    assert str(tmp_path / "runs/store/export") in again.stdout

    # A changed value makes stale what follows, and nothing before.
    changed = states(clozeline("plan", "--json", "mask.probability=0.2"))
    assert changed["mask/64"] == "run" and changed["pairs/64"] == "cached"
    assert changed["mask/64-heldout"] == "cached"
    assert changed["pretrain/64"] == "undecided"
    why = clozeline("why", "mask/64", "mask.probability=0.2").stdout
    assert "mask.probability" in why and "0.15" in why and "0.2" in why
    assert "run" not in states(clozeline("plan", "--json", "cluster.num_cpus=1")).values()
    rate = states(clozeline("plan", "--json", "train.learning_rate=3e-4"))
    assert rate["mask/64"] == "cached" and rate["pretrain/64"] == "run"

    # Forced: the same bytes, and nothing after it runs.
    before = digests(tmp_path / "runs/store")
    joined("run", "--only", "mask", "--force")
    assert digests(tmp_path / "runs/store") == before
    assert set(states(clozeline("plan", "--json")).values()) == {"cached"}


@pytest.mark.timeout(600)
def test_neither_actors_nor_cpus_nor_the_hash_seed_change_the_bytes(
    line: Line, clozeline: Run, tmp_path: Path
) -> None:
    """The line ran in tasks on all CPUs, with a hash seed of its own."""
    words = ("--until", "mask", f"store={tmp_path}/actors", "speed.workers=actors")
    # Workers have the hash seed of a driver that starts their Ray.
    clozeline("run", *words, "cluster.num_cpus=1", environment={"PYTHONHASHSEED": "77"})
    made, calm = digests(tmp_path / "actors"), digests(line.store)
    assert made == {node: calm[node] for node in made} and {"vocab", "mask/64"} <= made.keys()


@pytest.mark.timeout(600)
def test_sentence_order_in_length_bins(line: Line, varied: Line) -> None:
    """Figures and classes go by what is trained; without a word of NSP."""
    said = varied.output
    assert "sentence order accuracy" in said and "NSP" not in said
    assert "rows of epoch 1 are in batches of one of 4 bins" in said
    made = manifests(varied.store)
    assert "sentence_order_accuracy" in made["evaluate"]["figures"]
    assert "train/sentence_order_loss" in made["pretrain/64"]["figures"]
    with closing(sqlite3.connect(varied.folder / "runs/mlflow.db")) as database:
        keys = {key for (key,) in database.execute("SELECT DISTINCT key FROM metrics")}
    order = {"train/sentence_order_loss", "validation/sentence_order_accuracy"}
    assert order | {"heldout/sentence_order_accuracy"} <= keys
    assert not [key for key in keys if "nsp" in key]
    found = json.loads(next((varied.store / "export").rglob("config.json")).read_text())
    assert found["pair_objective"] == "sentence_order"
    assert found["seq_relationship_classes"] == ["in order", "swapped"]
    (theirs,) = (line.store / "export").rglob("config.json")
    assert "pair_objective" not in json.loads(theirs.read_text())


@pytest.mark.timeout(600)
def test_kill_in_the_middle_of_data_stages(
    line: Line, joined: Run, corpus: Path, tmp_path: Path
) -> None:
    shot = tmp_path / "shot"
    command = [sys.executable, "-m", "pipeline", "run", "--until", "mask", f"store={shot}"]
    command += [*SMALL, f"corpus.paths=['{corpus}']"]
    for part in ("train-00001.parquet", "train-c0-00001.parquet"):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment_of(None),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if living(shot, f"**/parts/*{part}.json") or living(shot, f"**/{part}"):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    joined("run", "--until", "mask", f"store={shot}", "cluster.num_cpus=1")
    calm = digests(line.store)
    assert digests(shot) == {node: calm[node] for node in digests(shot)}
    assert "mask/64" in digests(shot)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tracked")
def test_interrupted_training_resumes_to_the_bit(
    line: Line, joined: Run, shared_ray: RayByHand, corpus: Path, tmp_path: Path
) -> None:
    """Killed; asked to stop; then its only worker process told to end, and let go on."""
    # A stop is heard within a second or two, in which a fast machine makes many steps.
    steps = "train.steps=150"
    line.copy(tmp_path / "calm", without=["pretrain", "evaluate", "export"])
    joined("run", "--until", "pretrain", f"store={tmp_path / 'calm'}", steps)
    calm = manifests(tmp_path / "calm")["pretrain/64"]
    shot = tmp_path / "shot"
    line.copy(shot, without=["pretrain", "evaluate", "export"])
    command = [sys.executable, "-m", "pipeline", "run", "--until", "pretrain", f"store={shot}"]
    # Held-out figures at each step take longer than the step, so that a signal comes in time.
    command += [*SMALL, f"corpus.paths=['{corpus}']", "train.evaluate_every_steps=1", steps]
    command += ["train.checkpoint_every_steps=3"]
    checkpoints = "**/step-*[0-9]/state.json"

    def run(
        send: Callable[[subprocess.Popen[str]], None], ray: RayByHand | None = shared_ray
    ) -> tuple[int, str]:
        """Start, send a signal after the next checkpoint; returns exit code and what was said."""
        before = living(shot, checkpoints)
        process = subprocess.Popen(
            [*command, *([f"cluster.address={ray.address}"] if ray is not None else [])],
            cwd=tmp_path,
            env=environment_of(ray),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if living(shot, checkpoints) - before:
                break
            time.sleep(0.02)
        send(process)
        said, _ = process.communicate(timeout=240)
        return process.returncode, said

    def kill(process: subprocess.Popen[str]) -> None:
        worker = worker_among(psutil.Process(process.pid).children(recursive=True))
        process.kill()
        psutil.wait_procs([worker], timeout=60)  # It may still write a checkpoint.

    def end_worker(_: subprocess.Popen[str]) -> None:
        worker_among(shared_ray.processes(0)).terminate()

    # The first with a Ray of its own, which dies with it; the others join one, and leave it.
    code, said = run(kill, None)
    assert code == -signal.SIGKILL, said
    code, said = run(lambda process: process.send_signal(signal.SIGINT))
    assert code == 3, said
    stopped_at = newest_step(shot)
    code, said = run(end_worker)
    assert code == 0, said
    assert "training worker 0 is told to end" in said
    froms = [int(n) for n in re.findall(r": goes on from the checkpoint of step (\d+)", said)]
    resumed = manifests(shot)["pretrain/64"]
    assert froms == [stopped_at, resumed["figures"]["resumed_from"]], said
    assert f"training goes on from the checkpoint of step {froms[1]}" in said
    assert stopped_at < froms[1] < calm["figures"]["steps"]
    assert resumed["output_digest"] == calm["output_digest"]
    assert resumed["figures"]["train/loss"] == calm["figures"]["train/loss"]


@pytest.mark.timeout(600)
def test_two_workers_give_the_losses_of_one(line: Line, joined: Run, tmp_path: Path) -> None:
    words = ["train.steps=50", "train.precision=float32", "train.log_every_steps=1"]
    words += ["model.hidden_dropout=0", "model.attention_dropout=0"]
    curves = []
    for workers in (1, 2):
        store = tmp_path / f"store-{workers}"
        line.copy(store, without=["pretrain", "evaluate", "export"])
        more = [f"store={store}", f"cluster.train_workers={workers}"]
        joined("run", "--until", "pretrain", *words, *more)
        run_id = manifests(store)["pretrain/64"]["tracking_run_id"]
        with closing(sqlite3.connect(tmp_path / "runs/mlflow.db")) as database:
            rows = database.execute(
                "select step, value from metrics where run_uuid = ? and key = 'train/loss'",
                (run_id,),
            ).fetchall()
        curves.append(dict(rows))
    one, two = curves
    assert set(range(1, 51)) <= set(one) and one.keys() == two.keys()
    assert one[50] < one[1]
    for step, loss in one.items():
        assert two[step] == pytest.approx(loss, rel=1e-5), step


@pytest.mark.timeout(300)
def test_damaged_input_is_counted(joined: Run, tmp_path: Path) -> None:
    """What cannot be read stands under a reason; nothing hangs, nothing else is lost."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    texts = [" ".join(doc) for doc in documents(60)]
    good = [json.dumps({"text": text}) for text in texts]
    long = json.dumps({"text": " ".join(texts) * 60})
    bad = ['{"text": 5}', '{"other": "x"}', "[1]", '{"text": "half a li']
    (folder / "a.jsonl").write_text("\n".join([*good[:40], long, *bad]), encoding="utf-8")
    half = gzip.compress("\n".join(good[40:50]).encode())
    (folder / "b.jsonl.gz").write_bytes(half[: len(half) // 2])
    (folder / "c.txt").write_bytes(b"caf\xe9 " + texts[50].encode())
    for name in ("d.jsonl", "e.jsonl.gz", "f.parquet"):
        (folder / name).touch()
    (folder / "g.txt").write_text("Short.")
    os.mkfifo(folder / "h.jsonl")
    (folder / "i.jsonl").symlink_to(tmp_path / "nowhere")
    words = ["corpus=jsonl", "corpus.format=auto", f"corpus.paths=['{folder}']"]
    words += ["--until", "shard", "tracking.enabled=false"]
    few = joined("run", *words, check=1)
    assert "corpus.max_unreadable_share" in few.stderr and "a.jsonl line 42" in few.stderr
    done = joined("run", *words, "corpus.max_unreadable_share=0.5")
    assert "h.jsonl" in done.stderr and "i.jsonl" in done.stderr
    counts = dict(manifests(tmp_path / "runs/store")["shard"]["counts"])
    assert counts.pop("in") == sum(counts.values())
    assert counts["undecodable"] == 1 and counts["too_short"] == 1
    assert counts["malformed_json"] == 2 and counts["not_text"] == 1
    assert 41 <= counts["out"] <= 51


def test_ids_match_the_vocabulary(line: Line) -> None:
    pairs = manifests(line.store)["pairs/64"]
    folder = next((line.store / "pairs/64").iterdir())
    name = next(p["name"] for p in pairs["files"] if p["name"].startswith("train"))
    table = pq.read_table(next(folder.rglob(name)))
    assert table.schema.metadata[b"clozeline.vocabulary"]
    row = table.slice(0, 1).to_pylist()[0]
    assert row["input_ids"][0] == 2 and row["input_ids"][-1] == 3
    assert row["input_ids"].index(3) == row["a_length"] + 1


def test_labels_are_the_tokens_that_stood_there(line: Line) -> None:
    """Each row of the masks against its row of the pairs."""
    for split, node in (("train", "mask/64"), ("validation", "mask/64-heldout")):
        before = tables(line.store / "pairs/64", split)
        after = tables(line.store / node, split)
        assert len(before) == len(after) > 0
        changed = 0
        for old, new in zip(before, after, strict=True):
            assert old["document"] == new["document"] and old["is_next"] == new["is_next"]
            restored = list(new["input_ids"])
            for position, label in zip(new["mlm_positions"], new["mlm_labels"], strict=True):
                changed += restored[position] != label
                restored[position] = label
            assert restored == old["input_ids"]
            assert len(new["mlm_positions"]) == max(1, round(len(restored) * 0.15))
        assert changed


def documentation_sentences(count: int) -> list[str]:
    """Sentences of the standard library's documentation: real text that every machine has."""
    from stages.text.python_docs import list_python_docs, module_docstrings

    found: list[str] = []
    library = list_python_docs([]).distributions[0]
    for path, _ in library.modules:
        text = module_docstrings((Path(library.root) / path).read_bytes())
        found += [line for line in (" ".join(s.split()) for s in text.split(". ")) if line]
        if len(found) >= count:
            return found[:count]
    raise AssertionError(f"only {len(found)} sentences in the standard library")


def tables(node: Path, split: str) -> list[dict[str, Any]]:
    files = sorted(node.rglob(f"{split}-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_exported_folder_is_what_transformers_loads(line: Line) -> None:
    """Same logits, IsNext and NotNext the right way round, same ids on real sentences."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForPreTraining, AutoTokenizer

    from model.bert import BertForPreTraining
    from model.config import BertConfig
    from model.packing import pack
    from stages.training.weights import set_weights

    folder = next((line.store / "export").rglob("config.json")).parent
    theirs = AutoModelForPreTraining.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pretrained = next((line.store / "pretrain/64").rglob("weights.safetensors")).parent
    ours = BertForPreTraining(BertConfig(**json.loads((pretrained / "model.json").read_text())))
    set_weights(ours, load_file(pretrained / "weights.safetensors"), "weights")
    ours.eval()
    a, b = SENTENCES[:8], SENTENCES[8:16]
    batch = tokenizer(a, b, padding=True, truncation=True, max_length=64, return_tensors="pt")
    packed = pack(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
    with torch.no_grad():
        expected = theirs(**batch)
        output = ours(*packed.inputs(), torch.arange(int(batch["attention_mask"].sum())))
    logits = expected.prediction_logits[batch["attention_mask"].bool()]
    largest = float(logits.abs().max())
    assert float((output.mlm_logits - logits).abs().max()) <= 1e-5 * largest
    nsp = expected.seq_relationship_logits
    assert float((output.nsp_logits - nsp).abs().max()) <= 1e-5 * max(1.0, float(nsp.abs().max()))


def test_is_next_means_is_next_in_transformers(line: Line) -> None:
    """On meaning: the loss that transformers computes with label 0 for IsNext is our training's."""
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForPreTraining

    folder = next((line.store / "export").rglob("config.json")).parent
    model = AutoModelForPreTraining.from_pretrained(folder).eval()
    manifest = manifests(line.store)["evaluate"]
    rows = tables(line.store / "mask/64-heldout", "validation")
    loss, correct = 0.0, 0
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row["input_ids"]])
            segments = (torch.arange(ids.shape[1]) > row["a_length"] + 1).long()[None]
            logits = model(ids, token_type_ids=segments).seq_relationship_logits
            label = torch.tensor([0 if row["is_next"] else 1])
            loss += float(F.cross_entropy(logits, label))
            correct += int(logits.argmax()) == int(label)
    assert loss / len(rows) == pytest.approx(manifest["figures"]["nsp_loss"], rel=1e-4)
    assert correct / len(rows) == pytest.approx(manifest["figures"]["nsp_accuracy"], abs=0.011)


def test_exported_tokenizer_gives_the_ids_of_the_pairs(line: Line) -> None:
    """1,000 real sentences: ours, and the exported folder in transformers."""
    from transformers import AutoTokenizer

    from stages.text.wordpiece import Tokenizer
    from stages.text.words import Normalisation

    folder = next((line.store / "export").rglob("config.json")).parent
    theirs = AutoTokenizer.from_pretrained(folder)
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    ours = Tokenizer(vocab, Normalisation(True, True, True))
    texts = [*SENTENCES, *documentation_sentences(1000)]
    ends = pa.array([[len(t.encode())] for t in texts], pa.list_(pa.uint32()))
    encoded = ours.encode(pa.array(texts), ends)
    starts = encoded.sentence_offsets
    mine = [encoded.ids[starts[i] : starts[i + 1]].tolist() for i in range(len(starts) - 1)]
    expected = [
        ids
        for ids in theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if ids
    ]
    assert mine == expected
