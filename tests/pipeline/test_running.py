"""`clozeline run` on small stages: what is printed, exit codes, signals, nothing left behind."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline import cli
from tests.conftest import living

ROOT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).parent / "toy"
# Its stages are named "toy_line:function".
sys.path.insert(0, str(TOY))

from toy_line import ToyCatalog  # noqa: E402

ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{TOY}"}
UNTRACKED = "tracking.enabled=false"


def start(cwd: Path, *words: str, python: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *python, str(TOY / "toy_line.py"), *words],
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def clozeline(
    cwd: Path, *words: str, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    process = start(cwd, *words, python=python)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def out(cwd: Path, *words: str) -> str:
    done = clozeline(cwd, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(cwd: Path, *words: str) -> dict[str, str]:
    return {row["node"]: row["state"] for row in json.loads(out(cwd, "plan", "--json", *words))}


def wait_for(path: Path, pattern: str) -> None:
    end = time.monotonic() + 30
    while not living(path, pattern):
        assert time.monotonic() < end, f"no {pattern}"
        time.sleep(0.05)


def left_in(folder: Path) -> list[psutil.Process]:
    """Processes that were started in `folder` (Ray's too) and have not ended a moment later."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except psutil.Error:
            continue
    return psutil.wait_procs(found, timeout=3)[1]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which a run has made everything, and what that run printed."""
    folder = tmp_path_factory.mktemp("made")
    return folder, out(folder, "run", UNTRACKED)


@pytest.fixture
def made(tmp_path: Path, first_run: tuple[Path, str]) -> Path:
    """A copy of that folder."""
    shutil.copytree(first_run[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_run_then_cached(made: Path, first_run: tuple[Path, str]) -> None:
    text = first_run[1]
    assert re.search(
        r"^shard +made +[\d.]+ s +10 -> 9 documents \(1 duplicate\)$", text, re.MULTILINE
    )
    assert re.search(r"^mask/128 +made +[\d.]+ s +9 -> 9$", text, re.MULTILINE)
    assert "masked share 15.0%" in text
    again = out(made, "run", UNTRACKED)
    assert re.search(r"^mask/128 +cached +- +9 -> 9$", again, re.MULTILINE)
    assert "masked share 15.0%" in again
    assert states(made) == {"shard": "cached", "mask/128": "cached"}


def test_cached_run_imports_nothing_heavy_and_starts_no_tracking(made: Path) -> None:
    done = clozeline(made, "run", python=("-X", "importtime"))
    assert done.returncode == 0
    heavy = re.findall(r"\| +(ray|torch|mlflow)$", done.stderr, re.MULTILINE)
    assert heavy == []
    assert [path.name for path in (made / "runs").iterdir()] == ["store"]


def test_changed_value_runs_what_depends_on_it(made: Path) -> None:
    changed = ("mask.probability=0.2",)
    assert states(made, *changed) == {"shard": "cached", "mask/128": "run"}
    why = out(made, "why", "mask/128", *changed)
    assert "mask.probability: 0.15 -> 0.2" in why
    assert "mask.probability: 0.15 -> 0.2" in out(made, "plan", *changed)
    assert "1 of 2 nodes to run" in out(made, "run", "--dry-run", *changed)
    assert "nothing to run" in out(made, "plan")
    status = out(made, "status")
    assert re.search(r"^shard +cached +\d{4}-\d\d-\d\d \d\d:\d\d ", status, re.MULTILINE)


def test_options_and_overrides_in_any_order(tmp_path: Path) -> None:
    out(tmp_path, "run", "store=here", "--until", "shard", UNTRACKED, "seed=3", "--force")
    assert (tmp_path / "here" / "shard").is_dir()
    assert not (tmp_path / "here" / "mask").exists()
    assert states(tmp_path, "seed=3", "--only", "shard", "store=here") == {"shard": "cached"}


def test_repeated_selection(tmp_path: Path) -> None:
    text = out(tmp_path, "run", "--only", "shard", "--only", "mask/128", UNTRACKED)
    assert "shard" in text and "mask/128" in text


def test_show(made: Path) -> None:
    text = out(made, "show", "shard")
    assert "a.txt" in text and "1 duplicate" in text
    (row,) = json.loads(out(made, "show", "shard", "--json"))
    assert row["figures"]["shards"] == 8 and row["counts"]["in"] == 10
    page = Path(row["report"]).read_text("utf-8")
    assert "One document." in page and "a.txt" in page
    missing = clozeline(made, "show", "mask", "mask.probability=0.2")
    assert missing.returncode == 2 and "clozeline run --until mask/128" in missing.stderr


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("run --only mask", "shard"),
        ("run --only nosuchnode", "nosuchnode"),
        ("run mask.probabilty=0.2", "mask.probability"),
        ("run --only shard --until shard", "--only"),
        ("run shard", "--only shard"),
        ("run --nosuch", "--nosuch"),
        ("run tracking.uri=nosuch://x", "nosuch"),
        ("run store=/dev/null/store", "/dev/null is a file"),
        ("run cluster.address=127.0.0.1:1 tracking.enabled=false", "127.0.0.1:1"),
        ("why", "NODE"),
        ("why shard mask", "one node"),
        ("why nosuch", "nosuch"),
        ("show", "NODE"),
    ],
)
def test_wrong_usage_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: str,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "catalog", ToyCatalog)
    code = cli.main(words.split())
    errors = capfd.readouterr().err
    assert code == 2, errors
    assert word in errors or (word == "NODE" and "one node" in errors)
    assert list(tmp_path.rglob("*")) == []


def test_wrong_usage_ends_the_process_with_2(tmp_path: Path) -> None:
    done = clozeline(tmp_path, "run", "--only", "mask")
    assert done.returncode == 2
    assert "shard" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_failure(tmp_path: Path) -> None:
    (tmp_path / "mistake").touch()
    done = clozeline(tmp_path, "run", UNTRACKED)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "clozeline: mask/128 failed: the corpus has one document: NotNext needs two"
    assert "Traceback" not in done.stderr
    assert re.search(r"^mask/128 +failed", done.stdout, re.MULTILINE)
    assert states(tmp_path)["mask/128"] == "failed"
    (tmp_path / "mistake").unlink()
    assert re.search(r"^shard +cached", out(tmp_path, "run", UNTRACKED), re.MULTILINE)


def test_fault_of_a_stage_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    done = clozeline(tmp_path, "run", UNTRACKED)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "Traceback" in clozeline(tmp_path, "run", UNTRACKED, "--verbose").stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_resumable(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow").touch()
    process = start(tmp_path, "run", UNTRACKED)
    wait_for(tmp_path, "runs/store/shard/*/*/00001.txt")
    process.send_signal(number)
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == 3
    assert errors.splitlines()[-1] == ("clozeline: interrupted; the same command goes on from here")
    assert re.search(r"^shard +interrupted", printed, re.MULTILINE)
    assert left_in(tmp_path) == []
    assert states(tmp_path)["shard"] == "run"
    assert "unfinished" in out(tmp_path, "plan")
    (tmp_path / "slow").unlink()
    out(tmp_path, "run", UNTRACKED)


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    process = start(tmp_path, "run", UNTRACKED)
    wait_for(tmp_path, "hears-nothing")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 3
    assert time.monotonic() - began < 3
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    command = shlex.join([sys.executable, str(TOY / "toy_line.py"), "run", UNTRACKED])
    done = subprocess.run(
        ["sh", "-c", f"{command} {closed}"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert set(states(tmp_path).values()) == {"cached"}


def test_store_that_cannot_be_written(tmp_path: Path) -> None:
    done = clozeline(tmp_path, "run", "store=/proc/nosuch", UNTRACKED)
    assert done.returncode in (1, 2)
    assert "/proc" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_tracked_run(tmp_path: Path) -> None:
    done = clozeline(tmp_path, "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "mlflow.db").is_file()


@pytest.mark.slow
def test_signal_while_ray_runs(tmp_path: Path) -> None:
    (tmp_path / "with-ray").touch()
    (tmp_path / "slow-ray").touch()
    process = start(tmp_path, "run", UNTRACKED, "cluster.num_cpus=1", "cluster.object_store_mb=80")
    wait_for(tmp_path, "asked")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "logging.cc" not in errors
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_ray_outlives_the_node_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "with-ray").touch()
    text = out(tmp_path, "run", UNTRACKED, "cluster.num_cpus=1", "cluster.object_store_mb=80")
    for node in ("remote/1", "remote/2"):
        assert re.search(rf"^{node} +made", text, re.MULTILINE)
    assert left_in(tmp_path) == []
