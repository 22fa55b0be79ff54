"""A model logged by a run: registered once, loaded and served with no code of ours installed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.commands.lineage import model_lines
from pipeline.config import TrackingConfig
from pipeline.digest import json_digest
from pipeline.files import ArrowFiles
from pipeline.mlflow_model import laid_out
from pipeline.model_record import model_record
from pipeline.stage import LoggedModel, Node, Result, Stage, UserError
from pipeline.store import Artifact, Store
from pipeline.tracking import MlflowTracking
from stages.model_card_use import PIPELINES
from stages.predictor import Predictor
from stages.registered_model import registered_model
from tests.stages.test_model_folder import OBJECTIVES, described, tokenizer, write

RESOLVED = {"seed": 1, "tasks": {"mine": {"objective": "classification"}}}
ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [
        {"text": "Dr. Müller said"},
        {"text": "fine", "text_b": "naïve—twice!"},
        {"text": " "},
    ],
    "tagging": [{"text": "Dr. Müller (Köln) said"}, {"words": ["東京", "fine"]}],
    "answers": [{"question": "said?", "context": "Dr. Müller said: it's fine"}],
}


def made(
    store: Store,
    node: str,
    files: Mapping[str, bytes],
    inputs: Mapping[str, Artifact],
    content: str = "1",
) -> Artifact:
    """An artifact as the runner leaves it."""
    fingerprint = json_digest([node, content])
    writer = store.begin(node, fingerprint, "attempt")
    for name, data in files.items():
        writer.write_bytes(name, data)
    read = {
        role: {"node": a.node, "fingerprint": a.fingerprint, "output_digest": a.output_digest}
        for role, a in inputs.items()
    }
    body = {
        "stage": node.partition("/")[0], "stage_version": 1, "config": {}, "settings": {},
        "inputs": read, "watches": {}, "versions": {}, "source_hash": "", "figures": {},
        "counts": {"in": 3, "out": 3}, "unit": "rows", "flow": "", "tracking_run_id": "0" * 32,
        "created": "2026-01-02T03:04:05.000+00:00", "seconds": 1.0,
    }  # fmt: skip
    return writer.commit(body, raw=[{"path": "dev.tsv", "size": 7}] if not inputs else None)


def tuned(store: Store, folder: Path, objective: str, content: str = "1") -> Artifact:
    """vocab -> finetune/OBJECTIVE, whose files are a model's."""
    folder.mkdir(parents=True)
    write(folder, objective)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    vocab = made(store, "vocab", {"vocab.txt": b"x"}, {})
    extra = {"README.md": b"---\n---\n", "mistakes.html": b"<p>none</p>"}
    return made(store, f"finetune/{objective}", files | extra, {"vocab": vocab}, content)


def log(cwd: Path, artifact: Artifact, model: LoggedModel, uri: str | None = None) -> list[str]:
    """As a run does once the node is made; what it says on the terminal."""
    said: list[str] = []
    store = str(cwd / "store")
    t = MlflowTracking(TrackingConfig(uri=uri), cwd, store, RESOLVED, [], {}, said.append)
    node = Node(artifact.node, Stage("finetune", 1, "stages.finetune:run"), {})
    t.start_run([node])
    run = t.node_started(node, artifact.fingerprint, {}, None)
    t.node_finished(run, artifact, Result(model=model))
    t.close("done")
    return said


