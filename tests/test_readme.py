"""The commands of the README run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SENTENCES, SMALL, Line, documents, environment_of
from tests.ray_by_hand import RayByHand

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(pattern: str = "clozeline") -> list[str]:
    """Lines of the README's shell blocks that call `clozeline`, comments taken off."""
    lines = []
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            line = re.sub(r"\s+#.*", "", line).strip().removeprefix(".venv/bin/")
            if line.startswith(pattern):
                lines.append(line)
    return lines


def test_every_command_is_known() -> None:
    assert len(commands()) >= 10
    for line in commands():
        words = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", words[1], "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, line


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (?:\w+=\w+ )?(\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_run(
    line: Line, shared_ray: RayByHand, corpus: Path, tracked: Path, tmp_path: Path
) -> None:
    """In the README's order, on the small corpus in place of the demo's, where the line has run."""
    line.copy(tmp_path / "runs/store")
    books = tmp_path / "books"
    books.mkdir()
    for i, document in enumerate(documents(240)):
        (books / f"{i}.txt").write_text("\n\n".join(document), encoding="utf-8")
    glue = tmp_path / "glue/sst2"
    glue.mkdir(parents=True)
    rows = [f"{text}\t{i % 2}" for i, text in enumerate(SENTENCES)]
    for which in ("train", "dev"):
        (glue / f"{which}.tsv").write_text("\n".join(["sentence\tlabel", *rows]), encoding="utf-8")
    took_part = 0
    for command_line in commands():
        words = shlex.split(command_line)[1:]
        if words[0] in ("ui", "doctor"):
            # One serves until it is stopped, the other speaks of the machine, not of us.
            continue
        words = [f"corpus.paths=['{books}']" if w.startswith("corpus.paths") else w for w in words]
        words = [w.replace("128", "64").replace("512", "96") for w in words]
        words = [re.sub(r"steps([:=])\d+", r"steps\g<1>6", w) for w in words]
        words = [w.replace("/data/glue", str(glue.parent)) for w in words]
        words = [w.replace("vocab.size=4000", "vocab.size=500") for w in words]
        takes_config = ("run", "plan", "why", "status", "graph", "show")
        small: list[str] = []
        if words[0] in takes_config or words[:2] == ["config", "show"]:
            # What the README sets itself comes last, and wins.
            small = [o for o in SMALL if o.split("=")[0] not in " ".join(words)]
            if "corpus.paths" not in " ".join(words):
                small.append(f"corpus.paths=['{corpus}']")
            if "model=" in " ".join(words):
                small.append("model.num_layers=2")
        if words[0] == "predict":
            mine = (*SMALL, f"corpus.paths=['{corpus}']")
            words += [word for override in mine for word in ("--set", override)]
        if words[0] == "run":
            small.append(f"cluster.address={shared_ray.address}")
        head = 2 if words[0] == "config" else 1
        command = [sys.executable, "-m", "pipeline", *words[:head], *small, *words[head:]]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment_of(shared_ray),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command_line}\n{command}\n{done.stdout}\n{done.stderr}"
        took_part += 1
    assert took_part >= 10
