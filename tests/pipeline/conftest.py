from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The toy stages are named "toy_graph:function", also in processes of their own.
sys.path.insert(0, str(Path(__file__).parent))

import toy_graph
from toy_graph import Ran


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Four short documents (Blake and Dickinson, public domain)."""
    folder = tmp_path / "a corpus"
    folder.mkdir()
    for name, text in toy_graph.POEMS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Callable[..., Ran]:
    """Runs the toy graph on a store in this process."""

    def call(config: dict[str, Any] | None = None, store: Any = None, **options: Any) -> Ran:
        location = store if store is not None else tmp_path / "store"
        return toy_graph.run_toy(location, corpus, config or {}, **options)

    return call
