"""What the nodes of all training stages ask of the cluster, for the catalogue."""

from __future__ import annotations

import math

from pipeline.config import ClusterConfig
from pipeline.stage import Json, Resources


def cluster_settings(cluster: ClusterConfig) -> dict[str, Json]:
    """The settings `cluster` of a training node, as `training_workers.train_on_workers` reads."""
    return {
        "train_workers": cluster.workers_range,
        "num_cpus": cluster.num_cpus,
        "num_gpus": cluster.num_gpus,
        # A cluster that others keep may get more machines while work waits for them.
        "may_grow": cluster.address is not None,
        "cpus_per_worker": cluster.cpus_per_worker,
        "device": cluster.device,
    }


def training_resources(cluster: ClusterConfig) -> Resources:
    """What must be free before training begins.

    All CPUs where a worker's are not said: the number of threads changes the last bits, and must
    not follow from what runs beside.
    """
    least, _ = cluster.workers_range
    return Resources(
        cpus=math.inf if cluster.cpus_per_worker is None else least * cluster.cpus_per_worker,
        gpus=0.0 if cluster.device == "cpu" else math.inf,
    )
