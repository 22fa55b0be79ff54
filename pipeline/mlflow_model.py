"""Logs a model in MLflow and registers it, in a process of its own.

MLflow's code for models imports much and runs the module that serves; neither belongs into the
driver, where torch and Ray are imported by other threads at the same time.

As a program it reads a request from standard input and prints an answer as its last line:
`{"version": "3"}`, or `{"refused": "why"}` when asking again is useless. Any other end is worth
another try.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifact import Artifact
from pipeline.fingerprint import source_path
from pipeline.imports import imported_modules
from pipeline.mlflow_names import TAG_FINGERPRINT, TAG_MODEL, TAG_OUTPUT
from pipeline.mlflow_writer import REFUSALS, import_mlflow
from pipeline.outbox import first_line
from pipeline.stage import Json
from pipeline.store import Store

ARTIFACT = "model"
"""The name under which a served model finds its parts."""


def main() -> int:
    """Answer one request."""
    request = json.load(sys.stdin)
    import_mlflow()
    from mlflow.exceptions import MlflowException

    try:
        answer = log(request)
    except MlflowException as error:
        if error.error_code not in REFUSALS:
            raise
        answer = {"refused": first_line(error)}
    except (ImportError, SyntaxError, TypeError, ValueError) as error:
        answer = {"refused": f"{type(error).__name__}: {first_line(error)}"}
    print(json.dumps(answer))
    return 0


def log(request: Mapping[str, Json]) -> dict[str, str]:
    """Log and register the model unless its like is registered; the answer, as of the program.

    Args:
        request: "uri" and "experiment_id" of the tracking server, "run_id" of the node's run, and
            "model", a record as of `pipeline.model_record`.
    """
    import mlflow
    from mlflow.tracking import MlflowClient

    model, run_id = request["model"], request["run_id"]
    mlflow.set_tracking_uri(request["uri"])
    client = MlflowClient(tracking_uri=request["uri"])
    version = registered(client, model)
    if version is None:
        artifact = Store(model["store"]).find(model["node"], model["fingerprint"])
        if artifact is None or artifact.output_digest != model["output_digest"]:
            return {"refused": f"{model['node']}: its result is no longer in {model['store']}"}
        model_id = _log(client, request["experiment_id"], run_id, model, artifact)
        version = _register(client, model, run_id, model_id)
    client.set_tag(run_id, TAG_MODEL, f"models:/{model['name']}/{version}")
    return {"version": version}


def registered(client: Any, model: Mapping[str, Json]) -> str | None:
    """The version under which a model of the same fingerprint and output is registered."""
    token = None
    while True:
        page = client.search_model_versions(f"name = '{model['name']}'", page_token=token)
        for found in page:
            same = (TAG_FINGERPRINT, "fingerprint"), (TAG_OUTPUT, "output_digest")
            if all(found.tags.get(tag) == model[key] for tag, key in same):
                return str(found.version)
        token = page.token
        if not token:
            return None


def _log(
    client: Any,
    experiment_id: str,
    run_id: str,
    model: Mapping[str, Json],
    artifact: Artifact,
) -> str:
    """Upload the parts, the code and what MLflow wants to know; the model's id."""
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    logged = client.create_logged_model(
        experiment_id, name=model["name"], source_run_id=run_id, tags=_own_tags(model)
    )
    described = Model(
        artifact_path=logged.artifact_location,
        model_uuid=logged.model_id,
        model_id=logged.model_id,
        run_id=run_id,
    )
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = laid_out(Path(temporary), model, artifact, described)
            client.log_model_artifacts(logged.model_id, str(folder))
        client.finalize_logged_model(logged.model_id, "READY")
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    return str(logged.model_id)


def _own_tags(model: Mapping[str, Json]) -> dict[str, str]:
    return {key: model["tags"][key] for key in (TAG_FINGERPRINT, TAG_OUTPUT)}


def laid_out(
    temporary: Path, model: Mapping[str, Json], artifact: Artifact, described: Any
) -> Path:
    """The model in a folder as MLflow wants it; its parts are links, which an upload follows."""
    import mlflow.pyfunc
    import pandas

    names = [name for name in artifact.files() if name not in model["leave_out"]]
    stand_ins, folder = temporary / "stand-ins" / ARTIFACT, temporary / "saved"
    if artifact.is_local:
        parts = artifact.local_path()
    else:
        parts = artifact.fetch(temporary / "parts", names)
    for name in names:
        # Empty ones: MLflow copies what it is given here, and the upload would copy it again.
        (stand_ins / name).parent.mkdir(parents=True, exist_ok=True)
        (stand_ins / name).touch()
    mlflow.pyfunc.save_model(
        folder,
        mlflow_model=described,
        python_model=str(source_path(model["entry"])),
        artifacts={ARTIFACT: str(stand_ins)},
        code_paths=_code(temporary / "code", model["entry"], model["packages"]),
        signature=_signature(model),
        input_example=pandas.DataFrame(model["example"]),
        pip_requirements=model["requirements"],
        metadata={"clozeline": model["tags"]},
    )
    (placed,) = (folder / "artifacts").iterdir()
    for name in names:
        (placed / name).unlink()
        (placed / name).symlink_to((parts / name).absolute())
    for cache in list(folder.rglob("__pycache__")):
        shutil.rmtree(cache)
    described.model_size_bytes = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    described.save(folder / "MLmodel")
    return folder


def _code(folder: Path, entry: str, packages: Sequence[str]) -> list[str]:
    """Copy the modules that serving imports; one folder a package."""
    for name, source in imported_modules(entry, packages).items():
        target = folder.joinpath(*name.split("."))
        package = source.name == "__init__.py"
        target = target / source.name if package else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return sorted(str(path) for path in folder.iterdir())


def _signature(model: Mapping[str, Json]) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import AnyType

    types = {
        "string": DataType.string,
        "double": DataType.double,
        "long": DataType.long,
        "boolean": DataType.boolean,
        "any": AnyType(),
    }

    def schema(columns: Sequence[Mapping[str, Json]]) -> Any:
        return Schema([ColSpec(types[c["type"]], c["name"], c["required"]) for c in columns])

    options = [
        ParamSpec(name, types["string" if isinstance(default, str) else "long"], default)
        for name, default in model["options"].items()
    ]
    return ModelSignature(
        schema(model["takes"]), schema(model["gives"]), ParamSchema(options) if options else None
    )


def _register(client: Any, model: Mapping[str, Json], run_id: str, model_id: str) -> str:
    """Make the next version; its number."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

    try:
        client.create_registered_model(model["name"])
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(
        model["name"],
        source=f"models:/{model_id}",
        run_id=run_id,
        tags=model["tags"],
        description=model["about"] or None,
        model_id=model_id,
    )
    # As MLflow's own function leaves it: its pages lead from the model to the version.
    link = json.dumps([{"name": made.name, "version": made.version}])
    client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: link})
    return str(made.version)


if __name__ == "__main__":
    sys.exit(main())
