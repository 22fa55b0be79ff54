"""Whether `clozeline lineage` of a registered model leads to all that it was made from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.digest import json_digest
from pipeline.lineage import artifact_at

Command = Callable[..., str]
TAG_CONFIG = "clozeline.config"


def lineage_leads_back(work: Path, name: str, encoder: Path, command: Command) -> dict[str, Any]:
    """From `models:/clozeline-NAME/1` by what the command prints alone.

    Args:
        work: of the run.
        name: of the task, whose files lie in `work / "tasks" / name`.
        encoder: the folder that training started from.
        command: runs clozeline there.

    Returns:
        "found" and "wrong", a line each.
    """
    model = f"models:/clozeline-{name}/1"
    steps = {step["node"]: step for step in json.loads(command(work, "lineage", model, "--json"))}
    found = [f"the nodes {', '.join(steps)}"]
    wrong: list[str] = []
    checks = (
        _files(steps.get(f"task/{name}"), work / "tasks" / name),
        _encoder(steps.get(f"finetune/{name}"), encoder),
        _config(work, f"clozeline-{name}", steps.get(f"finetune/{name}"), name, encoder),
    )
    for check in checks:
        for good, line in check:
            (found if good else wrong).append(line if good else f"lineage of {model}: {line}")
    return {"found": found, "wrong": wrong}


def _listed(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The raw input of a step, whose digest is the one that the registry has."""
    if step is None or step["raw"] is None:
        return []
    artifact = artifact_at(step["path"])
    entries: list[dict[str, Any]] = (artifact and artifact.raw()) or []
    return entries if json_digest(entries) == step["raw"]["digest"] else []


def _files(step: dict[str, Any] | None, folder: Path) -> Iterator[tuple[bool, str]]:
    """The listing has the name and the size of each file, and the entries of the vocabulary."""
    entries = {entry["name"]: entry for entry in _listed(step)}
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        good = entries.get(path.name, {}).get("size") == size
        yield good, f"{path.name} ({size:,} bytes)" + ("" if good else " is not listed")
    if "vocabulary" not in entries:
        yield False, "the vocabulary is not listed"


def _encoder(step: dict[str, Any] | None, encoder: Path) -> Iterator[tuple[bool, str]]:
    digest = hashlib.sha256((encoder / "model.safetensors").read_bytes()).hexdigest()
    good = digest in [entry.get("sha256") for entry in _listed(step)]
    yield good, f"the encoder's weights (sha256 {digest[:12]})" + ("" if good else " not listed")


def _config(
    work: Path, name: str, step: dict[str, Any] | None, task: str, encoder: Path
) -> Iterator[tuple[bool, str]]:
    from mlflow.artifacts import download_artifacts
    from mlflow.tracking import MlflowClient

    if step is None or not step["run_id"]:
        yield False, "no MLflow run is named"
        return
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    uri = f"sqlite:///{work / 'runs/mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    tags = client.get_model_version(name, "1").tags
    parent = client.get_run(step["run_id"]).data.tags.get("mlflow.parentRunId", step["run_id"])
    file = download_artifacts(run_id=parent, artifact_path="config.json", tracking_uri=uri,
                              dst_path=str(work))  # fmt: skip
    config = json.loads(Path(file).read_text("utf-8"))
    good = (
        json_digest(config) == tags.get(TAG_CONFIG)
        and task in config["tasks"]
        and config["finetune"]["init_from"] == str(encoder)
    )
    yield (
        good,
        f"the configuration ({tags.get(TAG_CONFIG, '')[:12]})"
        + ("" if good else " is not that of the run"),
    )
