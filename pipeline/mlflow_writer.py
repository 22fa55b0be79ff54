"""Turns tracking records into MLflow calls. Everything here runs in the outbox's one thread."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil
from filelock import FileLock

from pipeline.outbox import Record, Refused, first_line

T = TypeVar("T")

PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000
PARAMS_A_BATCH = 100
DIGEST_CHARACTERS = 36
SILENT_DRIVER_SECONDS = 900.0
"""A driver on another host that gave no sign of life for so long is taken for dead."""

TAG_DRIVER = "clozeline.driver"
TAG_HEARTBEAT = "clozeline.heartbeat"
TAG_PARENT = "mlflow.parentRunId"

# The server answered, and its answer will not change: these are refusals. Any other error, no
# connection first of all, is worth another try.
REFUSALS = frozenset(
    {
        "INVALID_PARAMETER_VALUE",
        "BAD_REQUEST",
        "RESOURCE_DOES_NOT_EXIST",
        "RESOURCE_ALREADY_EXISTS",
        "INVALID_STATE",
        "NOT_IMPLEMENTED",
    }
)


def import_mlflow() -> None:
    """Import MLflow with its messages, telemetry and long retries switched off."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
        # The outbox tries again by itself; MLflow's own retries would hold the end of a run up.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    importlib.import_module("mlflow.tracking")

    for name in ("mlflow", "alembic", "git", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)


def this_driver() -> str:
    """What identifies this process among all that ever were: JSON of host, pid and start time."""
    process = psutil.Process()
    return json.dumps([os.uname().nodename, process.pid, round(process.create_time(), 1)])


def driver_is_dead(driver: str, heartbeat: float, now: float) -> bool:
    """Whether the driver of a run that says RUNNING is gone.

    On this host the process table answers; on another one, a heartbeat older than
    `SILENT_DRIVER_SECONDS` does. `heartbeat` and `now` in seconds since the epoch.
    """
    host, pid, started = json.loads(driver)
    if host != os.uname().nodename:
        return now - heartbeat > SILENT_DRIVER_SECONDS
    try:
        return bool(abs(psutil.Process(pid).create_time() - started) > 1.0)
    except psutil.NoSuchProcess:
        return True


