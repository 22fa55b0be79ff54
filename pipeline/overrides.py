"""Overrides of the command line, as typed: read, checked, and put as Hydra wants them.

`key=value` sets a value, `group=option` picks a file of a group, `~key` goes back to the default
of the model. `+` and `++` in front are accepted and mean the same: whether a key may be set is
decided by the config model, not by what the YAML files happen to list.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.stage import UserError


@dataclass(frozen=True)
class Groups:
    """The groups that the config folders hold.

    Attributes:
        options: group -> names of its files, sorted.
        listed: groups in the defaults list of `config.yaml`; others have to be added to it.
        packages: group -> where its values belong, of groups whose files say so ("# @package
        corpus.quality"); "tasks.NAME" where each file has a place by its own name.
    """

    options: Mapping[str, tuple[str, ...]]
    listed: frozenset[str]
    packages: Mapping[str, str]


@dataclass(frozen=True)
class Override:
    """One override: `hydra` is its text for Hydra, `key` the dotted key or group that it sets."""

    key: str
    hydra: str
    is_group: bool
    deletes: bool


def find_groups(folders: Sequence[Path]) -> Groups:
    """The groups and options in `folders`; of several `config.yaml` the first counts."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    options: dict[str, set[str]] = {}
    packages: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.y*ml")):
            options.setdefault(path.parent.name, set()).add(path.stem)
            if path.parent.name not in packages:
                packages |= _package(path)
    primary = next(f for f in folders if (f / "config.yaml").is_file()) / "config.yaml"
    listed: set[str] = set()
    try:
        for item in OmegaConf.load(primary).get("defaults") or []:
            if not isinstance(item, str):
                listed |= {str(key).split()[-1] for key in item}
    except (yaml.YAMLError, OmegaConfBaseException, AttributeError, TypeError, OSError):
        # Composing reads the file again and says what is wrong with it, and where.
        listed = set()
    return Groups(
        {g: tuple(sorted(o)) for g, o in sorted(options.items())}, frozenset(listed), packages
    )


def _package(path: Path) -> dict[str, str]:
    """{group: where its values belong}, if the file says so."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    place = first.partition("@package")[2].strip() if first.startswith("#") else ""
    above, _, last = place.rpartition(".")
    named = above and last == path.stem
    return {path.parent.name: f"{above}.NAME" if named else place} if place else {}


def read_override(text: str, groups: Groups) -> Override:
    """Read one override.

    Raises:
        UserError: it is not an override, holds several values, or picks an option that is not
            there.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    text = _on_one_line(text)
    name, equals, value = text.partition("=")
    key = name.lstrip("+~")
    deletes = name.startswith("~")
    if not key.strip() or not (equals or deletes):
        raise UserError(_not_an_override(text, groups))
    if key.startswith("hydra.") or key == "hydra":
        raise UserError(f"{text}: settings of Hydra itself are not used here; leave it out")
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException:
        raise UserError(_quote(text, name, value)) from None
    if parsed.is_sweep_override():
        raise UserError(
            f"{text}: a comma stands between several values, and one run takes one.\n"
            f"For a list write {_shell(f'{name}=[{value}]')}; "
            f"for a text with a comma {_shell(_quoted(name, value))}."
        )
    group = key.partition("@")[0]
    if group not in groups.options:
        return Override(key, text if deletes else f"++{key}={value}", False, deletes)
    if deletes:
        return Override(key, text, True, True)
    chosen = parsed.value()
    for option in chosen if isinstance(chosen, list) else [chosen]:
        if option is not None and str(option) not in groups.options[group]:
            raise UserError(_no_option(group, option, groups))
    plus = "" if group in groups.listed or "@" in key else "+"
    return Override(key, f"{plus}{key}={value}", True, False)


def _on_one_line(text: str) -> str:
    """Lines of a long list joined by blanks, as Hydra reads one line; those in quotes stay."""
    if "\n" not in text:
        return text
    return _QUOTED_OR_BREAK.sub(lambda found: found[1] or " ", text).strip()


_QUOTED_OR_BREAK = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|[ \t]*\r?\n\s*""", re.DOTALL
)


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known keys that `word` may have meant: spelt alike, or with an equal last part."""
    names = list(known)
    alike = difflib.get_close_matches(word, names, n=count, cutoff=0.6)
    last = word.rpartition(".")[2]
    alike += [name for name in names if name.rpartition(".")[2] == last and name not in alike]
    if not alike:
        ends = {name.rpartition(".")[2]: name for name in names}
        alike = [ends[end] for end in difflib.get_close_matches(last, ends, n=count, cutoff=0.75)]
    return alike[:count]


def _not_an_override(text: str, groups: Groups) -> str:
    lines = [f"{text!r} is not an override: write key=value or group=option."]
    options = [f"{g}={text}" for g, names in groups.options.items() if text in names]
    if options:
        lines.append(f"Perhaps you meant {' or '.join(options)}.")
    elif text in groups.options:
        lines.append(f"Options of {text}: {', '.join(groups.options[text])}.")
    elif "=" not in text:
        lines.append(f"To run a part of the graph: --only {text}, --from {text} or --until {text}.")
    return "\n".join(lines)


def _no_option(group: str, option: object, groups: Groups) -> str:
    alike = nearest(str(option), groups.options[group], 1)
    return "\n".join(
        [
            f"{group}={option}: the group {group!r} has no option {str(option)!r}."
            + (f" Perhaps you meant {group}={alike[0]}." if alike else ""),
            f"Options of {group}: {', '.join(groups.options[group])}.",
            f"(A single value of the group is set by its key: {group}.KEY=value.)",
        ]
    )


def _quote(text: str, name: str, value: str) -> str:
    if value[:1] in ("[", "{", "'", '"'):
        return (
            f"{text}: brackets or quotes do not match, or a character has a meaning of its own "
            f"and needs quotes. A list is written "
            f"{_shell(f'{name}=[one,two]')}, a text {_shell(_quoted(name, 'a text'))}."
        )
    return (
        f"{text}: the value has characters with a meaning of their own. "
        f"Put it in quotes: {_shell(_quoted(name, value))}"
    )


def _quoted(name: str, value: str) -> str:
    escaped = value.replace('"', '\\"')
    return f'{name}="{escaped}"'


def _shell(text: str) -> str:
    import shlex

    return shlex.quote(text)
