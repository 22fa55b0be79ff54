"""What the outbox keeps of a model that is to be logged: all that it takes, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pipeline.artifact import Artifact
from pipeline.digest import json_digest
from pipeline.fingerprint import versions
from pipeline.lineage import Step, lineage
from pipeline.mlflow_names import TAG_FINGERPRINT, TAG_LINEAGE, TAG_NODE, TAG_OUTPUT, TAG_STORE
from pipeline.stage import Json, LoggedModel

TAG_CONFIG = "clozeline.config"
TAG_VALUE_CHARACTERS = 90_000
"""Of a tag of a model's version; MLflow takes 100,000."""


def model_record(
    model: LoggedModel, artifact: Artifact, store: str, resolved: Mapping[str, Json]
) -> dict[str, Json]:
    """All that a process needs to log a model, later and elsewhere, as JSON.

    The tags are the way back from the registry: the fingerprint and output digest of the artifact,
    the output digest of each node behind it (`clozeline.output/vocab`), the digest of each listing
    of raw input (`clozeline.raw/shard`), of the whole resolved configuration, and the lineage.

    Args:
        model: as the stage described it.
        artifact: finished.
        store: that it lies in: a URI, or a folder, relative ones from the current folder.
        resolved: the whole configuration of the run.
    """
    steps = lineage(artifact)
    # A long lineage keeps what is nearest: the digests of the rest stand in tags of their own.
    while len(told := _told(steps)) > TAG_VALUE_CHARACTERS:
        steps = steps[:-1]
    tags = {
        **model.tags,
        TAG_NODE: artifact.node,
        TAG_FINGERPRINT: artifact.fingerprint,
        TAG_OUTPUT: artifact.output_digest,
        TAG_STORE: store,
        TAG_CONFIG: json_digest(resolved),
        TAG_LINEAGE: told,
    }
    for step in steps[1:]:
        tags[f"{TAG_OUTPUT}/{step.node}"] = step.output_digest
    for step in steps:
        if step.raw is not None:
            tags[f"clozeline.raw/{step.node}"] = str(step.raw["digest"])
    installed = versions(model.distributions)
    return {
        **asdict(model),
        # A local build (torch 2.13.0+cpu) is in no index.
        "requirements": [f"{n}=={v.partition('+')[0]}" for n, v in installed.items()],
        "tags": tags,
        "store": store if "://" in store else str(Path(store).expanduser().absolute()),
        "node": artifact.node,
        "fingerprint": artifact.fingerprint,
        "output_digest": artifact.output_digest,
    }


def _told(steps: list[Step]) -> str:
    return json.dumps([step.to_json() for step in steps], ensure_ascii=False)
