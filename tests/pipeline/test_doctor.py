"""What the doctor sees, and that it says what to do."""

import os
import socket
import sys
from pathlib import Path

import pytest

from pipeline import doctor
from pipeline.cluster import SOCKET_PATH_BYTES


def test_this_machine_is_looked_at_in_full(tmp_path: Path) -> None:
    checks = doctor.examine(str(tmp_path / "runs" / "store"))
    names = " ".join(check.name for check in checks)
    for topic in ("Python", "environment", "packages", "CPUs", "memory", "disk at the store"):
        assert topic in names
    for topic in ("GPUs", "port 5000", "socket paths", "open files"):
        assert topic in names
    assert not (tmp_path / "runs").exists()
    for check in checks:
        assert bool(check.advice) == (check.state != "ok")


def test_this_python_is_fine() -> None:
    assert [check.state for check in doctor.python_version()] == ["ok"]


def test_old_python_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 2))
    (check,) = doctor.python_version()
    assert check.state == "bad" and "3.11" in check.advice


def test_missing_venv_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    (check,) = doctor.virtual_environment()
    assert check.state == "warn" and "python3-venv" in check.advice


@pytest.mark.parametrize(
    ("requirement", "state", "word"),
    [
        ("pytest>=8", "ok", "pytest"),
        ("pytest<2", "bad", "pip install 'pytest<2'"),
        ("nosuchdistribution-xyz>=1", "bad", "not installed"),
        ("nosuchdistribution-xyz>=1; python_version < '3'", "ok", "none known"),
    ],
)
def test_packages(monkeypatch: pytest.MonkeyPatch, requirement: str, state: str, word: str) -> None:
    monkeypatch.setattr(doctor, "requirements", lambda: [requirement])
    first = doctor.packages()[0]
    assert first.state == state
    assert word in first.found + first.advice


def test_requirements_are_the_projects() -> None:
    names = " ".join(doctor.requirements())
    for package in ("ray", "torch", "mlflow", "pyarrow", "pydantic"):
        assert package in names
    assert "pytest" not in names


def test_disk_looks_above_a_folder_that_is_not_there(tmp_path: Path) -> None:
    check = doctor.disk("disk", str(tmp_path / "a" / "b"))
    assert str(tmp_path) in check.found
    assert not (tmp_path / "a").exists()


def test_disk_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    check = doctor.disk("disk", str(tmp_path / "store" / "inside"))
    assert check.state == "bad" and "store=FOLDER" in check.advice
    other = doctor.disk("temporary", str(tmp_path / "store" / "inside"), "RAY_TMPDIR")
    assert "RAY_TMPDIR=FOLDER" in other.advice


def test_taken_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        check = doctor.port(number, "MLflow UI")
        assert check.state == "warn" and f"--port {number + 1}" in check.advice
    assert doctor.port(number, "MLflow UI").state == "ok"


def test_socket_paths() -> None:
    assert doctor.socket_path("/tmp").state == "ok"
    long = doctor.socket_path("/tmp/" + "x" * 60)
    assert long.state != "ok" and "RAY_TMPDIR" in long.advice


@pytest.mark.skipif(sys.platform != "linux", reason="Unix socket limits differ")
def test_socket_path_limit_is_the_systems(tmp_path: Path) -> None:
    """The longest name that binds is the one the doctor lets through."""
    room = SOCKET_PATH_BYTES
    for size, fits in ((room, True), (room + 1, False)):
        with socket.socket(socket.AF_UNIX) as probe:
            name = str(tmp_path) + "/"
            name += "s" * (size - len(os.fsencode(name)))
            if fits:
                probe.bind(name)
            else:
                with pytest.raises(OSError, match="too long"):
                    probe.bind(name)


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 4096))
    (check,) = doctor.file_descriptors()
    assert check.state == "warn" and "ulimit -n" in check.advice


def test_lines_show_the_mend_below() -> None:
    lines = doctor.lines(
        [doctor.Check("memory", "bad", "1 GB", "buy some"), doctor.Check("disk", "ok", "5 GB")]
    )
    assert lines == ["bad  memory  1 GB", "             -> buy some", "ok   disk    5 GB"]
