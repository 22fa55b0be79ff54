"""`clozeline doctor`: what this machine lacks, and what to do about it.

Each check looks at one thing and returns a `Check`. None of them starts Ray, changes anything or
reaches the network; torch is asked in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from pipeline.stage import Json

GB = 10**9
UI_PORT = 5000
RAY_PORTS = (6379, 8265)


@dataclass(frozen=True)
class Check:
    """One line of the doctor: what was looked at, how it is, and what to do when it is not ok."""

    name: str
    state: Literal["ok", "warn", "bad"]
    found: str
    advice: str = ""

    def as_json(self) -> Json:
        """As `doctor --json` prints it."""
        return asdict(self)


def examine(store: str, ui_port: int = UI_PORT) -> list[Check]:
    """Look at everything; `store` is the configured store (folder or URI)."""
    checks: list[Callable[[], list[Check]]] = [
        python_version,
        virtual_environment,
        packages,
        lambda: [cpus(), memory()],
        lambda: [disk("disk at the store", store)] if "://" not in store else [],
        lambda: [disk("disk for temporary files", _temporary_folder(), "RAY_TMPDIR")],
        shared_memory,
        lambda: [gpus()],
        lambda: [port(ui_port, "MLflow UI"), *(port(p, "Ray") for p in RAY_PORTS)],
        lambda: [socket_path(_temporary_folder())],
        file_descriptors,
    ]
    return [check for look in checks for check in look()]


def python_version() -> list[Check]:
    """The interpreter is one that the project is tested with."""
    version = platform.python_version()
    found = f"{version} ({sys.executable})"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return [Check("Python", "ok", found)]
    return [Check("Python", "bad", found, "use Python 3.11, 3.12 or 3.13")]


def virtual_environment() -> list[Check]:
    """Environments can be made; Debian and Ubuntu leave that to a package of its own."""
    if sys.prefix != sys.base_prefix:
        return [Check("environment", "ok", f"runs in {sys.prefix}")]
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not missing:
        return [Check("environment", "ok", "no environment active; python -m venv can make one")]
    advice = "install it: apt install python3-venv (Debian, Ubuntu), or use uv venv"
    return [Check("environment", "warn", f"Python lacks {' and '.join(missing)}", advice)]


def packages() -> list[Check]:
    """What the project needs is installed, in versions within its ranges."""
    from packaging.requirements import Requirement

    wrong: list[Check] = []
    found: list[str] = []
    for line in requirements():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        mend = f"pip install '{wanted}'"
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            wrong.append(Check(f"package {wanted.name}", "bad", "not installed", mend))
            continue
        if wanted.specifier.contains(version, prereleases=True):
            found.append(f"{wanted.name} {version}")
        else:
            text = f"{version}, outside of {wanted.specifier}"
            wrong.append(Check(f"package {wanted.name}", "bad", text, mend))
    return [*wrong, Check("packages", "ok", ", ".join(found) or "none known")]


def requirements() -> list[str]:
    """The project's requirements: of the installed distribution, or of the checkout."""
    try:
        declared = metadata.requires("clozeline")
    except metadata.PackageNotFoundError:
        declared = None
    if declared is None:
        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        if not project.is_file():
            return []
        declared = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
    return [line for line in declared if "extra ==" not in line]


def cpus() -> Check:
    """CPUs that this process may use."""
    from pipeline.cluster import usable_cpus

    return Check("CPUs", "ok", f"{usable_cpus()} to use, {os.cpu_count()} in the machine")


def memory() -> Check:
    """Memory that is free, within the limit of a container."""
    import psutil

    from pipeline.cluster import memory_limit

    total = memory_limit()
    free = min(psutil.virtual_memory().available, total)
    found = f"{free / GB:.1f} GB free of {total / GB:.1f} GB"
    if free < 1.5 * GB:
        return Check("memory", "bad", found, "2 GB are needed: end other programs")
    if free < 4 * GB:
        advice = "enough for small runs; lower rounding.micro_batch_tokens, cluster.num_cpus"
        return Check("memory", "warn", found, advice)
    return Check("memory", "ok", found)


