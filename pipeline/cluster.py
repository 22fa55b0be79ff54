"""Ray: one of our own, or a cluster that is there already. Started only when a node needs it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from pipeline.capacity import memory_limit, usable_cpus, visible_gpus
from pipeline.config import ClusterConfig
from pipeline.ray_address import check_token, find_address
from pipeline.services import Capacity
from pipeline.stage import StageError, UserError

__all__ = ["Cluster", "memory_limit", "usable_cpus", "visible_gpus"]

STAGED_PREFIX = "clozeline-code-"
SHIPPED = ("pipeline", "stages", "model", "conf")
"""What every worker gets, and nothing else: packages that lie beside this one."""

MEGABYTE = 1_000_000
SOCKET_PATH_BYTES = 107
SESSION_PATH_BYTES = len("/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
STOP_SECONDS = 5.0

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    # A node's thread that outlives the run must not start a Ray of its own.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # `uv run` would make Ray pack the whole folder for the workers and install anew there.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Of our own Ray: by default workers are niced by 15, and any busy process beside them takes
    # 97 % of its CPU. They run with the priority of the command, which a person may nice.
    "RAY_worker_niceness": "0",
}

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""What says how threads of GNU OpenMP, which torch brings on Linux, wait for each other."""

SPIN_COUNT = "1000"
"""Looks that a waiting thread takes before it sleeps: some twenty microseconds.

By default it spins for milliseconds, after each of hundreds of parallel loops a step. Beside busy
processes it wastes CPU time that its own fellows wait for, and training with two threads fell to
a few per cent of its speed.
"""


class Cluster:
    """The Ray that this run uses.

    Args:
        config: the `cluster` group.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._started = False
        self._staged: Path | None = None
        self._roots: set[psutil.Process] = set()

    @property
    def own(self) -> bool:
        """Whether Ray is ours to start and stop."""
        return self._config.address is None

    def capacity(self) -> Capacity:
        """What this run may use: of the machine without starting Ray, else of the cluster."""
        if self.own:
            cpus, gpus, memory = float(usable_cpus()), float(visible_gpus()), memory_limit()
        else:
            self.start()
            import ray

            total = ray.cluster_resources()
            cpus, gpus = total.get("CPU", 0.0), total.get("GPU", 0.0)
            memory = int(total.get("memory", 0))
        if self._config.num_cpus is not None:
            cpus = float(self._config.num_cpus) if self.own else min(cpus, self._config.num_cpus)
        if self._config.num_gpus is not None:
            gpus = min(gpus, float(self._config.num_gpus))
        return Capacity(cpus, gpus, memory)

    def start(self) -> None:
        """Start or join Ray unless that is done.

        Raises:
            UserError: `cluster.address` makes no sense, or no such cluster is there.
            StageError: Ray does not start, or the cluster does not let us in.
        """
        with self._lock:
            if self._started:
                return
            address = None if self.own else find_address(str(self._config.address))
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            self._staged = stage_code()
            try:
                if address is None:
                    self._start_own()
                else:
                    self._join(address)
                hush_ray()
            except BaseException:
                shutil.rmtree(self._staged, ignore_errors=True)
                raise
            self._started = True

    def stop(self) -> None:
        """Leave the cluster; end every process of our own Ray. Harmless when nothing runs."""
        with self._lock:
            if not self._started:
                return
            self._started = False
            import ray

            processes = with_descendants(self._roots)
            ray.shutdown()
            _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
            for process in alive:
                # Ray's shutdown does not wait; a worker in native code may outlive it.
                process.kill()
            psutil.wait_procs(alive, timeout=STOP_SECONDS)
            if self._staged is not None:
                shutil.rmtree(self._staged, ignore_errors=True)

    def _start_own(self) -> None:
        import ray

        capacity = self.capacity()
        before = children()
        try:
            ray.init(
                # "local": an address in RAY_ADDRESS would win otherwise.
                address="local",
                num_cpus=int(capacity.cpus),
                num_gpus=int(capacity.gpus),
                object_store_memory=self._object_store_bytes(),
                include_dashboard=False,
                _temp_dir=short_temporary_folder(),
                **self._common(),
            )
        except Exception as error:
            raise StageError(
                f"Ray does not start on this machine: {_line(error)} (`clozeline doctor` looks "
                "for the cause)"
            ) from error
        finally:
            self._roots = children() - before

    def _join(self, address: str) -> None:
        check_token(address)
        import ray

        try:
            ray.init(address=address, **self._common())
        except Exception as error:
            raise StageError(f"cannot join the Ray cluster at {address}: {_line(error)}") from error

    def _common(self) -> dict[str, Any]:
        return {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "runtime_env": {
                "working_dir": str(self._staged),
                "env_vars": worker_environment(os.environ),
            },
        }

    def _object_store_bytes(self) -> int:
        if self._config.object_store_mb is not None:
            return self._config.object_store_mb * MEGABYTE
        shared = Path("/dev/shm")
        free = shutil.disk_usage(shared).free if shared.is_dir() else 0
        wanted = min(max(memory_limit() // 10, 200 * MEGABYTE), 8_000 * MEGABYTE)
        # With a small /dev/shm (a container's default is 64 MB) Ray uses a file instead.
        return min(wanted, int(free * 0.8)) if free > 300 * MEGABYTE else 200 * MEGABYTE


def worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of workers, beside those of the node that they run on.

    Args:
        given: the driver's environment: what a person says there of `WAITING` is passed on.
    """
    return {n: given[n] for n in WAITING if n in given} or {"GOMP_SPINCOUNT": SPIN_COUNT}


