"""Configuration: pydantic models of the machine's own groups, and Hydra's compose around them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Group(BaseModel):
    """Base of every configuration group: frozen, strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ClusterConfig(Group):
    """Where the work runs. Never changes a result."""

    address: str | None = Field(
        None,
        description="null: a Ray of our own, stopped at the end. HOST:PORT or 'auto': that cluster.",
    )
    num_cpus: Annotated[int, Field(ge=1)] | None = Field(
        None, description="CPUs that this run may use; null: all of the machine or cluster."
    )
    num_gpus: Annotated[int, Field(ge=0)] | None = Field(
        None, description="GPUs that this run may use; null: all of the machine or cluster."
    )
    train_workers: Annotated[int, Field(ge=1)] = Field(
        1, description="Training processes; the mathematics does not depend on it."
    )
    cpus_per_worker: Annotated[float, Field(gt=0)] | None = Field(
        None, description="CPUs of a training process; null: an even share of what is granted."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where training runs.")
    object_store_mb: Annotated[int, Field(ge=80)] | None = Field(
        None, description="Ray's shared memory on this machine in MB; null: sized to the machine."
    )


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
    store: str = Field("runs/store", description="Folder or URI (s3://, gs://) of the artifacts.")
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()
