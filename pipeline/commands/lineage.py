"""`clozeline lineage`: what a result was made from, from the store or from MLflow's registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.artifact import Artifact
from pipeline.commands.look import found_artifact
from pipeline.commands.text import table, terminal_width
from pipeline.config import TrackingConfig
from pipeline.graph import Graph
from pipeline.lineage import Step, artifact_at, lineage
from pipeline.mlflow_names import TAG_LINEAGE, resolve_uri
from pipeline.plan import plan
from pipeline.stage import UserError
from pipeline.store import Store

MODELS = "models:/"
SHOWN_DIGITS = 12


def artifact_named(word: str) -> Artifact | None:
    """The artifact at a path; None when the word is the name of a node.

    Raises:
        UserError: a path that is there but belongs to no artifact.
    """
    found = artifact_at(word)
    if found is None and ("://" in word or word.startswith((".", "/", "~"))):
        raise UserError(
            f"{word} belongs to no result: give a node (mask/128), the folder of a result as "
            "clozeline show prints it, or a file in it"
        )
    return found


def artifact_of(graph: Graph, store: Store, selector: str) -> Artifact:
    """The result of a node with this config.

    Raises:
        UserError: it has none, or the selector is a stage of several nodes.
    """
    names = graph.match(selector)
    if len(names) > 1:
        raise UserError(f"lineage takes one node; {selector} has {', '.join(names)}")
    made = {p.node: p for p in plan(graph, store)}
    return found_artifact(made[names[0]], store)


def lines(artifact: Artifact, as_json: bool) -> Iterator[str]:
    """The artifact first, then what it was made from."""
    return _lines(lineage(artifact), as_json)


def model_lines(uri: str, config: TrackingConfig, cwd: Path, as_json: bool) -> Iterator[str]:
    """Of a model in MLflow's registry: as it was when the model was logged.

    Args:
        uri: models:/NAME/VERSION or models:/NAME@ALIAS.
        config: says where the registry is.
        cwd: as of `resolve_uri`.

    Raises:
        UserError: there is no such model, or no run of ours registered it.
    """
    from pipeline.mlflow_writer import import_mlflow

    import_mlflow()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    where, _ = resolve_uri(config, cwd)
    name, at, alias = uri.removeprefix(MODELS).partition("@")
    name, _, version = (name, "", "") if at else name.rpartition("/")
    if not name or not (alias if at else version.isdecimal()):
        raise UserError(f"{uri}: give models:/NAME/VERSION or models:/NAME@ALIAS")
    client = MlflowClient(tracking_uri=where)
    try:
        found = (
            client.get_model_version_by_alias(name, alias)
            if at
            else client.get_model_version(name, version)
        )
    except MlflowException as error:
        raise UserError(f"{uri} cannot be read at {where}: {str(error).splitlines()[0]}") from None
    if TAG_LINEAGE not in found.tags:
        raise UserError(f"{uri} at {where} was not registered by clozeline run: it has no lineage")
    steps = [Step.from_json(row) for row in json.loads(found.tags[TAG_LINEAGE])]
    return _lines(steps, as_json)


def _lines(steps: Sequence[Step], as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps([step.to_json() for step in steps], indent=2, ensure_ascii=False)
        return
    header = ("node", "fingerprint", "output", "made (UTC)", "MLflow run", "from", "in -> out")
    yield from table(header, [_row(step) for step in steps], terminal_width())
    for step in steps:
        if step.state == "gone":
            yield f"{step.node}: no longer in the store; what it was made from is not known"
        if step.state == "other":
            yield f"{step.node}: made anew since, and what came out differs from what was read"


def _row(step: Step) -> tuple[str, ...]:
    made_from = list(dict.fromkeys(step.inputs.values()))
    if step.raw is not None:
        names = ", ".join(step.raw.get("names", [])[:3])
        more = " and more" if names and step.raw["entries"] > 3 else ""
        shown = f" ({names}{more})" if names else ""
        made_from.append(f"raw input {step.raw['digest'][:SHOWN_DIGITS]}{shown}")
    return (
        step.node,
        step.fingerprint[:SHOWN_DIGITS],
        step.output_digest[:SHOWN_DIGITS],
        (step.created or "")[:16].replace("T", " "),
        step.run_id or "",
        ", ".join(made_from),
        step.flow,
    )