@pytest.fixture(scope="module")
def logged(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run registered a model of three objectives."""
    cwd = tmp_path_factory.mktemp("logged")
    (cwd / "runs").mkdir()
    shutil.copyfile(database, cwd / "runs/mlflow.db")
    store = Store(str(cwd / "store"))
    for objective in ("classification", "tagging", "answers"):
        artifact = tuned(store, cwd / objective, objective)
        said = log(cwd, artifact, model_of(objective))
        name = f"models:/clozeline-{objective}/1"
        assert said == [f"finetune/{objective}: registered in MLflow as {name}"]
    return cwd


def client(cwd: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{cwd}/runs/mlflow.db")


def model_of(objective: str) -> LoggedModel:
    return registered_model(objective, objective, leave_out=("mistakes.html",))


@pytest.mark.slow
def test_a_registered_model_has_the_way_back(logged: Path) -> None:
    store = Store(str(logged / "store"))
    (artifact,), (vocab,) = store.artifacts("finetune/answers"), store.artifacts("vocab")
    (version,) = client(logged).search_model_versions("name = 'clozeline-answers'")
    tags = version.tags
    assert tags["clozeline.fingerprint"] == artifact.fingerprint
    assert tags["clozeline.output"] == artifact.output_digest
    assert tags["clozeline.output/vocab"] == vocab.output_digest
    assert tags["clozeline.raw/vocab"] == json_digest([{"path": "dev.tsv", "size": 7}])
    assert tags["clozeline.config"] == json_digest(RESOLVED)
    run = client(logged).get_run(version.run_id)
    assert run.data.tags["clozeline.model"] == "models:/clozeline-answers/1"
    (model_id,) = [m.model_id for m in run.outputs.model_outputs]
    assert version.source == f"models:/{model_id}"
    assert client(logged).get_logged_model(model_id).status.name == "READY"
    placed = logged / "runs" / "mlartifacts" / "models" / model_id / "artifacts"
    weights = placed / "artifacts" / "model" / "model.safetensors"
    assert weights.read_bytes() == artifact.read_bytes("model.safetensors")
    assert not weights.is_symlink() and not (weights.parent / "mistakes.html").exists()
    wanted = (placed / "requirements.txt").read_text()
    assert wanted.startswith("mlflow==") and "torch==" in wanted and "+" not in wanted


@pytest.mark.slow
def test_lineage_of_a_registered_model_needs_no_store(logged: Path, tmp_path: Path) -> None:
    uri, config = "models:/clozeline-answers/1", TrackingConfig()
    (artifact,) = Store(str(logged / "store")).artifacts("finetune/answers")
    (logged / "store").rename(tmp_path / "away")
    try:
        (text,) = model_lines(uri, config, logged, as_json=True)
        assert [s["node"] for s in json.loads(text)] == ["finetune/answers", "vocab"]
        _, first, *_ = model_lines(uri, config, logged, as_json=False)
        assert first.startswith("finetune/answers") and artifact.output_digest[:12] in first
        for wrong in ("models:/clozeline-answers/7", "models:/none@champion", "models:/x"):
            with pytest.raises(UserError):
                list(model_lines(wrong, config, logged, as_json=True))
    finally:
        (tmp_path / "away").rename(logged / "store")


@pytest.mark.slow
def test_a_result_is_registered_once(logged: Path) -> None:
    store = Store(str(logged / "store"))
    (artifact,) = store.artifacts("finetune/tagging")
    # Another run of the same result is given the version that is there.
    assert log(logged, artifact, model_of("tagging"))[0].endswith("clozeline-tagging/1")
    assert len(client(logged).search_model_versions("name = 'clozeline-tagging'")) == 1
    # Another result of the same node is the next version.
    other = tuned(store, logged / "other", "tagging", "2")
    assert log(logged, other, model_of("tagging"))[0].endswith("clozeline-tagging/2")
    # What is gone cannot be logged; the run ends well all the same.
    third = tuned(store, logged / "third", "tagging", "3")
    shutil.rmtree(third.path)
    assert "is no longer in" in log(logged, third, model_of("tagging"))[0]


@pytest.mark.slow
def test_a_model_waits_for_a_server_that_is_away(tracked: Path) -> None:
    store = Store(str(tracked / "store"))
    artifact = tuned(store, tracked / "folder", "classification")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = log(tracked, artifact, model_of("classification"), f"http://127.0.0.1:{port}")
    assert any("are kept in" in line for line in said)
    (kept,) = (tracked / "runs" / "tracking-outbox").glob("*.jsonl")
    records = [json.loads(line) for line in kept.read_text().splitlines()[1:]]
    (model,) = [r["payload"] for r in records if r["kind"] == "model"]
    assert (model["name"], model["node"]) == (
        "clozeline-classification",
        "finetune/classification",
    )


@pytest.mark.slow
def test_a_store_that_is_not_local_gives_the_same_model(logged: Path, tmp_path: Path) -> None:
    from mlflow.models import Model
    from pyarrow.fs import LocalFileSystem

    (artifact,) = Store(str(logged / "store")).artifacts("finetune/answers")
    record = model_record(model_of("answers"), artifact, "s3://bucket", {})
    remote = Artifact(ArrowFiles(LocalFileSystem()), artifact.path, artifact.manifest)
    laid = []
    for name, one in (("local", artifact), ("remote", remote)):
        (tmp_path / name).mkdir()
        folder = laid_out(tmp_path / name, record, one, Model(model_uuid="m", run_id="r"))
        files = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file()}
        # It holds the time.
        del files[Path("MLmodel")]
        laid.append({str(path): file.read_bytes() for path, file in files.items()})
    assert laid[0] == laid[1]
    assert laid[0]["artifacts/model/config.json"] == artifact.read_bytes("config.json")
    assert "code/stages/predictor.py" in laid[0] and "code/stages/catalog.py" not in laid[0]
    assert record["store"] == "s3://bucket"


def elsewhere() -> dict[str, str]:
    """An environment without a way to this checkout."""
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}
    # `mlflow models serve` looks for uvicorn on the path, as in an activated environment.
    path = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | quiet | path


LOAD = """
import json, sys
import mlflow, pandas
mlflow.set_tracking_uri(sys.argv[1])
for name, rows in json.loads(sys.argv[2]).items():
    model = mlflow.pyfunc.load_model(name)
    import stages
    print(json.dumps([stages.__file__, model.predict(pandas.DataFrame(rows))]))
"""


@pytest.mark.slow
def test_a_logged_model_loads_with_its_own_copy_of_the_code(logged: Path) -> None:
    objectives = ["tagging", "answers"]
    asked = {f"models:/clozeline-{name}/1": ROWS[name] for name in objectives}
    uri = f"sqlite:///{logged}/runs/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", LOAD, uri, json.dumps(asked)],
        capture_output=True, text=True, cwd=logged, env=elsewhere(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    for objective, line in zip(objectives, done.stdout.splitlines(), strict=True):
        used, answers = json.loads(line)
        assert Path(used).is_relative_to(logged / "runs")
        wanted = Predictor.load(logged / objective, "cpu").predict(ROWS[objective])
        assert close(answers, list(wanted))


def close(left: Any, right: Any) -> bool:
    """Equal, numbers to 1e-4."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, float) or isinstance(right, float):
        return abs(left - right) <= 1e-4
    return bool(left == right)


@pytest.fixture
def served(logged: Path) -> Iterator[tuple[str, Path]]:
    """The address of `mlflow models serve` once it answers, and the folder of the model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += [
        "-m",
        "models:/clozeline-classification/1",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    env = elsewhere() | {"MLFLOW_TRACKING_URI": f"sqlite:///{logged}/runs/mlflow.db"}
    with (logged / "server.log").open("wb") as sink:
        server = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=logged, env=env)
        try:
            wait_for(f"http://127.0.0.1:{port}/ping", server, logged / "server.log")
            yield f"http://127.0.0.1:{port}", logged / "classification"
        finally:
            if server.poll() is None:
                for child in [*psutil.Process(server.pid).children(recursive=True), server]:
                    child.kill()
            server.wait(10)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            ask(url)
            return
        except OSError:
            alive = server.poll() is None and time.monotonic() < deadline
            assert alive, log.read_text()[-3000:]
            time.sleep(0.2)


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text.strip() else None


@pytest.mark.slow
def test_the_served_model_answers_over_http(served: tuple[str, Path]) -> None:
    url, folder = served
    ours = Predictor.load(folder, "cpu")
    rows = ROWS["classification"]
    found = ask(f"{url}/invocations", {"dataframe_records": rows})["predictions"]
    assert close(found, list(ours.predict(rows)))
    assert found[2]["unusable"] == "empty_text"
    asked = {"dataframe_records": [{"text": "fine"}], "params": {"do": "embed"}}
    found = ask(f"{url}/invocations", asked)["predictions"]
    assert close(found, ours.embed(["fine"]))
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(f"{url}/invocations", {"dataframe_records": [{"texts": "a typo"}]})
    assert refused.value.code == 400


def test_every_objective_has_columns_and_an_example_that_fit() -> None:
    for objective in PIPELINES:
        model = registered_model("my task/1", objective)
        assert model.name == "clozeline-my-task-1"
        takes = {column.name: column for column in model.takes}
        for row in model.example:
            assert row.keys() <= takes.keys()
            assert {c.name for c in model.takes if c.required} <= row.keys()
    pairs = registered_model("qnli", "classification", pairs=True).takes
    assert all(column.required for column in pairs)
    assert set(OBJECTIVES) < set(PIPELINES)
    assert tokenizer().vocab and described("tagging")["scheme"] == "BIO"
