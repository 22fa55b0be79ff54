"""Configuration: pydantic models of the machine's own groups, and Hydra's compose around them.

Hydra puts the YAML files of `conf/` and the command line together; pydantic says what is allowed.
Hydra's own checks of keys are passed by (every `key=value` may add a key), so that there is one
judge of keys, types and ranges, and one kind of message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipeline.stage import Json, UserError, flatten

if TYPE_CHECKING:
    from pipeline.overrides import Override

PACKAGED = Path(__file__).resolve().parent.parent / "conf"
"""Our groups: beside the package in a checkout and in an installed wheel alike."""

COMMAND_LINE = "command line"
DEFAULT = "default"


class Group(BaseModel):
    """Base of every configuration group: frozen, strict about unknown keys."""

    # Numbers are finite: JSON, in which configs are fingerprinted, has no others.
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


Workers = Annotated[int, Field(ge=1)]


class ClusterConfig(Group):
    """Where the work runs. Changes no data; in training the last bits, and what dropout draws."""

    address: str | None = Field(
        None,
        description="null: a Ray of our own, stopped at the end; HOST:PORT or auto: that cluster.",
    )
    num_cpus: Annotated[int, Field(ge=1)] | None = Field(
        None, description="CPUs that this run may use; null: all of the machine or cluster."
    )
    num_gpus: Annotated[int, Field(ge=0)] | None = Field(
        None, description="GPUs that this run may use; null: all of the machine or cluster."
    )
    train_workers: Workers | tuple[Workers, Workers] = Field(
        1,
        description="Training processes; the mathematics does not depend on it. [2, 8]: as many "
        "as there is room for, at least 2, and more when nodes join.",
    )
    cpus_per_worker: Annotated[float, Field(gt=0)] | None = Field(
        None, description="CPUs of a training process; null: an even share of what is granted."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where training runs.")
    object_store_mb: Annotated[int, Field(ge=80)] | None = Field(
        None, description="Ray's shared memory on this machine in MB; null: sized to the machine."
    )

    @property
    def workers_range(self) -> tuple[int, int]:
        """The least and the most training processes."""
        workers = self.train_workers
        return (workers, workers) if isinstance(workers, int) else workers

    @field_validator("train_workers")
    @classmethod
    def _least_first(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(
                f"cluster.train_workers=[{value[0]}, {value[1]}] is no range: the least comes "
                f"first, [{value[1]}, {value[0]}]"
            )
        return value


class TrackingConfig(Group):
    """MLflow. Never changes a result."""

    enabled: bool = Field(True, description="Track runs in MLflow.")
    uri: str | None = Field(
        None, description="MLflow tracking URI; null: sqlite in ./runs/mlflow.db."
    )
    artifact_location: str | None = Field(
        None, description="Where a new experiment keeps artifacts; null: ./runs/mlartifacts."
    )
    experiment: str = Field("clozeline", description="MLflow experiment: one a project.")
    run_name: str | None = Field(None, description="Name of the parent run; null: made up.")


class RunConfig(Group):
    """What the machine itself needs of any config; a catalogue extends it with its groups."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        12345, description="Every seed that is not set by itself derives from this one."
    )
    store: Annotated[str, Field(min_length=1)] = Field(
        "runs/store", description="Folder or URI (s3://, gs://) of the artifacts."
    )
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()


@dataclass(frozen=True)
class Composed:
    """A validated config, and where its values come from."""

    config: RunConfig
    _trace: Callable[[], Mapping[str, str]]

    @cached_property
    def origins(self) -> Mapping[str, str]:
        """Dotted key of each leaf -> where the value comes from.

        "command line", "default" (of the model), "conf/mask/per_token.yaml" (one of our files) or
        the path of a file of `--conf-dir`.
        """
        origins = self._trace()
        leaves = dict(flatten(self.config.model_dump(mode="json")))
        return {key: origin_of(key, origins) for key in leaves}


