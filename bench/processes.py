"""Each measurement in a process of its own: nothing that one leaves behind reaches the next.

`python -m bench.processes JOB RESULT` is what runs there.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.machine import ONE_THREAD, one_core
from pipeline.stage import StageError, UserError

NOTE = "note: "
"""Begins a line that is worth a word even when all went well."""

HOME = Path(__file__).resolve().parent.parent


def call(
    function: str, argument: Mapping[str, Any], folder: Path, *, single: bool = False
) -> dict[str, Any]:
    """Call "module:function" in a new process; of what it prints, notes are shown.

    Args:
        argument: JSON, for the function.
        folder: where the job and its result are written down.
        single: one thread on one core.

    Raises:
        StageError: it failed; the text is what it said.
    """
    with tempfile.TemporaryDirectory(dir=folder) as own:
        job, result = Path(own) / "job.json", Path(own) / "result.json"
        job.write_text(json.dumps({"function": function, "argument": argument, "single": single}))
        path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path} | (ONE_THREAD if single else {})
        said = Path(own) / "said.txt"
        with said.open("wb") as file:
            done = subprocess.run(
                [sys.executable, "-m", "bench.processes", str(job), str(result)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
            )
        lines = said.read_text("utf-8", "replace").splitlines()
        if done.returncode or not result.exists():
            raise StageError("\n".join([f"the measurement {function} failed:", *lines[-40:]]))
        for line in lines:
            if line.startswith(NOTE):
                print(line, file=sys.stderr)
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        return found


def main(job_file: str, result_file: str) -> int:
    """Do one job."""
    job = json.loads(Path(job_file).read_text("utf-8"))
    if job["single"]:
        one_core()
    module, _, name = job["function"].partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(job["argument"])
    except (UserError, StageError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    Path(result_file).write_text(json.dumps(result), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))


@contextmanager
def own_folder(work: str, keep: bool) -> Iterator[Path]:
    """A new folder in a person's own one or the system's temporary one; it goes at the end."""
    if work:
        Path(work).mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="clozeline-bench-", dir=work or None)).resolve()
    try:
        yield own
    finally:
        if keep:
            print(f"bench: what was made lies in {own}", file=sys.stderr)
        else:
            shutil.rmtree(own, ignore_errors=True)
