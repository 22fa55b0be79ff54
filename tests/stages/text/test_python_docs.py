from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import pytest

from stages.text.python_docs import (
    Unparsable,
    list_python_docs,
    module_docstrings,
    module_name,
    no_cycle_collection,
)
from stages.text.readers import read
from stages.text.splitting import splits

MODULE = '''# -*- coding: utf-8 -*-
"""Tools for ropes.

    An indented paragraph.
"""
import nothing_that_exists

if nothing_that_exists:
    def knot(x):
        r"""Tie a \\knot.

        Twice.
        """
        def inner():
            "Not too tight."
        "not a docstring"
else:
    async def knot(x):
        \'\'\'Tie it later.\'\'\'

try:
    class Rope:
        """A rope."""
        length: int = 3
        """An attribute's text is no docstring."""

        def cut(self): "Cut it."
except ImportError:
    class Rope: ("in brackets")
finally:
    def after():
        """   """

match 3:
    case 3:
        def third(): """Third."""

text = """no docstring"""
'''


def test_all_docstrings_in_source_order_and_nothing_else() -> None:
    assert module_docstrings(MODULE.encode()).split("\n\n") == [
        "Tools for ropes.",
        "An indented paragraph.",
        "Tie a \\knot.",
        "Twice.",
        "Not too tight.",
        "Tie it later.",
        "A rope.",
        "Cut it.",
        "in brackets",
        "Third.",
    ]
    assert "nothing_that_exists" not in sys.modules


def test_coding_line_and_bom() -> None:
    latin = '# coding: latin-1\n"""Né."""\n'.encode("latin-1")
    assert module_docstrings(latin) == "Né."
    assert module_docstrings(b"\xef\xbb\xbf" + '"""Né."""'.encode()) == "Né."
    assert module_docstrings(b"") == ""


@pytest.mark.parametrize(
    "source",
    [b"def f(:\n", b'"""\xff"""', b"# coding: no-such-codec\n", b"x = 1\0", b"(" * 5000, b'"""\r'],
)
def test_what_python_cannot_parse_is_said(source: bytes) -> None:
    with pytest.raises(Unparsable):
        module_docstrings(source)


@pytest.mark.filterwarnings("error")
def test_warnings_of_sources_stay_silent() -> None:
    assert module_docstrings(b'"""A bad \\escape."""\nassert (1, "x")\n1 is 1') == "A bad \\escape."


def test_module_names() -> None:
    assert module_name("scipy/stats/__init__.py") == "scipy.stats"
    assert module_name("scipy/stats/_qmc.py") == "scipy.stats._qmc"
    assert module_name("abc.py") == "abc"


def test_cycle_collection_comes_back() -> None:
    assert gc.isenabled()
    with pytest.raises(RuntimeError), no_cycle_collection():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def install(site: Path, name: str, modules: dict[str, str], more: str = "") -> None:
    record = more
    for path, text in modules.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        record += f"{path},sha256={abs(hash(text))},{len(text)}\n"
    info = site / f"{name}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "RECORD").write_text(record + f"{name}-1.5.dist-info/RECORD,,\n")


def test_distributions_by_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "ropes/__init__.py": '"""All about ropes."""',
        "ropes/bare.py": "x = 1",
        "ropes/broken.py": "def (",
        "ropes/tests/test_it.py": '"""Tests."""',
        "ropes/_vendor/six.py": '"""Six."""',
        "ropes/gone.py": '"""Deleted since."""',
    }
    install(tmp_path / "a", "ropes", modules)
    install(
        tmp_path / "b",
        "ropes",
        modules,
        "../../bin/ropes.py,sha256=x,9\nropes/__pycache__/bare.pyc,,\nropes/x.so,sha256=y,5\n",
    )
    (tmp_path / "a" / "ropes" / "gone.py").unlink()
    monkeypatch.syspath_prepend(str(tmp_path / "b"))
    other_installer = list_python_docs(["ropes"])
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    listing = list_python_docs(["ropes", "no-such-distribution", "ropes"])
    standard, ropes = listing.distributions
    assert [m for m, _ in ropes.modules] == [
        "ropes/__init__.py", "ropes/bare.py", "ropes/broken.py", "ropes/gone.py",
    ]  # fmt: skip
    assert [(m.path, m.reason) for m in listing.missing] == [
        ("no-such-distribution", "not installed")
    ]
    assert "no-such-distribution (not installed)" in listing.description()
    assert listing.fingerprint_entries()[1] == {
        "name": "ropes",
        "version": "1.5",
        "record": ropes.record,
    }
    assert other_installer.fingerprint_entries() == listing.fingerprint_entries()

    (split,) = [s for s in splits(listing) if s.source == "ropes"]
    (batch,) = read(split)
    assert batch.documents.to_pylist() == [
        {"source": "ropes", "id": "ropes", "text": "All about ropes."}
    ]
    assert batch.rejects == {"empty": 1, "unparsable": 1, "unreadable": 1}
    assert {e.where for e in batch.examples} == {"ropes.bare", "ropes.broken", "ropes.gone"}
    assert standard.name == "python"


def test_the_standard_library_is_listed_quickly_without_tests() -> None:
    start = time.perf_counter()
    (standard,) = list_python_docs([]).distributions
    assert time.perf_counter() - start < 5
    modules = {path for path, _ in standard.modules}
    assert {"abc.py", "email/message.py", "asyncio/tasks.py"} <= modules
    assert not any(m.startswith(("test/", "site-packages/", "numpy/")) for m in modules)
    assert standard.version == ".".join(map(str, sys.version_info[:3]))
    assert len(modules) > 300