def disk(name: str, folder: str, setting: str = "store") -> Check:
    """Room, and leave to write, at `folder` or the nearest folder above it that is there.

    Args:
        name: of the check.
        folder: to look at.
        setting: which names another.
    """
    place = Path(folder).expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / GB:.1f} GB free at {place}"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Check(
            name, "bad", f"{place} cannot be written to", f"choose another: {setting}=FOLDER"
        )
    if free < 1 * GB:
        return Check(name, "bad", found, f"make room, or choose another folder: {setting}=FOLDER")
    if free < 5 * GB:
        return Check(name, "warn", found, "a run on a large corpus needs about twice its size")
    return Check(name, "ok", found)


def shared_memory() -> list[Check]:
    """/dev/shm, where Ray keeps objects; too small and Ray falls back to the disk."""
    place = Path("/dev/shm")
    if not place.is_dir():
        if sys.platform != "linux":
            return []
        return [Check("/dev/shm", "warn", "not there", "Ray will use the disk, which is slower")]
    free = shutil.disk_usage(place).free
    found = f"{free / GB:.1f} GB free"
    if free >= GB:
        return [Check("/dev/shm", "ok", found)]
    advice = "in a container: docker run --shm-size=4g; else cluster.object_store_mb=200"
    return [Check("/dev/shm", "warn", found, advice)]


def gpus() -> Check:
    """GPUs, and whether the installed torch can use them."""
    listed = _run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    cards = listed.splitlines() if listed else []
    asked = "import torch; print(torch.__version__, torch.cuda.device_count())"
    version, _, count = (_run([sys.executable, "-c", asked]) or "").rpartition(" ")
    if not version:
        return Check("GPUs", "bad", "torch cannot be imported", 'try: python -c "import torch"')
    if not cards and count == "0":
        return Check("GPUs", "ok", f"none; training runs on the CPU (torch {version})")
    if count == "0":
        advice = "install a CUDA build of torch that fits the driver: see pytorch.org"
        return Check("GPUs", "warn", f"{'; '.join(cards)}, but torch {version} sees none", advice)
    return Check("GPUs", "ok", f"{count} for torch {version}: {'; '.join(cards) or 'CUDA'}")


def port(number: int, user: str) -> Check:
    """Whether a port on loopback is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            advice = (
                f"something listens there; clozeline ui --port {number + 1}"
                if user == "MLflow UI"
                else "a Ray of your own takes another; to join the one there: cluster=existing"
            )
            return Check(f"port {number}", "warn", f"taken ({user})", advice)
    return Check(f"port {number}", "ok", f"free ({user})")


def socket_path(temporary: str) -> Check:
    """Whether Ray's Unix sockets fit under the folder for temporary files."""
    from pipeline.cluster import SESSION_PATH_BYTES, SOCKET_PATH_BYTES

    size = len(os.fsencode(temporary)) + SESSION_PATH_BYTES
    found = f"{size} of {SOCKET_PATH_BYTES} bytes under {temporary}"
    if size <= SOCKET_PATH_BYTES:
        return Check("socket paths", "ok", found)
    advice = "set a shorter folder: export RAY_TMPDIR=/tmp"
    if os.access("/tmp", os.W_OK):
        return Check("socket paths", "warn", f"{found}; Ray will use /tmp/ray", advice)
    return Check("socket paths", "bad", found, advice)


def file_descriptors() -> list[Check]:
    """The limit of open files: Ray opens many sockets."""
    try:
        import resource
    except ImportError:
        return []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= 4096:
        return [Check("open files", "ok", f"limit {soft}")]
    found = f"limit {soft} (at most {hard})"
    return [Check("open files", "warn", found, "ulimit -n 65536 before the run")]


def lines(checks: Sequence[Check]) -> list[str]:
    """The checks as text, one line each and one more with the mend where something is not ok."""
    width = max(len(check.name) for check in checks)
    text: list[str] = []
    for check in checks:
        text.append(f"{check.state:<5}{check.name:<{width}}  {check.found}")
        if check.advice:
            text.append(f"{'':<5}{'':<{width}}  -> {check.advice}")
    return text


def _temporary_folder() -> str:
    """Where Ray makes its session folders."""
    return os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()


def _run(command: Sequence[str]) -> str | None:
    """What a command prints; None when it is not there, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
