"""Which modules of ours a module imports, read from the source: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.fingerprint import source_path


def imported_modules(entry: str, packages: Sequence[str]) -> dict[str, Path]:
    """The modules of `packages` that `entry` imports, at any depth, and their packages.

    Imports inside of functions count, those for types alone (`if TYPE_CHECKING:`) do not.

    Returns:
        Dotted name -> file, `entry` included, sorted.
    """
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = source_path(name)
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        for target in _targets(ast.parse(found[name].read_text("utf-8"))):
            if target.partition(".")[0] in packages and _is_module(target):
                waiting.append(target)
    return dict(sorted(found.items()))


def _targets(tree: ast.AST) -> Iterator[str]:
    """Every name that may be a module; of `from a import b` both a and a.b."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from _targets(other)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _targets(node)


def _is_module(name: str) -> bool:
    try:
        source_path(name)
    except ValueError:
        return False
    return True