def compose(overrides: Sequence[str], conf_dir: Path | None, model: type[RunConfig]) -> Composed:
    """Compose `conf/` (under `conf_dir`, where given) with `overrides` and validate it by `model`.

    Args:
        overrides: as typed: `mask.probability=0.2`, `mask=whole_word`, `+experiment=smoke`.
        conf_dir: a person's own groups; a file there wins over ours of the same name.
        model: the catalogue's config model.

    Raises:
        UserError: with one message that names the key, its value, where it was set and the mend.
    """
    from pipeline.explain import explain
    from pipeline.overrides import find_groups, read_override

    if conf_dir is not None and not conf_dir.is_dir():
        raise UserError(f"--conf-dir {conf_dir}: there is no such folder")
    folders = [PACKAGED] if conf_dir is None else [conf_dir, PACKAGED]
    groups = find_groups(folders)
    read = [read_override(text, groups) for text in overrides]
    asked = [override.hydra for override in read]

    def trace() -> dict[str, str]:
        return _origins(_files(folders, asked), read)

    try:
        return Composed(model.model_validate(_tree(folders, asked)), trace)
    except ValidationError as error:
        raise UserError(explain(error, model, trace(), groups)) from None


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """The origin of `key`, or of the nearest key above it that was set as a whole."""
    while key not in origins and "." in key:
        key = key.rpartition(".")[0]
    return origins.get(key, DEFAULT)


@dataclass(frozen=True)
class _File:
    path: Path
    label: str
    package: str


@contextmanager
def _hydra(folders: Sequence[Path], overrides: Sequence[str]) -> Iterator[list[str]]:
    """Hydra, ready to compose from `folders` (the first wins); gives the overrides to pass it."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    first = next(f for f in folders if (f / "config.yaml").is_file())
    after = [f"'file://{f.resolve()}'" for f in folders[folders.index(first) + 1 :]]
    with initialize_config_dir(str(first.resolve()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        for folder in folders[: folders.index(first)]:
            # Found before ours; `hydra.searchpath` can only come after.
            loader.get_search_path().prepend("conf-dir", f"file://{folder.resolve()}")
        yield [f"hydra.searchpath=[{','.join(after)}]", *overrides]


def _tree(folders: Sequence[Path], overrides: Sequence[str]) -> dict[str, Json]:
    """The files and the overrides put together."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with _hydra(folders, overrides) as asked:
            merged = hydra_compose("config", asked)
        tree = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        raise UserError(_yaml_message(error)) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_first_lines(error)) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _files(folders: Sequence[Path], overrides: Sequence[str]) -> list[_File]:
    """The files that were put together, in order: later ones win."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    with _hydra(folders, overrides) as asked:
        loader = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list("config", asked, RunMode.RUN).defaults
    return [
        _find(folders, default.config_path, default.package or "")
        for default in defaults
        if default.config_path and not default.config_path.startswith("hydra/")
    ]


def _find(folders: Sequence[Path], name: str, package: str) -> _File:
    for folder in folders:
        for path in (folder / f"{name}.yaml", folder / f"{name}.yml"):
            if path.is_file():
                label = f"conf/{path.relative_to(folder)}" if folder == PACKAGED else str(path)
                return _File(path, label, package)
    return _File(folders[-1] / f"{name}.yaml", name, package)


def _origins(files: Sequence[_File], overrides: Sequence[Override]) -> dict[str, str]:
    from omegaconf import OmegaConf

    origins: dict[str, str] = {}
    for file in files:
        content: Any = OmegaConf.to_container(OmegaConf.load(file.path), resolve=False)
        if not isinstance(content, dict):
            raise UserError(f"{file.label}: holds no keys and values (`probability: 0.15`)")
        content.pop("defaults", None)
        prefix = f"{file.package}." if file.package else ""
        origins |= {key: file.label for key, _ in flatten(content, prefix)}
    for override in overrides:
        if not override.is_group:
            origins[override.key] = DEFAULT if override.deletes else COMMAND_LINE
    return origins


def _yaml_message(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a file"
    return f"{where}: not valid YAML: {problem}"


def _first_lines(error: BaseException) -> str:
    """What Hydra says, cut to the lines that a person needs."""
    said = [line for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__ or error.__context__
    if cause is not None:
        said += [line for line in str(cause).splitlines() if line.strip() and line not in said]
    return "\n".join(["the configuration cannot be put together:", *said[:7]])
