"""The configuration travels in the wheel."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="the build backend is not installed"
)
def test_wheel_holds_the_configuration(tmp_path: Path) -> None:
    # The built wheel is checked as files: installing it would change the environment of the tests.
    built = tmp_path / "built"
    command = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    built.mkdir()
    subprocess.run([sys.executable, "-c", command, str(built)], cwd=ROOT, check=True)
    (wheel,) = built.glob("clozeline-*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    ours = {path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    assert ours and ours == {path.relative_to(site) for path in (site / "conf").rglob("*.yaml")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "config", "show", "model=base"],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hidden_size: 768" in done.stdout
