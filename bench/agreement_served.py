"""Rows through `mlflow models serve`, over HTTP, as a client of another language would ask."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROWS_A_REQUEST = 25
LONGEST_START_SECONDS = 300

Row = dict[str, Any]


def served(work: Path, model: str, rows: Sequence[Row]) -> list[Row]:
    """What the server says of each row.

    Args:
        work: its runs/mlflow.db is the registry.
        model: as `models:/NAME/VERSION`.
        rows: for "dataframe_records".

    Raises:
        SystemExit: the server does not start, or refuses a request.
    """
    found: list[Row] = []
    with _server(work, model) as address:
        for i in range(0, len(rows), ROWS_A_REQUEST):
            body = json.dumps({"dataframe_records": list(rows[i : i + ROWS_A_REQUEST])}).encode()
            request = urllib.request.Request(
                f"{address}/invocations", body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    found += json.loads(answer.read())["predictions"]
            except urllib.error.HTTPError as error:
                said = error.read().decode("utf-8", "replace")
                raise SystemExit(f"{model}: HTTP {error.code}: {said[:2000]}") from None
    return found


@contextmanager
def _server(work: Path, model: str) -> Iterator[str]:
    """A server as docs/models.md has it; none of our modules is on its path but those logged."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # As in an activated environment.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {**os.environ, "PATH": path}
    environment.pop("PYTHONPATH", None)
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{work / 'runs/mlflow.db'}"
    said = work / f"serve-{port}.txt"
    empty = work / "elsewhere"
    empty.mkdir(exist_ok=True)
    with said.open("wb") as file:
        process = subprocess.Popen(
            ["mlflow", "models", "serve", "-m", model, "--env-manager", "local",
             "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            cwd=empty, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, f"{address}/ping", said)
        yield address
    finally:
        below = []
        with suppress(psutil.Error):
            below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        for child in below:
            with suppress(psutil.Error):
                child.terminate()
        _, alive = psutil.wait_procs(below, timeout=10)
        for child in alive:
            with suppress(psutil.Error):
                child.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], ping: str, said: Path) -> None:
    deadline = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(ping, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"mlflow models serve did not start:\n{said.read_text()[-3000:]}")
