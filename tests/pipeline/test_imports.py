from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.imports import imported_modules

ROOT = Path(__file__).resolve().parents[2]


def test_imports_are_followed_and_types_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {
        "__init__": "",
        "entry": "import os, pa6.a\ndef late():\n    from pa6 import b\n    from other import z\n",
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pa6.types import T\n",
        "b": "from pa6.sub.c import name\n",
        "types": "",
        "never": "",
        "sub/__init__": "",
        "sub/c": "try:\n    import pa6.entry\nexcept ImportError:\n    pass\nname = 1\n",
    }
    for name, text in source.items():
        path = tmp_path / "pa6" / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = imported_modules("pa6.entry", ("pa6",))
    assert list(found) == ["pa6", "pa6.a", "pa6.b", "pa6.entry", "pa6.sub", "pa6.sub.c"]
    assert found["pa6.sub"].name == "__init__.py"


def test_what_is_found_is_what_python_imports() -> None:
    """Of a real module without imports inside of functions."""
    code = (
        "import sys, stages.text.words;"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('stages', 'pipeline')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    found = imported_modules("stages.text.words", ("stages", "pipeline"))
    assert list(found) == done.stdout.split()
