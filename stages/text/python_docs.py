"""The docstrings of installed packages as a corpus: one document a module.

Modules are parsed with `ast`, never imported. Distributions are identified by name, version and
their RECORD; the standard library by Python's version. Only the standard library is used here.
"""

from __future__ import annotations

import ast
import csv
import gc
import hashlib
import io
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stages.text.folders import walk
from stages.text.listing import Distribution, DocsListing, Skipped, relative_path

STANDARD_LIBRARY = "python"
"""Name of the standard library among distributions."""

LEFT_OUT = {"..", "tests", "test", "idle_test", "_vendor", "vendored", "thirdparty_files"}
"""Folders with little prose of their own: tests and copies of other packages."""


class Unparsable(ValueError):  # noqa: N818 - says what the file is
    """A file that Python cannot parse; the message says where and why."""


def list_python_docs(distributions: Sequence[str]) -> DocsListing:
    """List the standard library and those of `distributions` that are installed with a RECORD.

    Tests and copies of other packages (`tests`, `_vendor`...) are left out: they hold little prose
    of their own.
    """
    # Here, so that listing files does not pay for it.
    from importlib import metadata

    listed = [_standard_library()]
    missing = []
    for name in sorted(set(distributions)):
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.append(Skipped(name, "not installed"))
            continue
        lines = _record_lines(installed.read_text("RECORD") or "")
        if not lines:
            missing.append(Skipped(name, "its RECORD lists no module"))
            continue
        digest = hashlib.sha256("\n".join(",".join(line) for line in lines).encode()).hexdigest()
        modules = tuple((path, int(size or 0)) for path, _, size in lines)
        root = str(installed.locate_file(""))
        listed.append(Distribution(name, installed.version, digest, root, modules))
    return DocsListing(tuple(listed), tuple(missing))


def _is_prose(path: str) -> bool:
    """Whether a path in RECORD is a module whose docstrings are read."""
    parts = path.split("/")
    name = parts[-1]
    return (
        name.endswith(".py")
        and not name.startswith("test_")
        and name != "conftest.py"
        and LEFT_OUT.isdisjoint(parts)
    )


def _record_lines(record: str) -> list[tuple[str, str, str]]:
    """(path, hash, size) of the modules in a RECORD file, sorted by path."""
    rows = csv.reader(line for line in record.splitlines() if ".py," in line or '.py"' in line)
    return sorted((r[0], r[1], r[2]) for r in rows if len(r) == 3 and _is_prose(r[0]))


def _standard_library() -> Distribution:
    """Modules of the standard library, its tests left out, found by walking its folder."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for top in sorted(root.iterdir()):
        if top.name.removesuffix(".py") not in sys.stdlib_module_names:
            continue
        files = [str(top)]
        if top.is_dir():
            files = [item.path for item in walk(str(top), ()) if not item.problem]
        for file in files:
            path = relative_path(file, str(root))
            if _is_prose(path):
                modules.append((path, Path(file).stat().st_size))
    modules.sort()
    version = ".".join(map(str, sys.version_info[:3]))
    digest = hashlib.sha256("\n".join(f"{path},{size}" for path, size in modules).encode())
    return Distribution(STANDARD_LIBRARY, version, digest.hexdigest(), str(root), tuple(modules))


def module_name(path: str) -> str:
    """Dotted name of the module at `path` ("scipy/stats/__init__.py" -> "scipy.stats")."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_docstrings(source: bytes) -> str:
    """All docstrings of a module, in source order, dedented, with blank lines between.

    Those of the module, its classes and functions, nested ones too; "" when there is none.

    Raises:
        Unparsable: not Python of this version, or not decodable by its coding line (PEP 263).
    """
    try:
        # Bytes given to ast.parse would be decoded by the same rule, but with vaguer errors.
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise Unparsable(f"{type(error).__name__}: {error}") from error
    found: list[str] = []
    _collect(tree, found)
    return "\n\n".join(found)


def _collect(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, found: list[str]
) -> None:
    docstring = ast.get_docstring(node, clean=True)
    if docstring and docstring.strip():
        found.append(docstring)
    # Definitions are statements, so expressions, which are most of a tree, are not visited.
    pending: list[ast.AST] = list(reversed(node.body))
    while pending:
        statement = pending.pop()
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _collect(statement, found)
            continue
        blocks = [getattr(statement, name, ()) for name in _BLOCKS]
        pending.extend(reversed([child for block in blocks for child in block]))


_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""In source order."""


@contextmanager
def no_cycle_collection() -> Iterator[None]:
    """Pause Python's cycle collector while many syntax trees are made: half the time.

    Trees hold no cycles, so nothing stays behind.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