class MlflowWriter:
    """A `pipeline.outbox.Sink` that writes to MLflow through `MlflowClient`.

    Args:
        uri: absolute tracking URI.
        experiment: its name; made when it is not there.
        artifact_location: of a new experiment; None leaves it to the server.
        notice: prints a line for the user.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        artifact_location: str | None,
        notice: Callable[[str], None],
    ) -> None:
        self._uri = uri
        self._experiment = experiment
        self._artifact_location = artifact_location
        self._notice = notice
        self._client: Any = None
        self._experiment_id = ""
        self._ids: dict[str, str] = {}
        self._last_steps: dict[str, dict[str, int]] = {}

    def run_ids(self) -> dict[str, str]:
        """The MLflow run id of each run opened so far, by our key."""
        return dict(self._ids)

    def adopt(self, run_ids: dict[str, str]) -> None:
        """Take over the ids of runs that an earlier process opened."""
        self._ids.update(run_ids)

    def apply(self, record: Record) -> None:
        """Send one record.

        Raises:
            Refused: MLflow will never take it.
            Exception: MLflow could not be reached; try again.
        """
        from mlflow.exceptions import MlflowException

        if record.kind == "sent":
            Path(record.payload).unlink(missing_ok=True)
            return
        try:
            if self._client is None:
                self._connect()
            if record.kind != "open" and record.run not in self._ids:
                raise Refused("its run was never opened")
            getattr(self, f"_{record.kind}")(record.run, record.payload)
        except MlflowException as error:
            if error.error_code in REFUSALS:
                raise Refused(first_line(error)) from error
            raise

    def _connect(self) -> None:
        """Make the client, the database and the experiment; close what dead drivers left open."""
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        if self._uri.startswith("sqlite:"):
            # Two runs that start at once on a new database would both create its tables.
            database = Path(urlsplit(self._uri).path.removeprefix("/"))
            database.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(database.with_name(database.name + ".lock")):
                client = MlflowClient(tracking_uri=self._uri)
                found = client.get_experiment_by_name(self._experiment)
        else:
            client = MlflowClient(tracking_uri=self._uri)
            found = client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                self._experiment_id = client.create_experiment(
                    self._experiment,
                    artifact_location=self._artifact_location,
                    # Without it MLflow's pages file the runs under evaluations of prompts.
                    tags={"mlflow.experimentKind": "custom_model_development"},
                )
            except MlflowException:
                # Another run may have made it in between.
                found = client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        if found is not None:
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(found.experiment_id)
                self._notice(f"tracking: the deleted experiment {self._experiment} is restored")
            self._experiment_id = found.experiment_id
        self._client = client
        self._close_dead()

    def _close_dead(self) -> None:
        now = time.time()
        running = self._search(f"attributes.status = 'RUNNING' AND tags.`{TAG_DRIVER}` LIKE '%'")
        heartbeats: dict[str, float] = {}
        for run in running:
            # Only the parent's tag is renewed; it speaks for all runs of its driver.
            driver = run.data.tags[TAG_DRIVER]
            heartbeat = float(run.data.tags.get(TAG_HEARTBEAT, run.info.start_time / 1000))
            heartbeats[driver] = max(heartbeat, heartbeats.get(driver, 0.0))
        dead = {d for d, heartbeat in heartbeats.items() if driver_is_dead(d, heartbeat, now)}
        for run in running:
            driver = run.data.tags[TAG_DRIVER]
            if driver in dead:
                end = max(int(heartbeats[driver] * 1000), run.info.start_time)
                self._client.set_terminated(run.info.run_id, "KILLED", end)

    def _search(self, filter_string: str) -> list[Any]:
        found = self._client.search_runs(
            [self._experiment_id], filter_string, order_by=["attributes.start_time DESC"]
        )
        return list(found)

    def _open(self, run: str, payload: dict[str, Any]) -> None:
        if run in self._ids:
            return
        tags: dict[str, str] = dict(payload["tags"])
        if payload["parent"] is not None:
            tags[TAG_PARENT] = self._ids[payload["parent"]]
        if payload["resume"] is not None and self._continue(run, payload["resume"], tags):
            return
        made = self._client.create_run(
            self._experiment_id,
            start_time=payload["start_ms"],
            tags={key: value[:TAG_CHARACTERS] for key, value in tags.items()},
            run_name=payload["name"],
        )
        self._ids[run] = made.info.run_id

    def _continue(self, run: str, run_id: str, tags: dict[str, str]) -> bool:
        """Go on in the run of an unfinished attempt, under the new parent; False if it is gone."""
        from mlflow.exceptions import MlflowException

        try:
            earlier = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in REFUSALS:
                return False
            raise
        if earlier.info.lifecycle_stage == "deleted":
            return False
        self._client.update_run(run_id, status="RUNNING")
        self._write_tags(run_id, tags)
        self._last_steps[run] = {
            name: max(point.step for point in self._client.get_metric_history(run_id, name))
            for name in earlier.data.metrics
        }
        self._ids[run] = run_id
        return True

    def _metrics(self, run: str, payload: list[list[Any]]) -> None:
        from mlflow.entities import Metric

        last = self._last_steps.get(run, {})
        points = [
            Metric(name, value, int(time_ms), step)
            for name, value, time_ms, step in payload
            if step > last.get(name, -1)
        ]
        for batch in batches(points, 1000):
            self._client.log_batch(self._ids[run], metrics=batch)

    def _params(self, run: str, payload: dict[str, str]) -> None:
        from mlflow.entities import Param

        # A logged parameter cannot change: what a continued run already has stays.
        there = self._client.get_run(self._ids[run]).data.params
        params = [
            Param(key, value[:PARAM_CHARACTERS])
            for key, value in payload.items()
            if key not in there
        ]
        for batch in batches(params, PARAMS_A_BATCH):
            self._client.log_batch(self._ids[run], params=batch)

    def _tags(self, run: str, payload: dict[str, str]) -> None:
        self._write_tags(self._ids[run], payload)

    def _write_tags(self, run_id: str, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        all_tags = [RunTag(key, value[:TAG_CHARACTERS]) for key, value in tags.items()]
        for batch in batches(all_tags, PARAMS_A_BATCH):
            self._client.log_batch(run_id, tags=batch)

    def _links(self, run: str, payload: list[list[str | None]]) -> None:
        """Tag the parent with each node's run, and describe them in its note.

        An item is [node, state, our key or MLflow's id of the node's run or None, text].
        """
        tags: dict[str, str] = {}
        lines = ["| node (its run) | state | in → out |", "|---|---|---|"]
        for node, state, link, *rest in payload:
            text = (rest[0] or "") if rest else ""
            shown, run_id = self._linked(str(node), link)
            if run_id:
                tags[f"{state}/{node}"] = run_id
            lines.append(f"| {shown} | {state} | {text.replace('->', '→').replace('|', '/')} |")
        if any(state == "cached" for _, state, *_ in payload):
            lines += ["", "cached: the link leads to the run that made it."]
        self._write_tags(self._ids[run], {**tags, "mlflow.note.content": "\n".join(lines)})

    def _reads(self, run: str, payload: list[list[str | None]]) -> None:
        """Say in a node's note what it reads: items are [node, id of the run that made it]."""
        shown = [self._linked(str(node), link)[0] for node, link in payload]
        self._write_tags(self._ids[run], {"mlflow.note.content": f"reads {', '.join(shown)}"})

    def _linked(self, node: str, link: str | None) -> tuple[str, str | None]:
        """Markdown that leads to a node's run, and the id of that run, where it is known."""
        run_id = self._ids.get(link, link) if link else None
        if not run_id:
            return node, None
        place = f"#/experiments/{self._experiment_id}/runs/{run_id}?workflowType=machine_learning"
        return f"[{node}]({place})", run_id

    def _text(self, run: str, payload: dict[str, str]) -> None:
        self._client.log_text(self._ids[run], payload["text"], payload["path"])

    def _inputs(self, run: str, payload: list[dict[str, str]]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        datasets = [
            DatasetInput(
                Dataset(
                    name=item["name"],
                    digest=item["digest"][:DIGEST_CHARACTERS],
                    source_type="clozeline",
                    source=json.dumps({"uri": item["source"], "digest": item["digest"]}),
                ),
                [InputTag("mlflow.data.context", item["role"])],
            )
            for item in payload
        ]
        self._client.log_inputs(self._ids[run], datasets)

    def _model(self, run: str, payload: dict[str, Any]) -> None:
        """Log and register a model; see `pipeline.mlflow_model`."""
        request = {
            "uri": self._uri,
            "experiment_id": self._experiment_id,
            "run_id": self._ids[run],
            "model": payload,
        }
        answer = in_own_process("pipeline.mlflow_model", request)
        if "refused" in answer:
            raise Refused(answer["refused"])
        self._notice(
            f"{payload['node']}: registered in MLflow as "
            f"models:/{payload['name']}/{answer['version']}"
        )

    def _close(self, run: str, payload: dict[str, Any]) -> None:
        self._client.set_terminated(self._ids[run], payload["status"], payload["end_ms"])


def in_own_process(module: str, request: dict[str, Any]) -> dict[str, str]:
    """Run a module of ours as a program: a request in, its last line out.

    Raises:
        RuntimeError: it failed; its last line says why.
    """
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    quiet = {"MLFLOW_UV_AUTO_DETECT": "false", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=os.environ | quiet,
        # Ctrl-C at the terminal is for the driver to handle.
        start_new_session=True,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeError(f"the model could not be logged: {said[-1]}")
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut `items` into lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
