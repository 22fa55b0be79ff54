"""Numbers, times and tables as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.stage import Json


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they have to be; columns that are empty throughout are left out."""
    used = [i for i in range(len(header)) if any(row[i] for row in rows)]
    widths = [max(len(line[i]) for line in (header, *rows)) for i in used]
    for line in (header, *rows):
        cells = (f"{line[i]:<{width}}" for i, width in zip(used, widths, strict=True))
        yield "  ".join(cells).rstrip()


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
