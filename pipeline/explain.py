"""What pydantic found wrong with a config, said so that a person can mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.config import origin_of
from pipeline.overrides import Groups, nearest
from pipeline.stage import Json

MOST_ERRORS = 3
"""Said in full; of further ones only the number is."""

ANY_NAME = "NAME"
"""In keys of groups that a person names: tasks.NAME.epochs."""


def explain(
    error: ValidationError, model: type[BaseModel], origins: Mapping[str, str], groups: Groups
) -> str:
    """One message of at most ten lines: key, value, where it was set, what is allowed."""
    schema = model.model_json_schema()
    found = error.errors(include_url=False)
    blocks = [_block(dict(item), schema, origins, groups) for item in found[:MOST_ERRORS]]
    lines = dict.fromkeys(line for block in blocks for line in block.split("\n"))
    if len(found) > MOST_ERRORS:
        lines[f"... and {len(found) - MOST_ERRORS} more."] = None
    return "\n".join(lines)


def keys(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Dotted key -> JSON schema of each leaf of a model's JSON schema."""
    return dict(_walk(schema, schema, ""))


def allowed(schema: Mapping[str, Any]) -> str:
    """In words, what a leaf's JSON schema takes: "a number above 0 and below 1, or null"."""
    if "anyOf" in schema:
        parts = [allowed(part) for part in schema["anyOf"]]
        return ", or ".join(parts)
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum") or [schema["const"]]
        return "one of " + ", ".join(map(str, choices)) if len(choices) > 1 else str(choices[0])
    kinds = {
        "null": "null",
        "string": "text",
        "boolean": "true or false",
        "integer": "a whole number",
        "number": "a number",
        "object": "a group of keys",
    }
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return "a list of texts" if items.get("type") == "string" else "a list"
    words = kinds.get(schema.get("type", ""), "another value")
    return words + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    said = [
        f"{text} {schema[name]:g}" if isinstance(schema[name], float) else f"{text} {schema[name]}"
        for name, text in (
            ("minimum", "of at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "of at most"),
            ("exclusiveMaximum", "below"),
            ("minLength", "of at least this many characters:"),
        )
        if name in schema
    ]
    return " " + " and ".join(said) if said else ""


def _walk(
    node: Mapping[str, Any], root: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, field in node.get("properties", {}).items():
        inner = _resolve(field, root)
        items = inner.get("additionalProperties")
        if inner.get("properties"):
            yield from _walk(inner, root, f"{prefix}{name}.")
        elif isinstance(items, Mapping):
            # Groups by names that a person gives, and what holds them: a leaf where there are none.
            yield f"{prefix}{name}", field
            yield from _walk(_resolve(items, root), root, f"{prefix}{name}.{ANY_NAME}.")
        else:
            yield f"{prefix}{name}", field


def _resolve(field: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = field.get("$ref") or next(
        (part["$ref"] for part in field.get("allOf", ()) if "$ref" in part), None
    )
    return root["$defs"][reference.rpartition("/")[2]] if reference else field


def _at(schema: Mapping[str, Any], location: tuple[int | str, ...]) -> Mapping[str, Any]:
    node = schema
    for part in location:
        node = _resolve(node, schema)
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            items = node.get("additionalProperties")
            by_name = items if isinstance(items, Mapping) else {}
            node = node.get("properties", {}).get(part, by_name)
    return node


def _block(
    item: dict[str, Any], schema: Mapping[str, Any], origins: Mapping[str, str], groups: Groups
) -> str:
    location: tuple[int | str, ...] = item["loc"]
    key = ".".join(map(str, location))
    where = f" ({_where(key, origins)})"
    if item["type"] == "value_error":
        said = str(item["ctx"]["error"])
        return said if key in said else f"{key}{where}: {said}"
    if item["type"] == "extra_forbidden":
        return _no_key(key, where, location, schema, groups)
    field = _at(schema, location)
    about = field.get("description")
    if item["type"] == "missing":
        return f"{key} is missing: it must be {allowed(field)}." + _about(key, about)
    rule = allowed(_resolve(field, schema))
    return f"{key}={_show(item['input'])}{where}: it must be {rule}." + _about(key, about)


def _no_key(
    key: str,
    where: str,
    location: tuple[int | str, ...],
    schema: Mapping[str, Any],
    groups: Groups,
) -> str:
    known = list(keys(schema))
    above = _resolve(_at(schema, location[:-1]), schema)
    siblings = list(above.get("properties", {}))
    if len(location) == 1 and key in groups.options:
        return _not_in_place(key, where, groups)
    if len(location) == 1:
        alike = nearest(key, [*known, *groups.options])
        said = f"{key}{where}: there is no such key or group."
        outside = dict.fromkeys(k for k in schema.get("properties", {}) if k in known)
        rest = [
            f"Groups: {', '.join(groups.options)}.",
            f"Keys outside of groups: {', '.join(outside)}.",
        ]
    else:
        parent = ".".join(map(str, location[:-1]))
        alike = nearest(key, dict.fromkeys([*(f"{parent}.{name}" for name in siblings), *known]))
        said = f"{key}{where}: there is no such key."
        rest = [f"Keys of {parent}: {', '.join(siblings)}."]
    if alike:
        said += f" Perhaps you meant {' or '.join(alike)}."
    return "\n".join([said, *rest])


def _not_in_place(group: str, where: str, groups: Groups) -> str:
    """Values of a group that belongs elsewhere: its files say so in a line of their own."""
    package = groups.packages.get(group, ANY_NAME)
    return "\n".join(
        [
            f"{group}{where}: values of the group {group!r} do not stand under {group!r} itself.",
            f"A file of this group begins with the line '# @package {package}': put it there.",
            f"On the command line write {package}.KEY=value.",
        ]
    )


def _where(key: str, origins: Mapping[str, str]) -> str:
    """Where `key`, or something under it, was set."""
    under = [origin for name, origin in origins.items() if name.startswith(f"{key}.")]
    return under[-1] if key not in origins and under else origin_of(key, origins)


def _about(key: str, description: str | None) -> str:
    return f"\n{key}: {description}" if description else ""


def _show(value: Json) -> str:
    text = repr(value) if isinstance(value, str) and not value.strip() else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
