"""Names, places and values as MLflow takes them. Pure."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.config import TrackingConfig
from pipeline.stage import Json, UserError, flatten

TAG_NODE = "clozeline.node"
TAG_FINGERPRINT = "clozeline.fingerprint"
TAG_STORE = "clozeline.store"
TAG_OUTPUT = "clozeline.output"
"""Of a registered model's version: an output digest; `clozeline.output/NODE` of one behind it."""

TAG_MODEL = "clozeline.model"
"""Of a node's run: models:/NAME/VERSION of what it registered."""

TAG_LINEAGE = "clozeline.lineage"
"""Of a registered model's version: JSON, a list of `pipeline.lineage.Step`."""

RUN_NAME_CHARACTERS = 100
NAME_CHARACTERS = 250


def resolve_uri(config: TrackingConfig, cwd: Path) -> tuple[str, str | None]:
    """The absolute tracking URI and the artifact location of a new experiment.

    Null is sqlite in `cwd`/runs/mlflow.db with artifacts beside it. A database has no artifact
    store of its own, so it gets the folder too; a server (http) decides by itself.

    Raises:
        UserError: the URI is a folder or of an unknown kind.
    """
    runs = (cwd / "runs").resolve()
    uri = config.uri or f"sqlite:///{runs / 'mlflow.db'}"
    location = config.artifact_location
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        raise UserError(
            f"tracking.uri={uri} is a folder; MLflow no longer keeps runs in folders: use "
            f"tracking.uri=sqlite:///{uri.removeprefix('file://').rstrip('/')}/mlflow.db"
        )
    if scheme.startswith("http"):
        return uri, location
    if scheme == "sqlite":
        database = (cwd / uri.removeprefix("sqlite:///")).resolve()
        uri = f"sqlite:///{database}"
        return uri, location or (database.parent / "mlartifacts").as_uri()
    if not scheme.startswith(("postgresql", "mysql", "mssql")):
        raise UserError(
            f"tracking.uri={uri} is of no kind that is known here: use sqlite:///FILE, "
            "postgresql://..., mysql://..., mssql://... or http(s)://HOST:PORT"
        )
    return uri, location or (runs / "mlartifacts").as_uri()


DEFAULT_RUN = "default config"


def run_name(config: TrackingConfig, overrides: Sequence[str]) -> str:
    """The parent's name: as configured, else the overrides, else `DEFAULT_RUN`."""
    name = config.run_name or ", ".join(o for o in overrides if not o.startswith("tracking."))
    if len(name) > RUN_NAME_CHARACTERS:
        name = name[: RUN_NAME_CHARACTERS - 1] + "…"
    return name or DEFAULT_RUN


def safe_name(name: str) -> str:
    """A name that MLflow takes: one bad character would have it refuse a whole batch."""
    return re.sub(r"[^\w.\-/ ]", "_", name, flags=re.ASCII)[:NAME_CHARACTERS]


def parameters(config: Mapping[str, Json]) -> dict[str, str]:
    """A nested config as MLflow parameters: dotted name -> text (lists as JSON)."""
    return {
        safe_name(name): value if isinstance(value, str) else json.dumps(value)
        for name, value in flatten(config)
    }


def numeric(figures: Mapping[str, Json]) -> dict[str, float]:
    """The figures that are finite numbers (true and false count as 1 and 0)."""
    found = {k: float(v) for k, v in figures.items() if isinstance(v, numbers.Real)}
    return {name: value for name, value in found.items() if math.isfinite(value)}
