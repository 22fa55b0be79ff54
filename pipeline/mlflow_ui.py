"""MLflow's own pages, on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from types import FrameType

from pipeline.config import TrackingConfig
from pipeline.mlflow_names import resolve_uri
from pipeline.stage import UserError

START_SECONDS = 120.0
STOP_SECONDS = 5.0


def ui(config: TrackingConfig, cwd: Path, port: int) -> int:
    """Serve MLflow's pages on 127.0.0.1:`port` until interrupted; returns the exit code.

    Raises:
        UserError: the tracking URI is a server's, which has pages of its own, or the port is taken.
    """
    uri, location = resolve_uri(config, cwd)
    if uri.startswith("http"):
        raise UserError(f"tracking.uri={uri} is a server: open it in a browser")
    if _answers(port):
        raise UserError(f"port {port} is taken: choose another one with --port")
    if uri.startswith("sqlite:"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    # MLflow starts processes of its own; a session of theirs lets all of them be ended together.
    process = subprocess.Popen(
        ui_command(uri, location, port),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        _signal_all(process, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        if process.poll() is None and not stopping:
            page = address(port, _experiment_id(port, config.experiment))
            print(f"MLflow: {page}  (Ctrl-C ends it)", flush=True)
        errors = process.communicate()[1].decode(errors="replace")
        if not stopping and process.returncode:
            print(errors, file=sys.stderr)
        return 0 if stopping else process.returncode
    finally:
        _signal_all(process, signal.SIGKILL)
        for number, handler in before.items():
            signal.signal(number, handler)


def address(port: int, experiment_id: str | None = None) -> str:
    """Where to look: an experiment's runs (or all experiments), in the mode for training runs."""
    place = f"/{experiment_id}/runs" if experiment_id else ""
    return f"http://127.0.0.1:{port}/#/experiments{place}?workflowType=machine_learning"


def _experiment_id(port: int, name: str) -> str | None:
    """The id of an experiment, asked of the server itself; None when there is none yet."""
    query = urllib.parse.urlencode({"experiment_name": name})
    url = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get-by-name?{query}"
    try:
        # No proxy: this is loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=START_SECONDS) as answer:
            return str(json.load(answer)["experiment"]["experiment_id"])
    except (OSError, ValueError, KeyError):
        return None


def ui_command(uri: str, artifact_location: str | None, port: int) -> list[str]:
    """The command line of MLflow's pages, bound to loopback: they have no authentication."""
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", uri, "--workers", "1"]
    if artifact_location is not None:
        command += ["--default-artifact-root", artifact_location]
    return command


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
