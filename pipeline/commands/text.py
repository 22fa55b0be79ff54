"""Numbers, times and tables as a person reads them in a terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from pipeline.stage import Json

LEAST_LAST_COLUMN = 30


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None when it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> Iterator[str]:
    """Columns as wide as they have to be; columns that are empty throughout are left out.

    With a `width` the last column is broken into lines, so that no line is longer (unless the
    other columns leave it less than `LEAST_LAST_COLUMN`).
    """
    used = [i for i in range(len(header)) if any(row[i] for row in rows)]
    if not used:
        return
    widths = [max(len(line[i]) for line in (header, *rows)) for i in used[:-1]]
    before = sum(widths) + 2 * len(widths)
    room = None if width is None else max(width - before, LEAST_LAST_COLUMN)
    for line in (header, *rows):
        cells = [f"{line[i]:<{wide}}" for i, wide in zip(used, widths, strict=False)]
        last = line[used[-1]]
        broken = [last] if room is None else textwrap.wrap(last, room) or [""]
        yield "  ".join([*cells, broken[0]]).rstrip()
        for rest in broken[1:]:
            yield " " * before + rest


def duration(seconds: float) -> str:
    """ "0.4 s", "12 s", "3:05", "2:03:00"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def size(count: int) -> str:
    """Bytes in decimal units: "812 B", "3.4 MB"."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def amount(value: Json) -> str:
    """A figure: thousands separated, six significant digits of a fraction, JSON for the rest."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e6 and value.is_integer() else f"{value:.6g}"
    return str(value)


def counts_text(counts: Mapping[str, int], unit: str = "") -> str:
    """ "5,365 -> 5,301 documents (64 duplicate)"."""
    ends = [f"{counts[name]:,}" for name in ("in", "out") if name in counts]
    reasons = [
        f"{number:,} {name.replace('_', ' ')}"
        for name, number in counts.items()
        if name not in ("in", "out") and number
    ]
    named = " -> ".join(ends) + (f" {unit}" if unit else "")
    return named + (f" ({', '.join(reasons)})" if reasons else "")


def flow(manifest: Mapping[str, Json]) -> str:
    """What came in and what went out; for a node that counts nothing, how much it made."""
    counts: Mapping[str, int] = manifest.get("counts") or {}
    if counts:
        return counts_text(counts, str(manifest.get("unit") or ""))
    if manifest.get("flow"):
        return str(manifest["flow"])
    rows = f"{manifest['rows']:,} rows, " if manifest.get("rows") else ""
    return f"-> {rows}{size(manifest.get('bytes') or 0)}"


NUMBER = re.compile(r"([0-9.]+ to )?[-+]?[0-9][0-9.,]*([eE][-+]?[0-9]+)?( ?%| [a-zA-Z/]{1,8})?|")


def is_number(text: str) -> bool:
    """Whether a cell is read from the right: "1,234", "12.5 %", "3.4 MB", or nothing."""
    return NUMBER.fullmatch(text) is not None
