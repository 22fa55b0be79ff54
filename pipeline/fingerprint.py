"""What makes a result its own: everything that can change it, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline.digest import json_digest
from pipeline.stage import Json, Node, RawInput

ABSENT = "not installed"


def fingerprint_parts(
    node: Node, raw: RawInput | None, input_digests: Mapping[str, str]
) -> dict[str, Json]:
    """All that a node's result depends on, as JSON.

    Args:
        raw: the listing of external input, when the node has any.
        input_digests: role -> output digest of the artifact read under it.
    """
    return {
        "stage": node.stage.name,
        "version": node.stage.version,
        "config": node.config,
        "raw": None if raw is None else list(raw.entries),
        "inputs": dict(input_digests),
        "libraries": versions(node.stage.libraries),
    }


def fingerprint(parts: Mapping[str, Json]) -> str:
    """SHA-256 (hex) of the canonical JSON of `fingerprint_parts`."""
    return json_digest(parts)


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Distribution -> installed version; "python" is the interpreter."""
    return {name: _version(name) for name in sorted(distributions)}


def source_hash(modules: Sequence[str]) -> str:
    """SHA-256 (hex) over the source of modules, none of which is imported.

    A package counts with everything in it. Raises ValueError for a module that does not exist.
    """
    files: dict[str, Path] = {}
    for module in modules:
        path = source_path(module)
        if path.name == "__init__.py":
            below = {p.relative_to(path.parent).as_posix(): p for p in path.parent.rglob("*.py")}
            files.update({f"{module}:{name}": p for name, p in below.items()})
        else:
            files[module] = path
    return json_digest({name: _file_hash(path) for name, path in files.items()})


@functools.cache
def _version(distribution: str) -> str:
    if distribution == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT


def source_path(module: str) -> Path:
    """The file of a module, which is not imported. Raises ValueError when there is none."""
    # find_spec("a.b") imports a; only the top package is looked up, the rest are its files.
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is not None:
        roots = [Path(p) for p in spec.submodule_search_locations or ()]
        if not roots and not rest and spec.origin is not None:
            return Path(spec.origin)
        for root in roots:
            base = root.joinpath(*rest)
            candidates = [base / "__init__.py"]
            if rest:
                candidates.append(base.with_name(base.name + ".py"))
            for path in candidates:
                if path.is_file():
                    return path
    raise ValueError(f"no source for module {module!r}")


def _file_hash(path: Path) -> str:
    stat = path.stat()
    return _hash_unchanged(path, stat.st_mtime_ns, stat.st_size)


@functools.cache
def _hash_unchanged(path: Path, mtime_ns: int, size: int) -> str:
    # Line ends differ between checkouts of one commit.
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
