"""Ray: one of our own, or a cluster that is there already. Started only when a node needs it."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

from pipeline.config import ClusterConfig
from pipeline.services import Capacity
from pipeline.stage import StageError, UserError

SHIPPED = ("pipeline", "stages", "model", "conf")
"""What every worker gets, and nothing else: packages that lie beside this one."""

MEGABYTE = 1_000_000
SOCKET_PATH_BYTES = 107
SESSION_PATH_BYTES = len("/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
CONNECT_SECONDS = 5.0
JOIN_SECONDS = 20.0
STOP_SECONDS = 5.0
NO_TOKEN = (
    "it wants its token: set RAY_AUTH_MODE=token and put the head node's token into "
    "~/.ray/auth_token (or into RAY_AUTH_TOKEN)"
)

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    # `uv run` would make Ray pack the whole folder for the workers and install anew there.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


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
                hush_ray_data()
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
            "runtime_env": {"working_dir": str(self._staged)},
        }

    def _object_store_bytes(self) -> int:
        if self._config.object_store_mb is not None:
            return self._config.object_store_mb * MEGABYTE
        shared = Path("/dev/shm")
        free = shutil.disk_usage(shared).free if shared.is_dir() else 0
        wanted = min(max(memory_limit() // 10, 200 * MEGABYTE), 8_000 * MEGABYTE)
        # With a small /dev/shm (a container's default is 64 MB) Ray uses a file instead.
        return min(wanted, int(free * 0.8)) if free > 300 * MEGABYTE else 200 * MEGABYTE


def stage_code() -> Path:
    """Copy the packages that workers need into a new folder, which becomes their working folder.

    Ray puts the driver's current folder first on the workers' path, where a person's own `model/`
    would win; with a working folder of their own, ours do.
    """
    home = Path(__file__).resolve().parent.parent
    target = Path(tempfile.mkdtemp(prefix="clozeline-code-"))
    for name in SHIPPED:
        if (home / name).is_dir():
            shutil.copytree(
                home / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
    return target


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity and the container's quota counted in."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cpus = min(cpus, max(1, int(int(quota[0]) / int(quota[1]))))
    else:
        old_quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        if old_quota and period and int(old_quota) > 0:
            cpus = min(cpus, max(1, int(int(old_quota) / int(period))))
    return cpus


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's or the container's."""
    total = int(psutil.virtual_memory().total)
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read(file)
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def visible_gpus() -> int:
    """NVIDIA GPUs that this process may use, counted without loading any library."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = Path("/dev")
    there = sum(1 for d in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", d.name))
    if wanted is None:
        return there
    named = [w for w in wanted.split(",") if w.strip() not in ("", "-1", "NoDevFiles")]
    return min(there, len(named))


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


def find_address(address: str) -> str:
    """HOST:PORT of the cluster that `cluster.address` means, once something listens there.

    Raises:
        UserError: it is of another form, or nothing listens.
    """
    if address == "auto":
        current = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
        found = os.environ.get("RAY_ADDRESS") or _read(str(current))
        if not found:
            raise UserError(
                "cluster.address=auto, but no Ray cluster runs on this machine: start one with "
                "`ray start --head`, or name it with cluster.address=HOST:PORT"
            )
        address = found
    match = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d+)", address)
    if match is None:
        raise UserError(
            f"cluster.address={address} is not HOST:PORT or auto (`ray status` on the head node "
            "shows it; the port is 6379 unless set)"
        )
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): check "
            "cluster.address, and `ray status` on the head node"
        ) from error
    return address


def check_token(address: str) -> None:
    """See whether the cluster lets us in, before Ray waits long or aborts this process.

    Ray ends the process when it wants a token and finds none, so a child asks. `RAY_AUTH_MODE`
    is set to token when the cluster wants one, a token is there and nothing else was said.

    Raises:
        StageError: it wants a token that we lack, or it does not answer as Ray does.
    """
    refusal = _probe(address)
    if refusal == NO_TOKEN and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        refusal = _probe(address)
        if refusal is not None:
            del os.environ["RAY_AUTH_MODE"]
        elif (loaded := sys.modules.get("ray._raylet")) is not None:
            # Ray read its environment when it was loaded; this is how its own code renews that.
            loaded.Config.initialize("")
    if refusal is not None:
        raise StageError(f"cannot join the Ray cluster at {address}: {refusal}")


def _probe(address: str) -> str | None:
    """Connect to the cluster in a child process; what went wrong, or None."""
    code = (
        "import sys; from ray._raylet import GcsClient; "
        "GcsClient(address=sys.argv[1]).internal_kv_get(b'session_name', b'session', timeout=10)"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, address],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {JOIN_SECONDS:.0f} s; is it Ray's port?"
    if ended.returncode == 0:
        return None
    if "authentication token" in ended.stderr.lower():
        return NO_TOKEN
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return (lines or ["unknown"])[-1][:300]


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


def hush_ray_data() -> None:
    """Ray Data and Train draw no bars and print no lines; their logs stay in Ray's files."""
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


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:300]
