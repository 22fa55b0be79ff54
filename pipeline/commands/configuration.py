"""`clozeline config show` and `clozeline config diff`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Composed, RunConfig, compose
from pipeline.stage import Json, UserError, flatten


def show(composed: Composed, as_json: bool, describe: bool) -> Iterator[str]:
    """The resolved config as lines of YAML, each value with its origin in a comment.

    The YAML is one that `config diff` reads. As JSON: a list of objects with `key`, `value`,
    `origin` and `description`.
    """
    tree = composed.config.model_dump(mode="json")
    about = descriptions(type(composed.config))
    if as_json:
        rows = [
            {
                "key": key,
                "value": value,
                "origin": composed.origins[key],
                "description": _about(key, about),
            }
            for key, value in flatten(tree)
        ]
        yield json.dumps(rows, indent=2, ensure_ascii=False)
        return
    leaves = list(_yaml(tree, ""))
    width = max((len(line) for key, line in leaves if key and len(line) <= 48), default=0)
    for key, line in leaves:
        if describe and (said := _about(key, about)):
            indent = " " * (len(line) - len(line.lstrip()))
            yield f"{indent}# {said}"
        yield f"{line:<{width}}  # {composed.origins[key]}" if key else line


def descriptions(model: type[RunConfig]) -> dict[str, str]:
    """Dotted key -> description of each leaf of a config model."""
    from pipeline.explain import keys

    leaves = keys(model.model_json_schema())
    return {key: str(leaf.get("description", "")) for key, leaf in leaves.items()}


def _about(key: str, about: Mapping[str, str]) -> str:
    """The description of a key, which may lie in a group that a person named."""
    from pipeline.explain import ANY_NAME

    parts = key.split(".")
    named = (".".join([*parts[:i], ANY_NAME, *parts[i + 1 :]]) for i in range(1, len(parts) - 1))
    return next((about[k] for k in (key, *named) if k in about), "")


def diff(
    left: str, right: str, conf_dir: Path | None, model: type[RunConfig], as_json: bool
) -> Iterator[str]:
    """Lines "key: left -> right" for each value that differs.

    A side is a list of overrides in one argument ("" is the default config), or a path: of a
    resolved config (YAML or JSON), of a manifest, or of an artifact's folder. A manifest holds a
    slice of a config; only the keys of that slice are compared.
    """
    sides = [_side(text, conf_dir, model) for text in (left, right)]
    keys = list(dict.fromkeys(key for side in sides for key in side.values))
    for side in sides:
        if side.is_slice:
            keys = [key for key in keys if key in side.values]
    rows = [
        {"key": key, "left": sides[0].values.get(key), "right": sides[1].values.get(key)}
        for key in keys
        if sides[0].values.get(key) != sides[1].values.get(key)
    ]
    if as_json:
        yield json.dumps(rows, indent=2, ensure_ascii=False)
        return
    for row in rows:
        yield f"{row['key']}: {_flow(row['left'])} -> {_flow(row['right'])}"
    if not rows:
        yield "no difference"


@dataclass(frozen=True)
class _Side:
    values: Mapping[str, Json]
    is_slice: bool


def _side(text: str, conf_dir: Path | None, model: type[RunConfig]) -> _Side:
    path = Path(text)
    if text and path.is_dir():
        path = path / "manifest.json"
        if not path.is_file():
            raise UserError(f"{text}: there is no manifest.json in this folder: not an artifact")
    if not text or not path.is_file():
        if "=" not in text and (path.suffix or "/" in text):
            raise UserError(f"{text}: there is no such file or folder")
        config = compose(shlex.split(text), conf_dir, model).config
        return _Side(dict(flatten(config.model_dump(mode="json"))), is_slice=False)
    tree = _read(path)
    if "fingerprint" in tree and isinstance(tree.get("config"), dict):
        return _Side(dict(flatten(tree["config"])), is_slice=True)
    return _Side(dict(flatten(tree)), is_slice=False)


def _read(path: Path) -> dict[str, Any]:
    import yaml
    from omegaconf import OmegaConf

    try:
        if path.suffix == ".json":
            tree = json.loads(path.read_text("utf-8"))
        else:
            tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as a config: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: holds no config: keys and values were expected")
    return tree


def _yaml(tree: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, str]]:
    """(dotted key or "" for a group's own line, line of YAML) of each line."""
    indent = "  " * prefix.count(".")
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield "", f"{indent}{name}:"
            yield from _yaml(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", f"{indent}{name}: {_flow(value)}"


def _flow(value: Json) -> str:
    """A value on one line of YAML."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return str(text).removesuffix("...\n").strip()


def names_of(arguments: Sequence[str]) -> tuple[str, str]:
    """The two sides of `config diff`."""
    if len(arguments) != 2:
        raise UserError(
            "config diff takes two sides, each in quotes when it is a list of overrides:\n"
            "  clozeline config diff '' 'mask.probability=0.2 model=mini'"
        )
    return arguments[0], arguments[1]
