"""The command line, mostly in processes of its own: messages, exit codes, what is imported."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]
HEAVY = re.compile(r"\| +(ray|torch|mlflow|tokenizers|transformers)$", re.MULTILINE)


def clozeline(
    cwd: Path, *words: str, python: tuple[str, ...] = (), timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "pipeline", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def out(cwd: Path, *words: str) -> str:
    done = clozeline(cwd, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("config show mask.probabilty=0.2", "mask.probability"),
        ("config show model=gigantic", "tiny"),
        ("config show model.hidden_size=130 model.num_heads=4", "num_heads"),
        ("config show mask.probability=1.5", "mask.probability=1.5"),
        ("config show nosuchgroup=1", "nosuchgroup"),
        ("config show foo", "key=value"),
        ("config show --nosuch", "--nosuch"),
        ("config show --conf-dir nowhere", "nowhere"),
        ("config", "show"),
        ("config diff a=1", "two sides"),
        ("config diff nowhere.yaml vocab.size=9", "nowhere.yaml"),
        ("plann", "plan"),
        ("mask.probability=0.2", "clozeline run mask.probability=0.2"),
        ("doctor --port many", "--port"),
    ],
)
def test_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: str,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(words.split()) == 2
    printed, errors = capfd.readouterr()
    assert word in errors
    assert printed == ""
    assert len(errors.splitlines()) <= 12
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_ends_the_process_with_2(tmp_path: Path) -> None:
    done = clozeline(tmp_path, "config", "show", "mask.probabilty=0.2")
    assert done.returncode == 2
    assert "mask.probability" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help(tmp_path: Path) -> None:
    text = out(tmp_path, "--help")
    for command in ("run", "plan", "status", "why", "graph", "show", "config", "ui", "doctor"):
        assert re.search(rf"^    {command} ", text, re.MULTILINE), command
    assert "clozeline run" in text and "exit codes" in text
    assert "--conf-dir" in out(tmp_path, "config", "--help")


def test_version(tmp_path: Path) -> None:
    assert out(tmp_path, "--version").startswith("clozeline ")


def test_no_command_prints_the_help(tmp_path: Path) -> None:
    done = clozeline(tmp_path)
    assert done.returncode == 2 and "commands:" in done.stdout


def test_config_show(tmp_path: Path) -> None:
    text = out(tmp_path, "config", "show", "mask=whole_word", "vocab.size=4000")
    assert re.search(r"^  strategy: whole_word +# conf/mask/whole_word.yaml$", text, re.MULTILINE)
    assert re.search(r"^  size: 4000 +# command line$", text, re.MULTILINE)
    assert re.search(r"^  max_word_characters: 100 +# default$", text, re.MULTILINE)
    assert "Share of a row's tokens" in out(tmp_path, "config", "show", "--describe")


def test_config_show_json(tmp_path: Path) -> None:
    rows = json.loads(out(tmp_path, "config", "show", "--json", "seeds.mask=7"))
    by_key = {row["key"]: row for row in rows}
    assert by_key["seeds.mask"]["value"] == 7
    assert by_key["seeds.mask"]["origin"] == "command line"
    assert all(row["description"] for row in rows)


def test_own_groups_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "wee.yaml").write_text("hidden_size: 64\n", "utf-8")
    text = out(tmp_path, "config", "show", "model=wee", "--conf-dir", "mine")
    assert re.search(r"hidden_size: 64 +# mine/model/wee.yaml", text)


def test_config_diff_of_overrides(tmp_path: Path) -> None:
    text = out(tmp_path, "config", "diff", "", "mask.probability=0.2 model=mini")
    assert text.splitlines() == [
        "mask.probability: 0.15 -> 0.2",
        "model.hidden_size: 128 -> 256",
        "model.num_layers: 2 -> 4",
        "model.num_heads: 2 -> 4",
    ]
    assert out(tmp_path, "config", "diff", "seed=12345", "") == "no difference\n"


def test_config_diff_of_files(tmp_path: Path) -> None:
    """What `config show` prints reads back as the same config, in YAML."""
    shown = tmp_path / "a run.yaml"
    shown.write_text(out(tmp_path, "config", "show", "--describe", "mask.copies=3"), "utf-8")
    assert out(tmp_path, "config", "diff", str(shown), "mask.copies=3") == "no difference\n"
    rows = json.loads(out(tmp_path, "config", "diff", "--json", "a run.yaml", ""))
    assert rows == [{"key": "mask.copies", "left": 3, "right": 1}]


def test_config_diff_of_a_manifest_compares_its_slice(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "vocab" / "f00d"
    folder.mkdir(parents=True)
    manifest = {"node": "vocab", "fingerprint": "f00d", "config": {"vocab": {"size": 4000}}}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    for side in (folder, folder / "manifest.json"):
        text = out(tmp_path, "config", "diff", str(side), "mask.probability=0.3")
        assert text == "vocab.size: 4000 -> 8192\n"


def test_reader_that_goes_away(tmp_path: Path) -> None:
    done = subprocess.run(
        f"'{sys.executable}' -m pipeline config show | head -1",
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("words", ["--help", "config show", "config diff seed=1 seed=2"])
def test_light(tmp_path: Path, words: str) -> None:
    done = clozeline(tmp_path, *words.split(), python=("-X", "importtime"))
    assert done.returncode == 0
    assert HEAVY.findall(done.stderr) == []


def test_import_check_can_fail() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import tokenizers"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tokenizers" in HEAVY.findall(done.stderr)


def test_own_packages_of_the_current_folder_are_not_ours(tmp_path: Path) -> None:
    for name in ("model", "stages", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')\n", "utf-8")
    assert "probability" in out(tmp_path, "config", "show")
