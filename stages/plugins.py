"""Functions of a user's own, named in the config as "package.module:function".

`plan` only looks at them: they are found and read, never imported, and their source is
fingerprinted. Where they run they have to be importable: installed, or on PYTHONPATH, on every
machine of the cluster.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
from pathlib import Path

from pipeline.fingerprint import source_hash
from pipeline.stage import UserError


def plugin_source(key: str, name: str) -> str:
    """SHA-256 (hex) of the source that a plug-in comes with: its top package, or its module.

    Args:
        key: of the config, for messages ("corpus.sentences").
        name: "package.module:function".

    Raises:
        UserError: there is no such module or function, or it is not written in Python.
    """
    module, _, function = name.partition(":")
    path = _find(module)
    if path is None:
        raise UserError(
            f"{key}={name}: no module {module!r} can be imported. Install it, or put its folder on "
            "PYTHONPATH"
        )
    if path.suffix != ".py":
        raise UserError(
            f"{key}={name}: {path} is no Python source, so a change of it would not be seen. Call "
            "it from a module of your own, and name that"
        )
    try:
        known = _names(ast.parse(path.read_bytes()))
    except SyntaxError as error:
        raise UserError(
            f"{key}={name}: {path}, line {error.lineno}, is not Python: {error.msg}"
        ) from None
    if not {function, "*", "__getattr__"} & known:
        raise UserError(f"{key}={name}: there is no {function!r} in {path}")
    try:
        return source_hash((module.partition(".")[0],))
    except ValueError:  # a namespace package has no source of its own
        return source_hash((module,))


def _find(module: str) -> Path | None:
    """The file of a module, found without importing the packages that it lies in."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(
            f"{spec.name}.{name}", list(spec.submodule_search_locations)
        )
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _names(tree: ast.Module) -> set[str]:
    """All names that a module may bind; "*" where it imports all of another."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
