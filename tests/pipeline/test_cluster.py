"""Ray, for real: the staged working folder, quiet, and nothing left behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from pipeline import cluster, ray_address
from pipeline.capacity import listed_gpus, visible_gpus
from pipeline.cluster import Cluster, short_temporary_folder, stage_code
from pipeline.config import ClusterConfig
from pipeline.ray_address import find_address
from pipeline.stage import StageError, UserError
from tests.ray_by_hand import TOKEN, RayByHand

ROOT = Path(__file__).resolve().parents[2]


def config(**values: object) -> ClusterConfig:
    return ClusterConfig.model_validate({"num_cpus": 1, "object_store_mb": 100, **values})


def drive(code: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Run a driver of its own: Ray reads much of its environment once a process."""
    head = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def of_session(marker: str) -> list[psutil.Process]:
    """Processes whose command line or working folder names a Ray session."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.cmdline()) or marker in process.cwd():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_how_threads_wait_is_said_unless_a_person_did() -> None:
    assert cluster.worker_environment({"PATH": "/bin"}) == {"GOMP_SPINCOUNT": "1000"}
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        assert cluster.worker_environment({"PATH": "/bin", **said}) == said


def test_only_our_packages_are_shipped() -> None:
    folder = stage_code()
    try:
        names = {path.name for path in folder.iterdir()}
        assert names == {"pipeline", "stages", "model", "conf"}
        assert (folder / "pipeline" / "templates" / "report.html.j2").exists()
        assert not list(folder.rglob("__pycache__"))
    finally:
        cluster.shutil.rmtree(folder)


def test_capacity_of_the_machine_needs_no_ray() -> None:
    code = """
    from pipeline.cluster import Cluster
    from pipeline.config import ClusterConfig
    all_of_it = Cluster(ClusterConfig()).capacity()
    assert all_of_it.cpus >= 1 and all_of_it.memory_bytes > 1e8, all_of_it
    assert Cluster(ClusterConfig(num_cpus=7, num_gpus=0)).capacity().cpus == 7
    assert not {"ray", "torch", "mlflow"} & set(sys.modules)
    """
    driver = drive(code, ROOT)
    assert driver.communicate(timeout=60) == ("", "")
    assert driver.returncode == 0


def test_gpus_are_counted_as_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == 0


def test_gpus_as_the_driver_lists_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    listed_gpus.cache_clear()
    assert listed_gpus() == 0
    listed_gpus.cache_clear()
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA RTX A2000 (UUID: GPU-1)'\necho 'GPU 1: x'\n")
    tool.chmod(0o755)
    assert listed_gpus() == 2
    tool.unlink()
    # Asked once: a run looks several times a second.
    assert listed_gpus() == 2
    listed_gpus.cache_clear()


def test_a_long_temporary_folder_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    assert short_temporary_folder() is None
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "long" * 12)
    assert short_temporary_folder() == "/tmp/ray"


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:port", "http://host:1"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        find_address(address)


def test_a_cluster_that_is_not_there_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"):
        Cluster(config(address=address)).start()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match="ray start --head"):
        Cluster(config(address="auto")).start()
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"):
        Cluster(config(address="auto")).start()


USE = """
    import os, psutil, ray
    from pipeline.cluster import Cluster
    from pipeline.config import ClusterConfig
    cluster = Cluster(ClusterConfig.model_validate({config!r}))
    before = set(os.listdir({temporary!r}))
    cluster.start()
    cluster.start()

    @ray.remote
    def where():
        import model
        import os
        return model.__file__, os.getcwd(), os.environ["GOMP_SPINCOUNT"], os.nice(0)

    file, folder, spins, niceness = ray.get(where.remote())
    assert int(spins) > 0 and (niceness == os.nice(0) or not cluster.own), (spins, niceness)
    assert file.startswith(folder) and "working_dir_files" in folder, (file, folder)
    import ray.data
    rows = ray.data.from_items(list(range(4)), override_num_blocks=2).map_batches(lambda b: b)
    assert rows.materialize().count() == 4
    print(folder, cluster.capacity().cpus, flush=True)
    cluster.stop()
    cluster.stop()
    assert psutil.Process().children(recursive=True) == []
    left = {{n for n in set(os.listdir({temporary!r})) - before if n.startswith("clozeline")}}
    assert not left, left
"""


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    """A person's folder whose own packages have our names."""
    for name in ("model", "stages", "pipeline"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    return tmp_path


@pytest.mark.slow
def test_own_cluster_after_kill_9_of_another_runs_our_code_quietly_and_leaves_nothing(
    other_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code = f"""
    import time
    from pipeline.cluster import Cluster
    from pipeline.config import ClusterConfig
    Cluster(ClusterConfig.model_validate({config().model_dump()!r})).start()
    import ray
    print(ray._private.worker._global_node.get_session_dir_path(), flush=True)
    time.sleep(120)
    """
    victim = drive(code, other_model)
    assert victim.stdout is not None
    killed = Path(victim.stdout.readline().strip()).name
    assert of_session(killed)
    victim.kill()
    victim.communicate()

    temporary = tmp_path_factory.mktemp("t")
    code = USE.format(config=config().model_dump(), temporary=str(temporary))
    # A cluster that somebody else's environment names must not be taken.
    driver = drive(code, other_model, RAY_ADDRESS="127.0.0.1:1", TMPDIR=str(temporary))
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    assert err == ""
    match = re.fullmatch(r"(/\S+?/session_\S+?)/\S+ 1\.0\n", out)
    assert match is not None, out
    assert of_session(Path(match[1]).name) == []

    deadline = time.monotonic() + 20
    while of_session(killed) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert of_session(killed) == []


@pytest.mark.slow
def test_an_existing_cluster_wants_its_token_and_then_runs_our_code(
    shared_ray: RayByHand, other_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    address = shared_ray.address
    join = f"""
    from pipeline.cluster import Cluster
    from pipeline.config import ClusterConfig
    from pipeline.stage import StageError
    try:
        Cluster(ClusterConfig(address={address!r})).start()
    except StageError as error:
        print(error)
    """
    began = time.monotonic()
    without = drive(join, other_model, HOME=str(home))
    out, err = without.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert err == "" and out.count("\n") == 1 and "RAY_AUTH_MODE=token" in out, (out, err)

    (home / ".ray").mkdir(exist_ok=True)
    (home / ".ray" / "auth_token").write_text(TOKEN)
    code = USE.format(config=config(address=address).model_dump(), temporary=str(home))
    driver = drive(code, other_model, HOME=str(home))
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    assert out.startswith(str(shared_ray.session))
    assert err == ""
    assert shared_ray.runs()


@pytest.mark.slow
def test_a_port_that_is_not_rays_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "JOIN_SECONDS", 4.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(StageError, match=f"cannot join the Ray cluster at {address}: ") as e:
            Cluster(config(address=address)).start()
    assert "\n" not in str(e.value)


def test_code_of_killed_runs_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"clozeline-code-{gone.pid}-x").mkdir()
    (tmp_path / f"clozeline-code-{os.getpid()}-x").mkdir()
    staged = stage_code()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([f"clozeline-code-{os.getpid()}-x", staged.name])
    assert (staged / "model/__init__.py").is_file()