def stage_code() -> Path:
    """Copy the packages that workers need into a new folder, which becomes their working folder.

    Ray puts the driver's current folder first on the workers' path, where a person's own `model/`
    would win; with a working folder of their own, ours do.
    """
    home = Path(__file__).resolve().parent.parent
    _sweep_staged_code()
    target = Path(tempfile.mkdtemp(prefix=f"{STAGED_PREFIX}{os.getpid()}-"))
    for name in SHIPPED:
        if (home / name).is_dir():
            shutil.copytree(
                home / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
    return target


def _sweep_staged_code() -> None:
    """Remove what runs that were killed left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{STAGED_PREFIX}*"):
        pid = folder.name.removeprefix(STAGED_PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def short_temporary_folder() -> str | None:
    """A folder for Ray's sockets when the default's name is too long; None for the default.

    Raises:
        UserError: there is no short folder that can be written to.
    """
    default = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(os.fsencode(default)) + SESSION_PATH_BYTES <= SOCKET_PATH_BYTES:
        return None
    for folder in ("/tmp", "/var/tmp"):
        if os.access(folder, os.W_OK):
            return f"{folder}/ray"
    raise UserError(
        f"the temporary folder {default} has too long a name for Ray's sockets "
        f"({SOCKET_PATH_BYTES} bytes in all): set RAY_TMPDIR to a short one"
    )


def children() -> set[psutil.Process]:
    """The processes that this one started."""
    return set(psutil.Process().children())


def with_descendants(roots: set[psutil.Process]) -> list[psutil.Process]:
    """Processes and all that descend from them, those that are gone left out."""
    found = []
    for root in roots:
        try:
            found += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def hush_ray() -> None:
    """Ray, its Data and its Train draw no bars and print no lines; their logs stay in files."""
    import ray

    # What it prints of lost nodes and retries (twenty lines each) goes past `log_to_driver`.
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False
    warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
    if importlib.util.find_spec("ray.data") is not None:
        from ray.data import DataContext

        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.enable_operator_progress_bars = False
        context.print_on_execution_start = False
        context.use_ray_tqdm = False
    for name in ("ray.data", "ray.train"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            if "File" not in type(handler).__name__:
                logger.removeHandler(handler)


def _line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:300]
